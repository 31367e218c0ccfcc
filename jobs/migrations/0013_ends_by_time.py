from django.db import migrations, models


class Migration(migrations.Migration):
    """What failed in the last 24 hours is found without a look at all that happened in them."""

    dependencies = [("jobscheduler_jobs", "0012_index_of_retries")]

    operations = [
        migrations.AddIndex(
            model_name="jobevent",
            index=models.Index(
                fields=("kind", "at"),
                condition=models.Q(("kind__in", ["CANCELLED", "FAILED", "SKIPPED"])),
                name="jobevent_rare_end",
            ),
        ),
    ]
