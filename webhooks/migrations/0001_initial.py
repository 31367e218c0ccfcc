import django.db.models.deletion
import django.db.models.functions.datetime
import jobs.ids
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="WebhookDelivery",
            fields=[
                ("id", models.UUIDField(default=jobs.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("event", models.CharField(max_length=32, verbose_name="event")),
                ("job_id", models.UUIDField(blank=True, null=True, verbose_name="job")),
                ("group_id", models.UUIDField(blank=True, null=True, verbose_name="group")),
                (
                    "status",
                    models.CharField(
                        choices=[("PENDING", "Pending"), ("DELIVERED", "Delivered"), ("FAILED", "Failed")],
                        default="PENDING",
                        max_length=9,
                        verbose_name="status",
                    ),
                ),
                ("attempts", models.IntegerField(default=0, verbose_name="attempts")),
                ("attempts_before", models.IntegerField(default=0, verbose_name="attempts before it was resent")),
                (
                    "next_try_at",
                    models.DateTimeField(
                        blank=True,
                        db_default=django.db.models.functions.datetime.Now(),
                        null=True,
                        verbose_name="next try",
                    ),
                ),
                (
                    "probe",
                    models.BooleanField(default=False, editable=False, verbose_name="tried whatever the circuit says"),
                ),
                ("lease_token", models.UUIDField(blank=True, editable=False, null=True)),
                ("lease_expires_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("response_status", models.IntegerField(blank=True, null=True, verbose_name="response status")),
                ("error", models.TextField(blank=True, default="", verbose_name="error")),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="created"),
                ),
                ("delivered_at", models.DateTimeField(blank=True, null=True, verbose_name="delivered")),
            ],
            options={
                "verbose_name": "webhook delivery",
                "verbose_name_plural": "webhook deliveries",
                "db_table": "jobscheduler_webhookdelivery",
                "ordering": ("-id",),
                "permissions": [("resend_delivery", "Can resend deliveries")],
            },
        ),
        migrations.CreateModel(
            name="WebhookAttempt",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="at")),
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
        migrations.CreateModel(
            name="WebhookEndpoint",
            fields=[
                ("id", models.UUIDField(default=jobs.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("tenant", models.CharField(default="default", max_length=64, verbose_name="tenant")),
                ("url", models.CharField(max_length=2000, verbose_name="URL")),
                ("events", models.JSONField(default=list, verbose_name="events")),
                ("enabled", models.BooleanField(default=True, verbose_name="enabled")),
                ("disabled_reason", models.TextField(blank=True, default="", verbose_name="disabled because")),
                ("secret", models.BinaryField(verbose_name="secret, encrypted")),
                ("old_secret", models.BinaryField(null=True, verbose_name="former secret, encrypted")),
                (
                    "old_secret_until",
                    models.DateTimeField(blank=True, null=True, verbose_name="former secret signs until"),
                ),
                ("failures", models.IntegerField(default=0, verbose_name="failures in a row")),
                ("open_until", models.DateTimeField(blank=True, null=True, verbose_name="circuit open until")),
                ("failing_since", models.DateTimeField(blank=True, null=True, verbose_name="failing since")),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="created"),
                ),
            ],
            options={
                "verbose_name": "webhook endpoint",
                "verbose_name_plural": "webhook endpoints",
                "db_table": "jobscheduler_webhookendpoint",
                "ordering": ("-id",),
                "permissions": [
                    ("test_webhookendpoint", "Can send test deliveries"),
                    ("rotate_webhookendpoint", "Can rotate secrets"),
                ],
                "indexes": [
                    models.Index(condition=models.Q(("enabled", True)), fields=["tenant"], name="endpoint_listening")
                ],
            },
        ),
        migrations.AddField(
            model_name="webhookdelivery",
            name="endpoint",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="deliveries",
                to="jobscheduler_webhooks.webhookendpoint",
                verbose_name="endpoint",
            ),
        ),
        migrations.CreateModel(
            name="WebhookMessage",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("event_id", models.BigIntegerField(blank=True, null=True, unique=True, verbose_name="job event")),
                ("tenant", models.CharField(max_length=64, verbose_name="tenant")),
                ("event", models.CharField(max_length=32, verbose_name="event")),
                ("job_id", models.UUIDField(blank=True, null=True, verbose_name="job")),
                ("group_id", models.UUIDField(blank=True, null=True, verbose_name="group")),
                (
                    "group_status",
                    models.CharField(blank=True, max_length=9, null=True, verbose_name="status of the group"),
                ),
                ("group_round", models.IntegerField(blank=True, null=True, verbose_name="round of the group")),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="at")),
                ("body", models.BinaryField(null=True, verbose_name="body")),
                ("fanned_out_at", models.DateTimeField(blank=True, null=True, verbose_name="fanned out")),
            ],
            options={
                "verbose_name": "webhook message",
                "verbose_name_plural": "webhook messages",
                "db_table": "jobscheduler_webhookmessage",
                "ordering": ("-id",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("fanned_out_at__isnull", True)),
                        fields=["id"],
                        name="message_not_fanned_out",
                    ),
                    models.Index(
                        condition=models.Q(("group_id__isnull", False)), fields=["group_id"], name="message_of_group"
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("fanned_out_at__isnull", True), ("body__isnull", False), _connector="OR"),
                        name="message_fanned_out_with_body",
                    )
                ],
            },
        ),
        migrations.AddField(
            model_name="webhookdelivery",
            name="message",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE,
                related_name="deliveries",
                to="jobscheduler_webhooks.webhookmessage",
                verbose_name="message",
            ),
        ),
        migrations.CreateModel(
            name="WebhookSubscription",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("tenant", models.CharField(max_length=64, verbose_name="tenant")),
                ("event", models.CharField(max_length=32, verbose_name="event")),
                (
                    "since",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="since"),
                ),
                ("until", models.DateTimeField(blank=True, null=True, verbose_name="until")),
                (
                    "endpoint",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="subscriptions",
                        to="jobscheduler_webhooks.webhookendpoint",
                        verbose_name="endpoint",
                    ),
                ),
            ],
            options={
                "verbose_name": "webhook subscription",
                "verbose_name_plural": "webhook subscriptions",
                "db_table": "jobscheduler_webhooksubscription",
                "ordering": ("-id",),
            },
        ),
        migrations.AddIndex(
            model_name="webhookdelivery",
            index=models.Index(
                condition=models.Q(("status", "PENDING")), fields=["endpoint", "next_try_at"], name="delivery_due"
            ),
        ),
        migrations.AddIndex(
            model_name="webhookdelivery",
            index=models.Index(condition=models.Q(("probe", True)), fields=["endpoint"], name="delivery_probe"),
        ),
        migrations.AddIndex(
            model_name="webhookdelivery",
            index=models.Index(
                condition=models.Q(("lease_token__isnull", False)), fields=["endpoint"], name="delivery_leased"
            ),
        ),
        migrations.AddIndex(
            model_name="webhookdelivery",
            index=models.Index(
                condition=models.Q(("status", "FAILED")), fields=["endpoint", "id"], name="delivery_failed"
            ),
        ),
        migrations.AddIndex(
            model_name="webhookdelivery",
            index=models.Index(fields=["endpoint", "-id"], name="delivery_of_endpoint"),
        ),
        migrations.AddIndex(
            model_name="webhookdelivery",
            index=models.Index(
                condition=models.Q(("job_id__isnull", False)), fields=["job_id"], name="delivery_of_job"
            ),
        ),
        migrations.AddConstraint(
            model_name="webhookdelivery",
            constraint=models.CheckConstraint(
                condition=models.Q(("status__in", ["PENDING", "DELIVERED", "FAILED"])), name="delivery_status_known"
            ),
        ),
        migrations.AddConstraint(
            model_name="webhookdelivery",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("next_try_at__isnull", False), ("status", "PENDING")),
                    models.Q(
                        models.Q(("status", "PENDING"), _negated=True),
                        ("lease_token__isnull", True),
                        ("next_try_at__isnull", True),
                    ),
                    _connector="OR",
                ),
                name="delivery_due_iff_pending",
            ),
        ),
        migrations.AddConstraint(
            model_name="webhookdelivery",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("lease_expires_at__isnull", True), ("lease_token__isnull", True)),
                    models.Q(("lease_expires_at__isnull", False), ("lease_token__isnull", False)),
                    _connector="OR",
                ),
                name="delivery_lease_whole",
            ),
        ),
        migrations.AddIndex(
            model_name="webhooksubscription",
            index=models.Index(fields=["event", "tenant"], name="subscription_of_event"),
        ),
        migrations.AddConstraint(
            model_name="webhooksubscription",
            constraint=models.UniqueConstraint(fields=("endpoint", "event"), name="subscription_once"),
        ),
    ]
