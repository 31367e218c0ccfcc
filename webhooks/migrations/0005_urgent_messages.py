"""What somebody is there to receive is handed out before what nobody is."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobscheduler_webhooks", "0004_deliveries_of_messages")]

    operations = [
        migrations.RemoveIndex(model_name="webhookmessage", name="message_owed"),
        migrations.AddField(
            model_name="webhookmessage", name="urgent", field=models.BooleanField(default=True, editable=False)
        ),
        migrations.AddIndex(
            model_name="webhookmessage",
            index=models.Index(
                condition=models.Q(("owed__isnull", False)), fields=["urgent", "id"], name="message_owed"
            ),
        ),
    ]
