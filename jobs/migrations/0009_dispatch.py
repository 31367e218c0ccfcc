from django.db import migrations, models


class Migration(migrations.Migration):
    """What dispatching asks besides the queue: the machine, fair shares, deadlines, and who is behind a lease."""

    dependencies = [("jobscheduler_jobs", "0008_traceparent")]

    operations = [
        migrations.CreateModel(
            name="SystemSnapshot",
            fields=[
                ("id", models.SmallIntegerField(default=1, editable=False, primary_key=True, serialize=False)),
                ("holder", models.CharField(blank=True, default="", max_length=300, verbose_name="measured by")),
                ("held_until", models.DateTimeField(blank=True, null=True, verbose_name="housekeeping lease until")),
                ("taken_at", models.DateTimeField(blank=True, null=True, verbose_name="measured")),
                ("load", models.FloatField(default=0, verbose_name="load per core")),
                ("cpu", models.FloatField(default=0, verbose_name="processor use")),
                ("memory", models.FloatField(default=0, verbose_name="memory use")),
                (
                    "state",
                    models.CharField(
                        choices=[("QUIET", "Quiet"), ("NORMAL", "Normal"), ("BUSY", "Busy")],
                        default="NORMAL",
                        max_length=6,
                        verbose_name="state",
                    ),
                ),
                ("state_since", models.DateTimeField(blank=True, null=True, verbose_name="in this state since")),
                ("share_clock", models.FloatField(default=0, verbose_name="virtual time of fair shares")),
            ],
            options={
                "db_table": "jobscheduler_systemsnapshot",
                "verbose_name": "system snapshot",
                "verbose_name_plural": "system snapshots",
                "constraints": [
                    models.CheckConstraint(condition=models.Q(id=1), name="snapshot_only_one"),
                    models.CheckConstraint(
                        condition=models.Q(state__in=["QUIET", "NORMAL", "BUSY"]), name="snapshot_state_known"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ShareAccount",
            fields=[
                ("key", models.CharField(max_length=220, primary_key=True, serialize=False, verbose_name="key")),
                ("served", models.FloatField(default=0, verbose_name="served")),
            ],
            options={
                "db_table": "jobscheduler_shareaccount",
                "verbose_name": "fair share account",
                "verbose_name_plural": "fair share accounts",
            },
        ),
        migrations.AddField("lease", "priority", models.SmallIntegerField(default=50, verbose_name="priority")),
        migrations.AddField(
            "lease", "constraints", models.JSONField(blank=True, default=dict, verbose_name="constraints")
        ),
        migrations.AddField(
            "lease",
            "expected_duration_sec",
            models.FloatField(blank=True, null=True, verbose_name="expected duration (s)"),
        ),
        migrations.AddField(
            "lease", "process", models.CharField(blank=True, default="", editable=False, max_length=300)
        ),
        migrations.AddField(
            "lease", "beat_clock", models.CharField(blank=True, editable=False, max_length=100, null=True)
        ),
        migrations.AddIndex(
            "job",
            models.Index(
                fields=["deadline_at"],
                condition=models.Q(status__in=["PENDING", "QUEUED"], time_sensitive=True),
                name="job_deadline",
            ),
        ),
    ]
