"""How many runs of a schedule were skipped in a row, and an index for the alert."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobscheduler_schedules", "0002_missed_at")]

    operations = [
        migrations.AddField(
            model_name="schedule",
            name="skips_in_a_row",
            field=models.IntegerField(db_default=0, editable=False, verbose_name="skipped in a row"),
        ),
        migrations.AddIndex(
            model_name="schedule",
            index=models.Index(
                condition=models.Q(("skips_in_a_row__gte", 5)), fields=["skips_in_a_row"], name="schedule_skipping"
            ),
        ),
    ]
