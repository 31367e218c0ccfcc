"""A permission to pause and resume resources, apart from that to change limits."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("jobscheduler_jobs", "0010_worker_names")]

    operations = [
        migrations.AlterModelOptions(
            name="concurrencylimit",
            options={
                "ordering": ("scope", "key"),
                "permissions": [
                    ("change_limits", "Can set and pause limits"),
                    ("pause_resource", "Can pause and resume resources"),
                ],
                "verbose_name": "concurrency limit",
                "verbose_name_plural": "concurrency limits",
            },
        ),
    ]
