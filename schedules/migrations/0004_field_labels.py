"""Labels: the console calls a fire a run."""

from __future__ import annotations

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobscheduler_schedules", "0003_skips_in_a_row")]

    operations = [
        migrations.AlterModelOptions(
            name="schedule",
            options={
                "ordering": ("tenant", "name"),
                "permissions": [
                    ("trigger_schedule", "Can trigger schedules"),
                    ("enable_schedule", "Can enable schedules"),
                    ("disable_schedule", "Can disable schedules"),
                    ("skip_schedule", "Can skip runs of schedules"),
                ],
                "verbose_name": "schedule",
                "verbose_name_plural": "schedules",
            },
        ),
        migrations.AlterModelOptions(
            name="schedulefire",
            options={
                "ordering": ("-fire_time",),
                "verbose_name": "schedule run",
                "verbose_name_plural": "schedule runs",
            },
        ),
        migrations.AlterField(
            model_name="schedule",
            name="anchor_at",
            field=models.DateTimeField(blank=True, null=True, verbose_name="starting at"),
        ),
        migrations.AlterField(
            model_name="schedule",
            name="catch_up",
            field=models.CharField(
                choices=[("none", "None"), ("latest", "Latest"), ("all", "All")],
                default="latest",
                max_length=6,
                verbose_name="missed runs",
            ),
        ),
        migrations.AlterField(
            model_name="schedule",
            name="catch_up_max",
            field=models.IntegerField(default=10, verbose_name="missed runs, at most"),
        ),
        migrations.AlterField(
            model_name="schedule",
            name="edited",
            field=models.BooleanField(
                default=False,
                help_text="Changes of the declaration in code are ignored.",
                verbose_name="edited manually",
            ),
        ),
        migrations.AlterField(
            model_name="schedule",
            name="fire_count",
            field=models.BigIntegerField(default=0, verbose_name="runs so far"),
        ),
        migrations.AlterField(
            model_name="schedule",
            name="fire_time_param",
            field=models.CharField(
                blank=True,
                default="",
                help_text="Name of the param that receives it.",
                max_length=200,
                verbose_name="pass the run time as",
            ),
        ),
        migrations.AlterField(
            model_name="schedule",
            name="last_fire_at",
            field=models.DateTimeField(blank=True, null=True, verbose_name="last run"),
        ),
        migrations.AlterField(
            model_name="schedule",
            name="last_job_id",
            field=models.UUIDField(blank=True, editable=False, null=True, verbose_name="job of the last run"),
        ),
        migrations.AlterField(
            model_name="schedule",
            name="max_fires",
            field=models.IntegerField(blank=True, null=True, verbose_name="maximum runs"),
        ),
        migrations.AlterField(
            model_name="schedule",
            name="misfire_grace_sec",
            field=models.IntegerField(default=60, verbose_name="grace period (s)"),
        ),
        migrations.AlterField(
            model_name="schedule",
            name="next_fire_at",
            field=models.DateTimeField(blank=True, null=True, verbose_name="next run"),
        ),
        migrations.AlterField(
            model_name="schedule",
            name="note",
            field=models.TextField(
                blank=True, default="", help_text="Last message of the scheduler.", verbose_name="note"
            ),
        ),
        migrations.AlterField(
            model_name="schedule",
            name="source",
            field=models.CharField(blank=True, default="", max_length=200, verbose_name="declared by"),
        ),
        migrations.AlterField(
            model_name="schedulefire",
            name="fired_at",
            field=models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="created"),
        ),
    ]
