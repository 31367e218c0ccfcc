"""The index of deadlines has every waiting job with a deadline, not only time-sensitive ones."""

from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [("jobscheduler_jobs", "0008_group_actions")]

    operations = [
        migrations.RemoveIndex(model_name="job", name="job_deadline"),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                fields=["deadline_at"],
                name="job_deadline",
                condition=Q(deadline_at__isnull=False, status__in=["PENDING", "QUEUED"]),
            ),
        ),
    ]
