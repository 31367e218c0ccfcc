"""Conditions that are evaluated for each row that is written: on SQLite chains of OR, and the rarest test first.

The index of rare statuses has `resolved_at`: unresolved failures are counted without reading their jobs.
"""

from django.db import migrations, models
from django.db.models import Q

from jobs.migrations._operations import OnlyOnSQLite, RemoveTriggers
from jobs.models.expressions import IsOneOf

LIVE = ["DISPATCHING", "PAUSED", "PENDING", "QUEUED", "RUNNING"]
STATUSES = [
    *("PENDING", "QUEUED", "DISPATCHING", "RUNNING", "PAUSED"),
    *("COMPLETED", "FAILED", "SKIPPED", "CANCELLED"),
]


class Migration(migrations.Migration):
    dependencies = [("jobscheduler_jobs", "0023_worker_state_online")]

    operations = [
        RemoveTriggers(),
        OnlyOnSQLite(
            migrations.RemoveConstraint(model_name="job", name="job_status_known"),
            migrations.AddConstraint(
                model_name="job",
                constraint=models.CheckConstraint(condition=Q(IsOneOf("status", STATUSES)), name="job_status_known"),
            ),
        ),
        OnlyOnSQLite(
            migrations.RemoveConstraint(model_name="jobrun", name="jobrun_status_known"),
            migrations.AddConstraint(
                model_name="jobrun",
                constraint=models.CheckConstraint(
                    condition=Q(IsOneOf("status", ["RUNNING", "CANCELLED", "COMPLETED", "FAILED", "SKIPPED"])),
                    name="jobrun_status_known",
                ),
            ),
        ),
        migrations.RemoveConstraint(model_name="job", name="job_unique_until_start"),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.UniqueConstraint(
                fields=("tenant", "unique_key"),
                condition=Q(("unique_until", "start"), ("dispatched_at__isnull", True), ("status__in", LIVE)),
                name="job_unique_until_start",
            ),
        ),
        migrations.RemoveConstraint(model_name="job", name="job_unique_until_end"),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.UniqueConstraint(
                fields=("tenant", "unique_key"),
                condition=Q(("unique_until", "end"), ("status__in", LIVE)),
                name="job_unique_until_end",
            ),
        ),
        migrations.RemoveIndex(model_name="job", name="job_of_rare_status"),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                fields=["status", "id", "resolved_at"],
                condition=Q(IsOneOf("status", ["CANCELLED", "FAILED", "PAUSED", "PENDING", "SKIPPED"])),
                name="job_of_rare_status",
            ),
        ),
        OnlyOnSQLite(
            migrations.RemoveIndex(model_name="jobevent", name="jobevent_rare_end"),
            migrations.AddIndex(
                model_name="jobevent",
                index=models.Index(
                    fields=["kind", "at"],
                    condition=Q(IsOneOf("kind", ["CANCELLED", "FAILED", "SKIPPED"])),
                    name="jobevent_rare_end",
                ),
            ),
        ),
        OnlyOnSQLite(
            migrations.RemoveIndex(model_name="jobevent", name="jobevent_of_operator"),
            migrations.AddIndex(
                model_name="jobevent",
                index=models.Index(
                    fields=["id"],
                    condition=Q(IsOneOf("actor_kind", ["user", "token", "cli"])) & ~Q(kind__in=["SUBMITTED", "HELD"]),
                    name="jobevent_of_operator",
                ),
            ),
        ),
    ]
