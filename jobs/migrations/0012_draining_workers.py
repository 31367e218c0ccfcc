"""A quiet worker is shown as draining."""

from django.db import migrations, models

STATES = [("RUNNING", "Running"), ("QUIET", "Draining"), ("STOPPING", "Stopping"), ("STOPPED", "Stopped")]


class Migration(migrations.Migration):
    dependencies = [("jobscheduler_jobs", "0011_pause_resource")]

    operations = [
        migrations.AlterField(
            model_name="worker",
            name="state",
            field=models.CharField(choices=STATES, default="RUNNING", max_length=8, verbose_name="state"),
        ),
        migrations.AlterField(
            model_name="worker",
            name="request",
            field=models.CharField(
                blank=True, choices=STATES, default="", max_length=8, verbose_name="asked to become"
            ),
        ),
    ]
