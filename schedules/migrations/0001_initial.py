import django.db.models.deletion
import django.db.models.functions.datetime
import jobs.ids
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("jobscheduler_jobs", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("id", models.UUIDField(default=jobs.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("tenant", models.CharField(default="default", max_length=64, verbose_name="tenant")),
                ("name", models.CharField(max_length=200, verbose_name="name")),
                ("cron", models.CharField(blank=True, max_length=200, null=True, verbose_name="cron expression")),
                ("every_sec", models.BigIntegerField(blank=True, null=True, verbose_name="every (s)")),
                ("anchor_at", models.DateTimeField(blank=True, null=True, verbose_name="counted from")),
                ("run_at", models.DateTimeField(blank=True, null=True, verbose_name="once at")),
                ("timezone", models.CharField(default="UTC", max_length=64, verbose_name="time zone")),
                ("max_fires", models.IntegerField(blank=True, null=True, verbose_name="maximum fires")),
                ("enabled", models.BooleanField(default=True, verbose_name="enabled")),
                ("disabled_reason", models.TextField(blank=True, default="", verbose_name="disabled because")),
                ("job_type", models.CharField(blank=True, default="", max_length=200, verbose_name="job type")),
                ("params", models.JSONField(blank=True, default=dict, verbose_name="params")),
                (
                    "fire_time_param",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="The handler gets the due time under this name.",
                        max_length=200,
                        verbose_name="param for the due time",
                    ),
                ),
                ("priority", models.SmallIntegerField(blank=True, null=True, verbose_name="priority")),
                ("target", models.CharField(blank=True, max_length=200, null=True, verbose_name="target")),
                ("resource", models.CharField(blank=True, default="", max_length=200, verbose_name="resource")),
                (
                    "catch_up",
                    models.CharField(
                        choices=[("none", "None"), ("latest", "Latest"), ("all", "All")],
                        default="latest",
                        max_length=6,
                        verbose_name="catch-up",
                    ),
                ),
                ("catch_up_max", models.IntegerField(default=10, verbose_name="catch-up cap")),
                (
                    "overlap",
                    models.CharField(
                        choices=[("allow", "Allow"), ("skip", "Skip")],
                        default="allow",
                        max_length=5,
                        verbose_name="overlap",
                    ),
                ),
                ("misfire_grace_sec", models.IntegerField(default=60, verbose_name="misfire grace (s)")),
                ("jitter_sec", models.IntegerField(default=0, verbose_name="jitter (s)")),
                ("next_fire_at", models.DateTimeField(blank=True, null=True, verbose_name="next fire")),
                ("last_fire_at", models.DateTimeField(blank=True, null=True, verbose_name="last fire")),
                (
                    "last_job_id",
                    models.UUIDField(blank=True, editable=False, null=True, verbose_name="job of the last fire"),
                ),
                ("fire_count", models.BigIntegerField(default=0, verbose_name="fires so far")),
                (
                    "note",
                    models.TextField(
                        blank=True, default="", help_text="What the scheduler last had to say.", verbose_name="note"
                    ),
                ),
                ("source", models.CharField(blank=True, default="", max_length=200, verbose_name="made by")),
                (
                    "edited",
                    models.BooleanField(
                        default=False,
                        help_text="What the code declares is no longer followed.",
                        verbose_name="edited by a person",
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="created"),
                ),
                (
                    "template",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="schedules",
                        to="jobscheduler_jobs.jobtemplate",
                        verbose_name="template",
                    ),
                ),
            ],
            options={
                "verbose_name": "schedule",
                "verbose_name_plural": "schedules",
                "db_table": "jobscheduler_schedule",
                "ordering": ("tenant", "name"),
                "permissions": [
                    ("trigger_schedule", "Can trigger schedules"),
                    ("enable_schedule", "Can enable schedules"),
                    ("disable_schedule", "Can disable schedules"),
                    ("skip_schedule", "Can skip fires of schedules"),
                ],
            },
        ),
        migrations.CreateModel(
            name="ScheduleFire",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("fire_time", models.DateTimeField(verbose_name="due")),
                (
                    "fired_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="fired"),
                ),
                ("note", models.TextField(blank=True, default="", verbose_name="note")),
                (
                    "job",
                    models.ForeignKey(
                        blank=True,
                        db_constraint=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="fires",
                        to="jobscheduler_jobs.job",
                        verbose_name="job",
                    ),
                ),
                (
                    "schedule",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="fires",
                        to="jobscheduler_schedules.schedule",
                        verbose_name="schedule",
                    ),
                ),
            ],
            options={
                "verbose_name": "schedule fire",
                "verbose_name_plural": "schedule fires",
                "db_table": "jobscheduler_schedulefire",
                "ordering": ("-fire_time",),
            },
        ),
        migrations.AddIndex(
            model_name="schedule",
            index=models.Index(
                condition=models.Q(("enabled", True), ("next_fire_at__isnull", False)),
                fields=["next_fire_at"],
                name="schedule_due",
            ),
        ),
        migrations.AddConstraint(
            model_name="schedule",
            constraint=models.UniqueConstraint(fields=("tenant", "name"), name="schedule_name"),
        ),
        migrations.AddConstraint(
            model_name="schedule",
            constraint=models.UniqueConstraint(
                condition=models.Q(("source", ""), _negated=True), fields=("source",), name="schedule_source"
            ),
        ),
        migrations.AddConstraint(
            model_name="schedule",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("cron__isnull", False), ("every_sec__isnull", True), ("run_at__isnull", True)),
                    models.Q(("cron__isnull", True), ("every_sec__isnull", False), ("run_at__isnull", True)),
                    models.Q(("cron__isnull", True), ("every_sec__isnull", True), ("run_at__isnull", False)),
                    _connector="OR",
                ),
                name="schedule_one_trigger",
            ),
        ),
        migrations.AddConstraint(
            model_name="schedule",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("job_type", ""), ("template__isnull", False)),
                    models.Q(("template__isnull", True), models.Q(("job_type", ""), _negated=True)),
                    _connector="OR",
                ),
                name="schedule_template_or_type",
            ),
        ),
        migrations.AddConstraint(
            model_name="schedule",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("every_sec__isnull", True), ("every_sec__gte", 1), _connector="OR"),
                    models.Q(("max_fires__isnull", True), ("max_fires__gte", 1), _connector="OR"),
                    models.Q(("priority__isnull", True), ("priority__range", (0, 100)), _connector="OR"),
                    ("catch_up_max__gte", 1),
                    ("jitter_sec__gte", 0),
                    ("misfire_grace_sec__gte", 0),
                ),
                name="schedule_in_range",
            ),
        ),
        migrations.AddIndex(
            model_name="schedulefire",
            index=models.Index(condition=models.Q(("job__isnull", True)), fields=["id"], name="schedulefire_forgotten"),
        ),
        migrations.AddConstraint(
            model_name="schedulefire",
            constraint=models.UniqueConstraint(fields=("schedule", "fire_time"), name="schedulefire_once"),
        ),
    ]
