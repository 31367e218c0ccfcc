from django.db import migrations, models


class Migration(migrations.Migration):
    """Who submitted a job, in the terms of a trace."""

    dependencies = [("jobscheduler_jobs", "0007_remote")]

    operations = [
        migrations.AddField(
            "job", "traceparent", models.CharField(max_length=55, null=True, blank=True, editable=False)
        )
    ]
