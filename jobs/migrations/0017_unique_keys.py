"""Unique keys: at most one job of a key waits, or lives."""

from django.db import migrations, models
from django.db.models import Q

from jobs.migrations._operations import RemoveTriggers

LIVE = ["DISPATCHING", "PAUSED", "PENDING", "QUEUED", "RUNNING"]


class Migration(migrations.Migration):
    dependencies = [("jobscheduler_jobs", "0016_job_context")]

    operations = [
        RemoveTriggers(),
        migrations.AddField(
            model_name="job",
            name="unique_key",
            field=models.CharField(blank=True, max_length=255, null=True, verbose_name="unique key"),
        ),
        migrations.AddField(
            model_name="job",
            name="unique_until",
            field=models.CharField(
                blank=True,
                choices=[("start", "its start"), ("end", "its end")],
                max_length=5,
                null=True,
                verbose_name="unique until",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.CheckConstraint(
                condition=Q(unique_key__isnull=True, unique_until__isnull=True)
                | Q(unique_key__isnull=False, unique_until__isnull=False, unique_until__in=["start", "end"]),
                name="job_unique_key_and_until",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.UniqueConstraint(
                condition=Q(unique_until="start", dispatched_at__isnull=True, status__in=LIVE),
                fields=("tenant", "unique_key"),
                name="job_unique_until_start",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.UniqueConstraint(
                condition=Q(unique_until="end", status__in=LIVE),
                fields=("tenant", "unique_key"),
                name="job_unique_until_end",
            ),
        ),
    ]
