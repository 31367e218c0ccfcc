"""The label of a worker that claims jobs: "Online" in every list, as on the overview."""

from django.db import migrations, models

CHOICES = [("RUNNING", "Online"), ("QUIET", "Draining"), ("STOPPING", "Stopping"), ("STOPPED", "Stopped")]


class Migration(migrations.Migration):
    dependencies = [
        ("jobscheduler_jobs", "0022_flow_indexes"),
    ]

    operations = [
        migrations.AlterField(
            model_name="worker",
            name="request",
            field=models.CharField(
                blank=True, choices=CHOICES, default="", max_length=8, verbose_name="requested state"
            ),
        ),
        migrations.AlterField(
            model_name="worker",
            name="state",
            field=models.CharField(choices=CHOICES, default="RUNNING", max_length=8, verbose_name="state"),
        ),
    ]
