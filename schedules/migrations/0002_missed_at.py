"""When a schedule last missed due times, and indexes for the metrics of schedules."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobscheduler_schedules", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="schedule",
            name="missed_at",
            field=models.DateTimeField(blank=True, editable=False, null=True, verbose_name="last missed"),
        ),
        migrations.AddIndex(
            model_name="schedule",
            index=models.Index(
                condition=models.Q(("missed_at__isnull", False)), fields=["missed_at"], name="schedule_missed"
            ),
        ),
        migrations.AddIndex(
            model_name="schedule",
            index=models.Index(condition=models.Q(("enabled", False)), fields=["tenant"], name="schedule_disabled"),
        ),
    ]
