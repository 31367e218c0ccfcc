"""Processes that wait for the ends of jobs."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobscheduler_jobs", "0020_console_labels"),
    ]

    operations = [
        migrations.CreateModel(
            name="Waiter",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("job_id", models.UUIDField()),
                ("process", models.UUIDField()),
                ("expires_at", models.DateTimeField()),
            ],
            options={
                "db_table": "jobscheduler_waiter",
                "default_permissions": (),
                "constraints": [models.UniqueConstraint(fields=("job_id", "process"), name="waiter_of_job")],
            },
        ),
    ]
