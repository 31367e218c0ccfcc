"""The engine's busiest moves write one row for all the jobs they move, in place of a message each."""

import json
import uuid

import django.db.models.deletion
from django.db import migrations, models

from jobs.ids import uuid7


def unpack(apps, schema_editor):
    """What is owed stays owed."""
    alias = schema_editor.connection.alias
    messages = apps.get_model("jobscheduler_webhooks", "WebhookMessage").objects.using(alias)
    for bundle in (
        apps.get_model("jobscheduler_webhooks", "WebhookBundle").objects.using(alias).order_by("pk").iterator()
    ):
        told = _ids(bundle.jobs)
        retries = [None] * len(told) if bundle.retried_by is None else _ids(bundle.retried_by)
        for job, retried_by, snapshot in zip(told, retries, _snapshots(bundle.snapshots, len(told)), strict=True):
            messages.create(
                id=uuid7(),
                tenant=bundle.tenant,
                event=bundle.event,
                at=bundle.at,
                audience_id=bundle.audience_id,
                job_id=job,
                retried_by=retried_by if retried_by is not None and retried_by.int else None,
                snapshot=snapshot,
            )


def _ids(packed):
    raw = bytes(packed)
    return [uuid.UUID(bytes=raw[start : start + 16]) for start in range(0, len(raw), 16)]


def _snapshots(text, number):
    if text is None:
        return [None] * number
    told = json.loads(text)
    artifacts = told.pop("artifacts")
    return [
        json.dumps(
            {
                "claimed": {name: said[place] if isinstance(said, list) else said for name, said in told.items()},
                "artifacts": each,
            }
        )
        for place, each in enumerate(artifacts)
    ]


class Migration(migrations.Migration):
    dependencies = [("jobscheduler_webhooks", "0007_owed_to_audiences")]

    operations = [
        migrations.CreateModel(
            name="WebhookBundle",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("tenant", models.CharField(max_length=64, verbose_name="tenant")),
                ("event", models.CharField(max_length=32, verbose_name="event")),
                ("at", models.DateTimeField(verbose_name="at")),
                ("jobs", models.BinaryField(editable=False)),
                ("retried_by", models.BinaryField(editable=False, null=True)),
                ("snapshots", models.TextField(editable=False, null=True)),
                (
                    "audience",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="bundles",
                        to="jobscheduler_webhooks.webhookaudience",
                        verbose_name="owed to",
                    ),
                ),
            ],
            options={
                "verbose_name": "webhook bundle",
                "verbose_name_plural": "webhook bundles",
                "db_table": "jobscheduler_webhookbundle",
                "indexes": [
                    models.Index(fields=["audience", "id"], name="bundle_owed"),
                    models.Index(fields=["at"], name="bundle_at"),
                ],
            },
        ),
        migrations.RunPython(migrations.RunPython.noop, unpack),
    ]
