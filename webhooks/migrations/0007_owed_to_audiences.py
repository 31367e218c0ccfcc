"""The audience says whom a message is owed to."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobscheduler_webhooks", "0006_audiences")]

    operations = [
        migrations.RemoveIndex(model_name="webhookmessage", name="message_owed"),
        migrations.RemoveField(model_name="webhookmessage", name="owed"),
        migrations.RemoveField(model_name="webhookmessage", name="urgent"),
        migrations.AddIndex(
            model_name="webhookmessage",
            index=models.Index(
                condition=models.Q(("audience__isnull", False)), fields=["audience", "id"], name="message_owed"
            ),
        ),
        migrations.AddConstraint(
            model_name="webhookmessage",
            constraint=models.CheckConstraint(
                condition=models.Q(("audience__isnull", False), ("body__isnull", False), _connector="OR"),
                name="message_owed_or_made",
            ),
        ),
    ]
