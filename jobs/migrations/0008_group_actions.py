"""Actions on groups that are done in several batches."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobscheduler_jobs", "0007_activity"),
    ]

    operations = [
        migrations.CreateModel(
            name="GroupAction",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "verb",
                    models.CharField(
                        choices=[
                            ("cancel", "Cancel"),
                            ("stop", "Stop"),
                            ("skip", "Skip"),
                            ("retry", "Retry"),
                            ("reopen", "Reopen"),
                        ],
                        max_length=6,
                    ),
                ),
                ("actor_kind", models.CharField(max_length=9)),
                ("actor_name", models.CharField(blank=True, default="", max_length=300)),
                ("reason", models.TextField(blank=True, default="")),
                ("after_index", models.IntegerField(default=-1)),
                ("retried", models.UUIDField(blank=True, null=True)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "group",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="actions",
                        to="jobscheduler_jobs.jobgroup",
                    ),
                ),
            ],
            options={
                "verbose_name": "group action",
                "verbose_name_plural": "group actions",
                "db_table": "jobscheduler_groupaction",
                "default_permissions": (),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("verb__in", ["cancel", "stop", "skip", "retry", "reopen"])),
                        name="groupaction_verb_known",
                    )
                ],
            },
        ),
    ]
