"""The indexes of ready jobs by flow have a condition of their own, which no index of another order fulfils."""

from django.db import migrations, models

COLUMNS = ("flow_id", "-priority", "position", "created_at", "id")


class Migration(migrations.Migration):
    dependencies = [
        ("jobscheduler_jobs", "0021_waiters"),
    ]

    operations = [
        migrations.RemoveIndex(model_name="job", name="job_ready"),
        migrations.RemoveIndex(model_name="job", name="job_offerable_flow"),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("gate__gt", 2), ("remote", False)), fields=COLUMNS, name="job_ready"
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("gate__gt", 2), ("remote", True)), fields=COLUMNS, name="job_offerable_flow"
            ),
        ),
    ]
