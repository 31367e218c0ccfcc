"""What the submitting code knows and the handler needs travels with the job."""

from django.db import migrations, models

from jobs.migrations._operations import RemoveTriggers


class Migration(migrations.Migration):
    dependencies = [("jobscheduler_jobs", "0015_rates")]

    operations = [
        RemoveTriggers(),
        migrations.AddField(
            model_name="job", name="context", field=models.JSONField(blank=True, editable=False, null=True)
        ),
    ]
