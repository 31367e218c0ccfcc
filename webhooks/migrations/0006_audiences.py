"""What is owed names its audience, which is written down once for all messages that have it."""

import hashlib
import uuid

import django.db.models.deletion
from django.db import migrations, models


def to_audiences(apps, schema_editor):
    alias = schema_editor.connection.alias
    audiences = apps.get_model("jobscheduler_webhooks", "WebhookAudience").objects.using(alias)
    messages = apps.get_model("jobscheduler_webhooks", "WebhookMessage").objects.using(alias)
    for message in messages.filter(owed__isnull=False).iterator():
        endpoints = bytes(message.owed)
        key = uuid.UUID(hex=hashlib.md5(endpoints, usedforsecurity=False).hexdigest())
        audiences.get_or_create(id=key, defaults={"endpoints": endpoints})
        messages.filter(pk=message.pk).update(audience_id=key)


def to_messages(apps, schema_editor):
    alias = schema_editor.connection.alias
    messages = apps.get_model("jobscheduler_webhooks", "WebhookMessage").objects.using(alias)
    for audience in apps.get_model("jobscheduler_webhooks", "WebhookAudience").objects.using(alias):
        messages.filter(audience_id=audience.pk).update(owed=audience.endpoints)


class Migration(migrations.Migration):
    dependencies = [("jobscheduler_webhooks", "0005_urgent_messages")]

    operations = [
        # Going back, it holds again once `owed` is filled.
        migrations.RemoveConstraint(model_name="webhookmessage", name="message_owed_or_made"),
        migrations.CreateModel(
            name="WebhookAudience",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("endpoints", models.BinaryField()),
            ],
            options={
                "verbose_name": "webhook audience",
                "verbose_name_plural": "webhook audiences",
                "db_table": "jobscheduler_webhookaudience",
            },
        ),
        migrations.AddField(
            model_name="webhookmessage",
            name="audience",
            field=models.ForeignKey(
                blank=True,
                db_constraint=False,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="messages",
                to="jobscheduler_webhooks.webhookaudience",
                verbose_name="owed to",
            ),
        ),
        migrations.RunPython(to_audiences, to_messages),
    ]
