"""The place of a group's final job."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobscheduler_jobs", "0018_job_search")]

    operations = [
        migrations.AddField(
            model_name="jobgroup",
            name="then_index",
            field=models.IntegerField(
                blank=True,
                help_text="It starts after all other jobs have finished.",
                null=True,
                verbose_name="place of the final job",
            ),
        ),
    ]
