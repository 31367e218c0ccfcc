"""Bodies move from the deliveries to messages, and back."""

from django.db import migrations
from django.db.models import F
from django.db.models.functions import Now


def to_messages(apps, schema_editor):
    alias = schema_editor.connection.alias
    message_model = apps.get_model("jobscheduler_webhooks", "WebhookMessage")
    deliveries = apps.get_model("jobscheduler_webhooks", "WebhookDelivery").objects.using(alias)
    for delivery in deliveries.select_related("endpoint").iterator():
        same = {name: getattr(delivery, name) for name in ("event", "job_id", "group_id", "body")}
        message = message_model.objects.using(alias).create(
            tenant=delivery.endpoint.tenant, at=delivery.created_at, **same
        )
        deliveries.filter(pk=delivery.pk).update(message=message)
    deliveries.update(lease_token=None, lease_expires_at=None)
    deliveries.exclude(status="PENDING").update(next_try_at=None)
    deliveries.filter(status="PENDING", next_try_at=None).update(next_try_at=Now())


def to_deliveries(apps, schema_editor):
    deliveries = apps.get_model("jobscheduler_webhooks", "WebhookDelivery").objects.using(
        schema_editor.connection.alias
    )
    for delivery in deliveries.select_related("message").iterator():
        deliveries.filter(pk=delivery.pk).update(body=delivery.message.body or b"")
    deliveries.filter(next_try_at=None).update(next_try_at=F("created_at"))


class Migration(migrations.Migration):
    dependencies = [("jobscheduler_webhooks", "0002_messages")]

    operations = [migrations.RunPython(to_messages, to_deliveries)]
