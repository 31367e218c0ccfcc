"""A permission for the lists under Diagnostics in the console's navigation."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("jobscheduler_jobs", "0013_snooze")]

    operations = [
        migrations.AlterModelOptions(
            name="job",
            options={
                "ordering": ("-id",),
                "permissions": [
                    ("cancel_job", "Can cancel jobs"),
                    ("pause_job", "Can pause jobs"),
                    ("resume_job", "Can resume jobs"),
                    ("retry_job", "Can retry jobs"),
                    ("resolve_job", "Can resolve failed jobs"),
                    ("release_job", "Can release held jobs"),
                    ("reorder_job", "Can reorder the queue"),
                    ("view_payload", "Can see params, artifacts and logs"),
                    ("view_diagnostics", "Can see the lists under Diagnostics in the navigation"),
                ],
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
            },
        )
    ]
