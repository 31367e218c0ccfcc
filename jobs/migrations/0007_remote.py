from django.db import migrations, models

READY = 3


class Migration(migrations.Migration):
    """What remote workers need: who polled lately, their leases by id, and their ready jobs by flow."""

    dependencies = [("jobscheduler_jobs", "0006_quick_checks")]

    operations = [
        migrations.CreateModel(
            name="Poller",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("tenant", models.CharField(blank=True, default="", max_length=64, verbose_name="tenant")),
                ("addon_id", models.CharField(blank=True, default="", max_length=200, verbose_name="addon")),
                ("most", models.IntegerField(default=1, verbose_name="asked for at most")),
                ("polled_at", models.DateTimeField(verbose_name="last asked")),
            ],
            options={
                "db_table": "jobscheduler_poller",
                "verbose_name": "remote poller",
                "verbose_name_plural": "remote pollers",
                "constraints": [models.UniqueConstraint(fields=["tenant", "addon_id"], name="poller_of_addon")],
            },
        ),
        migrations.AddIndex(
            "jobevent",
            models.Index(
                fields=["token"], condition=models.Q(kind="RUNNING", token__isnull=False), name="jobevent_of_lease"
            ),
        ),
        migrations.AddIndex(
            "job",
            models.Index(
                fields=["flow_id", "-priority", "position", "created_at", "id"],
                condition=models.Q(gate=READY, remote=True),
                name="job_offerable_flow",
            ),
        ),
    ]
