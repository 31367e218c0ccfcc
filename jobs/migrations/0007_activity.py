"""Activities, the index of job events that operators caused, and triggers that keep both from being deleted."""

import django.db.models.functions.datetime
from django.db import migrations, models

import jobs.ids
from jobs.migrations._operations import InstallTriggers, VendorSQL

# The index of the model, with its condition as PostgreSQL evaluates it fastest: it prepares it anew for every statement
# that inserts events.
INDEX_OF_OPERATORS = (
    "DROP INDEX jobevent_of_operator",
    "CREATE INDEX jobevent_of_operator ON jobscheduler_jobevent (id) "
    "WHERE actor_kind = ANY('{user,token,cli}'::text[]) AND kind <> ALL('{SUBMITTED,HELD}'::text[])",
)


class Migration(migrations.Migration):
    dependencies = [
        ("jobscheduler_jobs", "0006_failed_attempts"),
    ]

    operations = [
        migrations.CreateModel(
            name="Activity",
            fields=[
                ("id", models.UUIDField(default=jobs.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="at")),
                ("tenant", models.CharField(blank=True, max_length=64, null=True, verbose_name="tenant")),
                (
                    "actor_kind",
                    models.CharField(
                        choices=[
                            ("user", "user"),
                            ("token", "API token"),
                            ("worker", "worker"),
                            ("scheduler", "scheduler"),
                            ("cli", "command line"),
                        ],
                        max_length=9,
                        verbose_name="actor kind",
                    ),
                ),
                ("actor_id", models.CharField(blank=True, max_length=200, null=True, verbose_name="actor id")),
                ("actor_name", models.CharField(blank=True, default="", max_length=300, verbose_name="actor")),
                ("action", models.CharField(max_length=32, verbose_name="action")),
                ("object_kind", models.CharField(max_length=16, verbose_name="kind of object")),
                ("object_id", models.CharField(max_length=300, verbose_name="object id")),
                ("object_name", models.CharField(blank=True, default="", max_length=300, verbose_name="object")),
                ("before", models.JSONField(blank=True, null=True, verbose_name="before")),
                ("after", models.JSONField(blank=True, null=True, verbose_name="after")),
                ("reason", models.TextField(blank=True, default="", verbose_name="reason")),
            ],
            options={
                "verbose_name": "activity",
                "verbose_name_plural": "activities",
                "db_table": "jobscheduler_activity",
                "ordering": ("-id",),
            },
        ),
        migrations.AddIndex(
            model_name="jobevent",
            index=models.Index(
                condition=models.Q(
                    ("actor_kind__in", ["user", "token", "cli"]),
                    models.Q(("kind__in", ["SUBMITTED", "HELD"]), _negated=True),
                ),
                fields=["id"],
                name="jobevent_of_operator",
            ),
        ),
        VendorSQL(forwards={"postgresql": INDEX_OF_OPERATORS}, backwards={}),
        migrations.AddIndex(
            model_name="activity",
            index=models.Index(fields=["tenant", "-id"], name="activity_of_tenant"),
        ),
        migrations.AddIndex(
            model_name="activity",
            index=models.Index(fields=["object_kind", "object_id", "-id"], name="activity_of_object"),
        ),
        migrations.AddIndex(
            model_name="activity",
            index=models.Index(fields=["actor_name", "-id"], name="activity_of_actor"),
        ),
        InstallTriggers(),
    ]
