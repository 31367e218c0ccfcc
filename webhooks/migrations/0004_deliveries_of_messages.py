"""Every delivery has its message; what is due is found endpoint by endpoint."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobscheduler_webhooks", "0003_bodies_of_messages")]

    operations = [
        migrations.RemoveIndex(model_name="webhookdelivery", name="delivery_due"),
        # Going back, the column is there again before there is anything to put into it.
        migrations.AlterField(
            model_name="webhookdelivery", name="body", field=models.BinaryField(default=b"", verbose_name="body")
        ),
        migrations.RemoveField(model_name="webhookdelivery", name="body"),
        migrations.RemoveField(model_name="webhookdelivery", name="response_head"),
        migrations.RemoveField(model_name="webhookdelivery", name="response_body"),
        migrations.AlterField(
            model_name="webhookdelivery",
            name="message",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE,
                related_name="deliveries",
                to="jobscheduler_webhooks.webhookmessage",
                verbose_name="message",
            ),
        ),
        migrations.AddIndex(
            model_name="webhookdelivery",
            index=models.Index(
                condition=models.Q(("status", "PENDING")), fields=["endpoint", "next_try_at"], name="delivery_due"
            ),
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
    ]
