"""The outbox apart from the deliveries, and a row for each try."""

import django.db.models.deletion
import django.db.models.functions.datetime
import jobs.ids
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobscheduler_webhooks", "0001_webhooks")]

    operations = [
        migrations.CreateModel(
            name="WebhookMessage",
            fields=[
                ("id", models.UUIDField(default=jobs.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("tenant", models.CharField(max_length=64, verbose_name="tenant")),
                ("event", models.CharField(max_length=32, verbose_name="event")),
                ("job_id", models.UUIDField(blank=True, null=True, verbose_name="job")),
                ("group_id", models.UUIDField(blank=True, null=True, verbose_name="group")),
                ("retried_by", models.UUIDField(blank=True, null=True, verbose_name="retried by")),
                (
                    "at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="at"),
                ),
                ("snapshot", models.TextField(editable=False, null=True)),
                ("owed", models.BinaryField(null=True)),
                ("body", models.BinaryField(null=True, verbose_name="body")),
            ],
            options={
                "verbose_name": "webhook message",
                "verbose_name_plural": "webhook messages",
                "db_table": "jobscheduler_webhookmessage",
                "ordering": ("-id",),
                "indexes": [
                    models.Index(condition=models.Q(("owed__isnull", False)), fields=["id"], name="message_owed"),
                    models.Index(
                        condition=models.Q(("job_id__isnull", False)), fields=["job_id"], name="message_of_job"
                    ),
                    models.Index(
                        condition=models.Q(("group_id__isnull", False)), fields=["group_id"], name="message_of_group"
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("owed__isnull", False), ("body__isnull", False), _connector="OR"),
                        name="message_owed_or_made",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="WebhookAttempt",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="at"),
                ),
                ("took_ms", models.IntegerField(verbose_name="took (ms)")),
                ("response_status", models.IntegerField(blank=True, null=True, verbose_name="response status")),
                ("response_head", models.TextField(blank=True, default="", verbose_name="response head")),
                ("response_body", models.TextField(blank=True, default="", verbose_name="response body")),
                ("error", models.TextField(blank=True, default="", verbose_name="error")),
                (
                    "delivery",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="tries",
                        to="jobscheduler_webhooks.webhookdelivery",
                        verbose_name="delivery",
                    ),
                ),
            ],
            options={
                "verbose_name": "webhook attempt",
                "verbose_name_plural": "webhook attempts",
                "db_table": "jobscheduler_webhookattempt",
                "ordering": ("-id",),
            },
        ),
        migrations.AddField(
            model_name="webhookdelivery",
            name="message",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="deliveries",
                to="jobscheduler_webhooks.webhookmessage",
                verbose_name="message",
            ),
        ),
        migrations.AddField(
            model_name="webhookdelivery",
            name="attempts_before",
            field=models.IntegerField(default=0, verbose_name="attempts before it was resent"),
        ),
        migrations.AddField(
            model_name="webhookendpoint",
            name="failed_at",
            field=models.DateTimeField(blank=True, null=True, verbose_name="last failure"),
        ),
        migrations.AlterModelOptions(
            name="webhookendpoint",
            options={
                "ordering": ("-id",),
                "permissions": [
                    ("test_webhookendpoint", "Can send test deliveries"),
                    ("rotate_webhookendpoint", "Can rotate secrets"),
                ],
                "verbose_name": "webhook endpoint",
                "verbose_name_plural": "webhook endpoints",
            },
        ),
    ]
