"""The index of rare statuses has `resolved_at`, so that unresolved failures are counted without reading their jobs."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobscheduler_jobs", "0023_worker_state_online"),
    ]

    operations = [
        migrations.RemoveIndex(model_name="job", name="job_of_rare_status"),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("status__in", ["CANCELLED", "FAILED", "PAUSED", "PENDING", "SKIPPED"])),
                fields=["status", "id", "resolved_at"],
                name="job_of_rare_status",
            ),
        ),
    ]
