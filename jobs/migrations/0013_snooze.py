"""A handler may put its job back for a while: how often it did, and the event."""

from django.db import migrations, models

from jobs.migrations._operations import RemoveTriggers

KINDS = (
    "SUBMITTED",
    "HELD",
    "RELEASED",
    "ADMITTED",
    "DENIED",
    "DISPATCHING",
    "WITHDRAWN",
    "RUNNING",
    "CANCEL_REQUESTED",
    "PAUSE_REQUESTED",
    "PAUSED",
    "RESUMED",
    "HANDED_BACK",
    "SNOOZED",
    "COMPLETED",
    "FAILED",
    "SKIPPED",
    "CANCELLED",
    "RETRY_CREATED",
    "RESOLVED",
    "MOVED",
    "UPDATED",
    "AGED",
)


class Migration(migrations.Migration):
    dependencies = [("jobscheduler_jobs", "0012_draining_workers")]

    operations = [
        RemoveTriggers(),
        migrations.AddField(
            model_name="job",
            name="snooze_count",
            field=models.IntegerField(default=0, db_default=0, verbose_name="times snoozed"),
        ),
        migrations.AlterField(
            model_name="jobevent",
            name="kind",
            field=models.CharField(choices=[(kind, kind) for kind in KINDS], max_length=16, verbose_name="kind"),
        ),
    ]
