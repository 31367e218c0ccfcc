import django.core.validators
import django.db.models.deletion
import django.db.models.functions.comparison
import django.db.models.functions.datetime
import jobs.ids
import jobs.states
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="ApiToken",
            fields=[
                ("id", models.UUIDField(default=jobs.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=200, verbose_name="name")),
                (
                    "tenant",
                    models.CharField(
                        blank=True, help_text="Empty: all tenants.", max_length=64, null=True, verbose_name="tenant"
                    ),
                ),
                ("scopes", models.JSONField(default=list, verbose_name="scopes")),
                ("prefix", models.CharField(max_length=16, verbose_name="prefix")),
                ("digest", models.CharField(editable=False, max_length=64, unique=True)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="created"),
                ),
                ("expires_at", models.DateTimeField(blank=True, null=True, verbose_name="expires")),
                ("last_used_at", models.DateTimeField(blank=True, null=True, verbose_name="last used")),
                ("revoked_at", models.DateTimeField(blank=True, null=True, verbose_name="revoked")),
                ("window_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("window_count", models.IntegerField(blank=True, editable=False, null=True)),
            ],
            options={
                "verbose_name": "API token",
                "verbose_name_plural": "API tokens",
                "db_table": "jobscheduler_apitoken",
                "ordering": ("-id",),
            },
        ),
        migrations.CreateModel(
            name="LaneMark",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("lane_id", models.UUIDField()),
            ],
            options={
                "verbose_name": "lane mark",
                "verbose_name_plural": "lane marks",
                "db_table": "jobscheduler_lanemark",
            },
        ),
        migrations.CreateModel(
            name="ShareAccount",
            fields=[
                ("key", models.CharField(max_length=220, primary_key=True, serialize=False, verbose_name="key")),
                ("served", models.FloatField(default=0, verbose_name="served")),
            ],
            options={
                "verbose_name": "fair share account",
                "verbose_name_plural": "fair share accounts",
                "db_table": "jobscheduler_shareaccount",
            },
        ),
        migrations.CreateModel(
            name="ConcurrencyLimit",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "scope",
                    models.CharField(
                        choices=[
                            ("global", "Global"),
                            ("job_type", "Job type"),
                            ("resource", "Resource"),
                            ("tenant", "Tenant"),
                            ("addon", "Addon"),
                        ],
                        max_length=8,
                        verbose_name="scope",
                    ),
                ),
                ("key", models.CharField(blank=True, default="", max_length=200, verbose_name="key")),
                ("overridden", models.BooleanField(default=True, verbose_name="overrides the settings")),
                (
                    "max",
                    models.IntegerField(blank=True, help_text="Empty: unlimited.", null=True, verbose_name="maximum"),
                ),
                ("paused", models.BooleanField(default=False, verbose_name="paused")),
                ("paused_by", models.CharField(blank=True, default="", max_length=300, verbose_name="paused by")),
                ("paused_at", models.DateTimeField(blank=True, null=True, verbose_name="paused since")),
                ("reason", models.TextField(blank=True, default="", verbose_name="reason")),
            ],
            options={
                "verbose_name": "concurrency limit",
                "verbose_name_plural": "concurrency limits",
                "db_table": "jobscheduler_concurrencylimit",
                "ordering": ("scope", "key"),
                "permissions": [("change_limits", "Can set and pause limits")],
                "constraints": [
                    models.UniqueConstraint(fields=("scope", "key"), name="limit_scope_key"),
                    models.CheckConstraint(
                        condition=models.Q(("scope__in", ["global", "job_type", "resource", "tenant", "addon"])),
                        name="limit_scope_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("key", ""), ("scope", "global")),
                            models.Q(
                                models.Q(("scope", "global"), _negated=True), models.Q(("key", ""), _negated=True)
                            ),
                            _connector="OR",
                        ),
                        name="limit_key_unless_global",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("max__isnull", True), ("max__gte", 1), _connector="OR"),
                        name="limit_at_least_one",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="JobGroup",
            fields=[
                ("id", models.UUIDField(default=jobs.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("tenant", models.CharField(default="default", max_length=64, verbose_name="tenant")),
                ("name", models.CharField(blank=True, default="", max_length=200, verbose_name="name")),
                (
                    "mode",
                    models.CharField(
                        choices=[("sequential", "Sequential"), ("parallel", "Parallel")],
                        default="parallel",
                        max_length=10,
                        verbose_name="mode",
                    ),
                ),
                (
                    "on_failure",
                    models.CharField(
                        choices=[("stop", "Stop"), ("continue", "Continue"), ("skip", "Skip")],
                        default="stop",
                        max_length=8,
                        verbose_name="on failure",
                    ),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("PENDING", "Pending"),
                            ("RUNNING", "Running"),
                            ("COMPLETED", "Completed"),
                            ("FAILED", "Failed"),
                            ("PARTIAL", "Partial"),
                            ("CANCELLED", "Cancelled"),
                        ],
                        default="PENDING",
                        max_length=9,
                        verbose_name="status",
                    ),
                ),
                ("cancel_requested", models.BooleanField(default=False, verbose_name="cancelled by a person")),
                ("round", models.IntegerField(default=1, help_text="How often it was opened.", verbose_name="round")),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="created"),
                ),
                ("finished_at", models.DateTimeField(blank=True, null=True, verbose_name="finished")),
            ],
            options={
                "verbose_name": "job group",
                "verbose_name_plural": "job groups",
                "db_table": "jobscheduler_jobgroup",
                "ordering": ("-id",),
                "permissions": [("cancel_jobgroup", "Can cancel groups"), ("retry_jobgroup", "Can retry groups")],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("status__in", ["PENDING", "RUNNING", "COMPLETED", "FAILED", "PARTIAL", "CANCELLED"])
                        ),
                        name="jobgroup_status_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("mode__in", ["sequential", "parallel"])), name="jobgroup_mode_known"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("on_failure__in", ["stop", "continue", "skip"])),
                        name="jobgroup_on_failure_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("finished_at__isnull", True), ("status__in", ("PENDING", "RUNNING"))),
                            models.Q(
                                models.Q(("status__in", ("PENDING", "RUNNING")), _negated=True),
                                ("finished_at__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="jobgroup_open_until_finished",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="JobMinute",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("minute", models.DateTimeField(verbose_name="minute")),
                ("worker", models.CharField(max_length=300, verbose_name="written by")),
                ("tenant", models.CharField(db_default="", max_length=64, verbose_name="tenant")),
                ("resource", models.CharField(db_default="", max_length=200, verbose_name="resource")),
                ("job_type", models.CharField(max_length=200, verbose_name="job type")),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("PENDING", "Pending"),
                            ("QUEUED", "Queued"),
                            ("DISPATCHING", "Dispatching"),
                            ("RUNNING", "Running"),
                            ("PAUSED", "Paused"),
                            ("COMPLETED", "Completed"),
                            ("FAILED", "Failed"),
                            ("SKIPPED", "Skipped"),
                            ("CANCELLED", "Cancelled"),
                        ],
                        max_length=11,
                        verbose_name="outcome",
                    ),
                ),
                (
                    "wait_bucket",
                    models.SmallIntegerField(help_text="-1: it never started.", verbose_name="wait bucket"),
                ),
                ("run_bucket", models.SmallIntegerField(help_text="-1: it never started.", verbose_name="run bucket")),
                ("jobs", models.BigIntegerField(default=0, verbose_name="jobs")),
                ("wait_sec", models.FloatField(default=0, verbose_name="waited (s)")),
                ("run_sec", models.FloatField(default=0, verbose_name="ran (s)")),
                (
                    "retried",
                    models.BigIntegerField(
                        db_default=0, help_text="Followed by an automatic retry.", verbose_name="retried"
                    ),
                ),
                (
                    "recovered",
                    models.BigIntegerField(
                        db_default=0, help_text="Ended for want of their holder.", verbose_name="recovered"
                    ),
                ),
            ],
            options={
                "verbose_name": "minute of jobs",
                "verbose_name_plural": "minutes of jobs",
                "db_table": "jobscheduler_jobminute",
                "ordering": ("-minute",),
                "constraints": [
                    models.UniqueConstraint(
                        fields=(
                            "minute",
                            "worker",
                            "tenant",
                            "resource",
                            "job_type",
                            "outcome",
                            "wait_bucket",
                            "run_bucket",
                        ),
                        name="jobminute_key",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="JobTemplate",
            fields=[
                ("id", models.UUIDField(default=jobs.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("tenant", models.CharField(default="default", max_length=64, verbose_name="tenant")),
                ("name", models.CharField(max_length=200, verbose_name="name")),
                ("job_type", models.CharField(max_length=200, verbose_name="job type")),
                ("params", models.JSONField(blank=True, default=dict, verbose_name="params")),
                ("retry_policy", models.JSONField(blank=True, default=dict, verbose_name="retry policy")),
                (
                    "priority",
                    models.SmallIntegerField(
                        blank=True,
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(0),
                            django.core.validators.MaxValueValidator(100),
                        ],
                        verbose_name="priority",
                    ),
                ),
                ("resource", models.CharField(blank=True, default="", max_length=200, verbose_name="resource")),
                ("target", models.CharField(blank=True, max_length=200, null=True, verbose_name="target")),
                ("max_runtime_sec", models.FloatField(blank=True, null=True, verbose_name="maximum runtime (s)")),
                ("token_limit", models.BigIntegerField(blank=True, null=True, verbose_name="token limit")),
                ("cost_units", models.SmallIntegerField(blank=True, null=True, verbose_name="cost units")),
                ("tags", models.JSONField(blank=True, default=list, verbose_name="tags")),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="created"),
                ),
            ],
            options={
                "verbose_name": "job template",
                "verbose_name_plural": "job templates",
                "db_table": "jobscheduler_jobtemplate",
                "ordering": ("tenant", "name"),
                "permissions": [("run_jobtemplate", "Can run templates")],
                "constraints": [models.UniqueConstraint(fields=("tenant", "name"), name="jobtemplate_name")],
            },
        ),
        migrations.CreateModel(
            name="Lease",
            fields=[
                ("id", models.UUIDField(default=jobs.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "kind",
                    models.CharField(
                        choices=[("ADMISSION", "Admission only"), ("DIRECT", "Direct execution")],
                        max_length=9,
                        verbose_name="kind",
                    ),
                ),
                ("tenant", models.CharField(default="default", max_length=64, verbose_name="tenant")),
                ("job_type", models.CharField(max_length=200, verbose_name="job type")),
                ("resource", models.CharField(default="default", max_length=200, verbose_name="resource")),
                ("addon_id", models.CharField(blank=True, default="", max_length=200, verbose_name="addon")),
                ("flow_id", models.BigIntegerField(editable=False)),
                ("cost_units", models.SmallIntegerField(default=1, verbose_name="cost units")),
                ("priority", models.SmallIntegerField(default=50, verbose_name="priority")),
                ("constraints", models.JSONField(blank=True, default=dict, verbose_name="constraints")),
                (
                    "expected_duration_sec",
                    models.FloatField(blank=True, null=True, verbose_name="expected duration (s)"),
                ),
                ("owner", models.CharField(max_length=300, verbose_name="owner")),
                ("process", models.CharField(blank=True, default="", editable=False, max_length=300)),
                (
                    "requested_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="requested"
                    ),
                ),
                ("granted_at", models.DateTimeField(blank=True, null=True, verbose_name="granted")),
                ("expires_at", models.DateTimeField(verbose_name="expires")),
                ("heartbeat_at", models.DateTimeField(blank=True, null=True, verbose_name="last heartbeat")),
                ("beat_clock", models.CharField(blank=True, editable=False, max_length=100, null=True)),
                ("ended_at", models.DateTimeField(blank=True, null=True, verbose_name="ended")),
                ("outcome", models.TextField(blank=True, default="", verbose_name="how it ended")),
            ],
            options={
                "verbose_name": "lease",
                "verbose_name_plural": "leases",
                "db_table": "jobscheduler_lease",
                "ordering": ("-id",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("ended_at__isnull", True)), fields=["flow_id", "id"], name="lease_live"
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ["ADMISSION", "DIRECT"])), name="lease_kind_known"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("cost_units__range", (0, 100))), name="lease_cost_range"
                    ),
                ],
            },
        ),
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
                "verbose_name": "remote poller",
                "verbose_name_plural": "remote pollers",
                "db_table": "jobscheduler_poller",
                "constraints": [models.UniqueConstraint(fields=("tenant", "addon_id"), name="poller_of_addon")],
            },
        ),
        migrations.CreateModel(
            name="SystemSnapshot",
            fields=[
                ("id", models.SmallIntegerField(default=1, editable=False, primary_key=True, serialize=False)),
                ("holder", models.CharField(blank=True, default="", max_length=300, verbose_name="measured by")),
                ("held_until", models.DateTimeField(blank=True, null=True, verbose_name="housekeeping lease until")),
                ("taken_at", models.DateTimeField(blank=True, null=True, verbose_name="measured")),
                ("load", models.FloatField(default=0, verbose_name="load per core")),
                ("cpu", models.FloatField(default=0, verbose_name="processor use")),
                ("memory", models.FloatField(default=0, verbose_name="memory use")),
                (
                    "state",
                    models.CharField(
                        choices=[("QUIET", "Quiet"), ("NORMAL", "Normal"), ("BUSY", "Busy")],
                        default="NORMAL",
                        max_length=6,
                        verbose_name="state",
                    ),
                ),
                ("state_since", models.DateTimeField(blank=True, null=True, verbose_name="in this state since")),
                ("share_clock", models.FloatField(default=0, verbose_name="virtual time of fair shares")),
            ],
            options={
                "verbose_name": "system snapshot",
                "verbose_name_plural": "system snapshots",
                "db_table": "jobscheduler_systemsnapshot",
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("id", 1)), name="snapshot_only_one"),
                    models.CheckConstraint(
                        condition=models.Q(("state__in", ["QUIET", "NORMAL", "BUSY"])), name="snapshot_state_known"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Target",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("tenant", models.CharField(default="default", max_length=64, verbose_name="tenant")),
                ("key", models.CharField(max_length=200, verbose_name="key")),
                ("paused", models.BooleanField(default=False, verbose_name="paused")),
                ("paused_by", models.CharField(blank=True, default="", max_length=300, verbose_name="paused by")),
                ("paused_at", models.DateTimeField(blank=True, null=True, verbose_name="paused since")),
                ("reason", models.TextField(blank=True, default="", verbose_name="reason")),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="created"),
                ),
            ],
            options={
                "verbose_name": "target",
                "verbose_name_plural": "targets",
                "db_table": "jobscheduler_target",
                "ordering": ("tenant", "key"),
                "permissions": [("pause_target", "Can pause and unpause targets")],
                "constraints": [models.UniqueConstraint(fields=("tenant", "key"), name="target_key")],
            },
        ),
        migrations.CreateModel(
            name="Job",
            fields=[
                ("id", models.UUIDField(default=jobs.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("job_type", models.CharField(max_length=200, verbose_name="job type")),
                ("params", models.JSONField(blank=True, default=dict, verbose_name="params")),
                ("tags", models.JSONField(blank=True, default=list, verbose_name="tags")),
                ("tenant", models.CharField(default="default", max_length=64, verbose_name="tenant")),
                ("target", models.CharField(blank=True, max_length=200, null=True, verbose_name="target")),
                ("addon_id", models.CharField(blank=True, default="", max_length=200, verbose_name="addon")),
                ("resource", models.CharField(default="default", max_length=200, verbose_name="resource")),
                ("remote", models.BooleanField(default=False, verbose_name="for remote workers")),
                (
                    "flow_id",
                    models.BigIntegerField(
                        editable=False, help_text="Derived from tenant, job type, resource and addon."
                    ),
                ),
                (
                    "priority",
                    models.SmallIntegerField(
                        default=50,
                        validators=[
                            django.core.validators.MinValueValidator(0),
                            django.core.validators.MaxValueValidator(100),
                        ],
                        verbose_name="priority",
                    ),
                ),
                (
                    "base_priority",
                    models.SmallIntegerField(
                        default=50,
                        validators=[
                            django.core.validators.MinValueValidator(0),
                            django.core.validators.MaxValueValidator(100),
                        ],
                        verbose_name="base priority",
                    ),
                ),
                ("position", models.BigIntegerField(verbose_name="position")),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="created"),
                ),
                ("not_before", models.DateTimeField(blank=True, null=True, verbose_name="not before")),
                ("recheck_at", models.DateTimeField(blank=True, null=True, verbose_name="admission re-checked at")),
                ("deadline_at", models.DateTimeField(blank=True, null=True, verbose_name="deadline")),
                ("time_sensitive", models.BooleanField(default=False, verbose_name="time-sensitive")),
                (
                    "expected_duration_sec",
                    models.FloatField(blank=True, null=True, verbose_name="expected duration (s)"),
                ),
                ("max_runtime_sec", models.FloatField(blank=True, null=True, verbose_name="maximum runtime (s)")),
                ("dispatched_at", models.DateTimeField(blank=True, null=True, verbose_name="first dispatched")),
                ("cost_units", models.SmallIntegerField(default=1, verbose_name="cost units")),
                ("constraints", models.JSONField(blank=True, default=dict, verbose_name="constraints")),
                ("token_limit", models.BigIntegerField(blank=True, null=True, verbose_name="token limit")),
                ("tokens_used", models.BigIntegerField(default=0, verbose_name="tokens used")),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("PENDING", "Pending"),
                            ("QUEUED", "Queued"),
                            ("DISPATCHING", "Dispatching"),
                            ("RUNNING", "Running"),
                            ("PAUSED", "Paused"),
                            ("COMPLETED", "Completed"),
                            ("FAILED", "Failed"),
                            ("SKIPPED", "Skipped"),
                            ("CANCELLED", "Cancelled"),
                        ],
                        max_length=11,
                        verbose_name="status",
                    ),
                ),
                ("status_reason", models.TextField(blank=True, default="", verbose_name="reason")),
                (
                    "gate",
                    models.SmallIntegerField(
                        choices=[(0, "not queued"), (1, "waits for its time"), (2, "waits in its lane"), (3, "ready")],
                        default=0,
                        verbose_name="gate",
                    ),
                ),
                ("hold", models.BooleanField(default=False, verbose_name="held by a person")),
                ("holds_lane", models.BooleanField(default=False, verbose_name="holds its lane")),
                ("cancel_requested", models.BooleanField(default=False, verbose_name="stop requested")),
                (
                    "cancel_mode",
                    models.CharField(
                        blank=True,
                        choices=[("CANCEL", "Cancel"), ("PAUSE", "Pause")],
                        default="",
                        max_length=6,
                        verbose_name="stop mode",
                    ),
                ),
                ("progress", models.FloatField(blank=True, null=True, verbose_name="progress")),
                ("progress_message", models.TextField(blank=True, default="", verbose_name="progress message")),
                ("checkpoint", models.JSONField(blank=True, null=True, verbose_name="checkpoint")),
                ("lease_owner", models.CharField(blank=True, max_length=300, null=True, verbose_name="lease owner")),
                ("lease_token", models.UUIDField(blank=True, null=True, verbose_name="lease token")),
                ("lease_expires_at", models.DateTimeField(blank=True, null=True, verbose_name="lease expires")),
                ("heartbeat_at", models.DateTimeField(blank=True, null=True, verbose_name="last heartbeat")),
                ("beat_clock", models.CharField(blank=True, editable=False, max_length=100, null=True)),
                (
                    "fence",
                    models.BigIntegerField(
                        default=0, help_text="Grows with every claim along a retry chain.", verbose_name="fence"
                    ),
                ),
                ("reserved_until", models.DateTimeField(blank=True, null=True, verbose_name="reserved until")),
                ("attempt", models.IntegerField(default=1, verbose_name="attempt")),
                ("max_retries", models.IntegerField(default=3, verbose_name="maximum retries")),
                ("retry_policy", models.JSONField(blank=True, default=dict, verbose_name="retry policy")),
                ("resolved_at", models.DateTimeField(blank=True, null=True, verbose_name="resolved")),
                ("group_index", models.IntegerField(blank=True, null=True, verbose_name="place in group")),
                ("fire_time", models.DateTimeField(blank=True, null=True, verbose_name="fire time")),
                (
                    "idempotency_key",
                    models.CharField(blank=True, max_length=255, null=True, verbose_name="idempotency key"),
                ),
                ("idempotency_hash", models.CharField(blank=True, default="", editable=False, max_length=64)),
                ("traceparent", models.CharField(blank=True, editable=False, max_length=55, null=True)),
                (
                    "retry_of",
                    models.OneToOneField(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="retried_by",
                        to="jobscheduler_jobs.job",
                        verbose_name="retry of",
                    ),
                ),
                (
                    "group",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="jobs",
                        to="jobscheduler_jobs.jobgroup",
                        verbose_name="group",
                    ),
                ),
                (
                    "template",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="jobs",
                        to="jobscheduler_jobs.jobtemplate",
                        verbose_name="template",
                    ),
                ),
                (
                    "lane",
                    models.ForeignKey(
                        blank=True,
                        db_constraint=False,
                        db_index=False,
                        help_text="Derived from tenant and target.",
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="jobs",
                        to="jobscheduler_jobs.target",
                        verbose_name="lane",
                    ),
                ),
            ],
            options={
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
                "db_table": "jobscheduler_job",
                "ordering": ("-id",),
                "permissions": [
                    ("cancel_job", "Can cancel jobs"),
                    ("pause_job", "Can pause jobs"),
                    ("resume_job", "Can resume jobs"),
                    ("retry_job", "Can retry jobs"),
                    ("resolve_job", "Can resolve failed jobs"),
                    ("release_job", "Can release held jobs"),
                    ("reorder_job", "Can reorder the queue"),
                    ("view_payload", "Can see params, artifacts and logs"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Worker",
            fields=[
                ("id", models.UUIDField(default=jobs.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=200, verbose_name="name")),
                ("host", models.CharField(max_length=255, verbose_name="host")),
                ("pid", models.IntegerField(verbose_name="process id")),
                ("boot_id", models.CharField(blank=True, default="", max_length=64)),
                ("pid_namespace", models.CharField(blank=True, default="", max_length=64)),
                ("pid_started", models.CharField(blank=True, default="", max_length=32)),
                ("version", models.CharField(blank=True, default="", max_length=50, verbose_name="version")),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("RUNNING", "Running"),
                            ("QUIET", "Quiet"),
                            ("STOPPING", "Stopping"),
                            ("STOPPED", "Stopped"),
                        ],
                        default="RUNNING",
                        max_length=8,
                        verbose_name="state",
                    ),
                ),
                ("slots", models.IntegerField(default=1, verbose_name="slots")),
                ("busy", models.IntegerField(default=0, verbose_name="busy")),
                ("stuck", models.IntegerField(default=0, verbose_name="stuck slots")),
                ("rss_bytes", models.BigIntegerField(blank=True, null=True, verbose_name="memory")),
                ("cpu_percent", models.FloatField(blank=True, null=True, verbose_name="processor, of one core")),
                ("serves", models.JSONField(blank=True, default=dict, verbose_name="serves")),
                (
                    "request",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("RUNNING", "Running"),
                            ("QUIET", "Quiet"),
                            ("STOPPING", "Stopping"),
                            ("STOPPED", "Stopped"),
                        ],
                        default="",
                        max_length=8,
                        verbose_name="asked to become",
                    ),
                ),
                ("requested_at", models.DateTimeField(blank=True, null=True, verbose_name="asked at")),
                (
                    "started_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="started"),
                ),
                (
                    "heartbeat_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="last heartbeat"
                    ),
                ),
                ("stopped_at", models.DateTimeField(blank=True, null=True, verbose_name="stopped")),
            ],
            options={
                "verbose_name": "worker",
                "verbose_name_plural": "workers",
                "db_table": "jobscheduler_worker",
                "ordering": ("-id",),
                "permissions": [("stop_worker", "Can quiet and stop workers")],
                "indexes": [models.Index(fields=["name", "-id"], name="worker_lives")],
            },
        ),
        migrations.CreateModel(
            name="JobRun",
            fields=[
                (
                    "job",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="run",
                        serialize=False,
                        to="jobscheduler_jobs.job",
                        verbose_name="job",
                    ),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("RUNNING", "Running"),
                            ("CANCELLED", "Cancelled"),
                            ("COMPLETED", "Completed"),
                            ("FAILED", "Failed"),
                            ("SKIPPED", "Skipped"),
                        ],
                        default="RUNNING",
                        max_length=11,
                        verbose_name="status",
                    ),
                ),
                (
                    "started_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="started"),
                ),
                ("finished_at", models.DateTimeField(blank=True, null=True, verbose_name="finished")),
                ("exit_code", models.IntegerField(blank=True, null=True, verbose_name="exit code")),
                ("error", models.TextField(blank=True, default="", verbose_name="error")),
                ("artifacts", models.JSONField(blank=True, default=dict, verbose_name="artifacts")),
                ("worker", models.CharField(blank=True, default="", max_length=300, verbose_name="worker")),
            ],
            options={
                "verbose_name": "job run",
                "verbose_name_plural": "job runs",
                "db_table": "jobscheduler_jobrun",
                "ordering": ("-job_id",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("status__in", ["RUNNING", "CANCELLED", "COMPLETED", "FAILED", "SKIPPED"])),
                        name="jobrun_status_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("finished_at__isnull", True), ("status", jobs.states.Status["RUNNING"])),
                            models.Q(
                                models.Q(("status", jobs.states.Status["RUNNING"]), _negated=True),
                                ("finished_at__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="jobrun_open_until_finished",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="JobEvent",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="at")),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("SUBMITTED", "SUBMITTED"),
                            ("HELD", "HELD"),
                            ("RELEASED", "RELEASED"),
                            ("ADMITTED", "ADMITTED"),
                            ("DENIED", "DENIED"),
                            ("DISPATCHING", "DISPATCHING"),
                            ("WITHDRAWN", "WITHDRAWN"),
                            ("RUNNING", "RUNNING"),
                            ("CANCEL_REQUESTED", "CANCEL_REQUESTED"),
                            ("PAUSE_REQUESTED", "PAUSE_REQUESTED"),
                            ("PAUSED", "PAUSED"),
                            ("RESUMED", "RESUMED"),
                            ("HANDED_BACK", "HANDED_BACK"),
                            ("COMPLETED", "COMPLETED"),
                            ("FAILED", "FAILED"),
                            ("SKIPPED", "SKIPPED"),
                            ("CANCELLED", "CANCELLED"),
                            ("RETRY_CREATED", "RETRY_CREATED"),
                            ("RESOLVED", "RESOLVED"),
                            ("MOVED", "MOVED"),
                            ("UPDATED", "UPDATED"),
                            ("AGED", "AGED"),
                        ],
                        max_length=16,
                        verbose_name="kind",
                    ),
                ),
                (
                    "from_status",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("PENDING", "Pending"),
                            ("QUEUED", "Queued"),
                            ("DISPATCHING", "Dispatching"),
                            ("RUNNING", "Running"),
                            ("PAUSED", "Paused"),
                            ("COMPLETED", "Completed"),
                            ("FAILED", "Failed"),
                            ("SKIPPED", "Skipped"),
                            ("CANCELLED", "Cancelled"),
                        ],
                        default="",
                        max_length=11,
                        verbose_name="from",
                    ),
                ),
                (
                    "to_status",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("PENDING", "Pending"),
                            ("QUEUED", "Queued"),
                            ("DISPATCHING", "Dispatching"),
                            ("RUNNING", "Running"),
                            ("PAUSED", "Paused"),
                            ("COMPLETED", "Completed"),
                            ("FAILED", "Failed"),
                            ("SKIPPED", "Skipped"),
                            ("CANCELLED", "Cancelled"),
                        ],
                        default="",
                        max_length=11,
                        verbose_name="to",
                    ),
                ),
                ("reason", models.TextField(blank=True, default="", verbose_name="reason")),
                (
                    "actor_kind",
                    models.CharField(
                        choices=[
                            ("user", "user"),
                            ("token", "API token"),
                            ("worker", "worker"),
                            ("scheduler", "scheduler"),
                            ("cli", "command line"),
                        ],
                        max_length=9,
                        verbose_name="actor kind",
                    ),
                ),
                ("actor_name", models.CharField(blank=True, default="", max_length=300, verbose_name="actor")),
                ("token", models.UUIDField(blank=True, editable=False, null=True)),
                ("data", models.JSONField(blank=True, null=True, verbose_name="data")),
                (
                    "job",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="events",
                        to="jobscheduler_jobs.job",
                        verbose_name="job",
                    ),
                ),
            ],
            options={
                "verbose_name": "job event",
                "verbose_name_plural": "job events",
                "db_table": "jobscheduler_jobevent",
                "ordering": ("-id",),
                "indexes": [
                    models.Index(fields=["job", "id"], name="jobevent_of_job"),
                    models.Index(
                        condition=models.Q(("kind", jobs.states.EventKind["RUNNING"]), ("token__isnull", False)),
                        fields=["token"],
                        name="jobevent_of_lease",
                    ),
                    models.Index(
                        condition=models.Q(("kind__in", ["CANCELLED", "FAILED", "SKIPPED"])),
                        fields=["kind", "at"],
                        name="jobevent_rare_end",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="JobLog",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="at")),
                ("level", models.CharField(default="INFO", max_length=16, verbose_name="level")),
                ("message", models.TextField(verbose_name="message")),
                (
                    "job",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="logs",
                        to="jobscheduler_jobs.job",
                        verbose_name="job",
                    ),
                ),
            ],
            options={
                "verbose_name": "job log line",
                "verbose_name_plural": "job log lines",
                "db_table": "jobscheduler_joblog",
                "ordering": ("-id",),
                "indexes": [models.Index(fields=["job", "id"], name="joblog_of_job")],
            },
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("gate", 3), ("remote", False)),
                fields=["-priority", "position", "created_at", "id"],
                name="job_order",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("gate", 3), ("remote", False)),
                fields=["flow_id", "-priority", "position", "created_at", "id"],
                name="job_ready",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("gate", 3), ("remote", True)),
                fields=["addon_id", "-priority", "position", "created_at", "id"],
                name="job_offerable",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("gate", 3), ("remote", True)),
                fields=["flow_id", "-priority", "position", "created_at", "id"],
                name="job_offerable_flow",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("gate__in", [2, 3]), ("lane__isnull", False)),
                fields=["lane", "-priority", "position", "created_at", "id"],
                name="job_lane",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                django.db.models.functions.comparison.Coalesce("recheck_at", "not_before"),
                condition=models.Q(("gate", 1)),
                name="job_due",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(condition=models.Q(("holds_lane", True)), fields=["lane"], name="job_lane_holder"),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("status__in", [jobs.states.Status["DISPATCHING"], jobs.states.Status["RUNNING"]])),
                fields=["flow_id"],
                name="job_active",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("status__in", ["PENDING", "QUEUED"])),
                fields=["tenant", "-priority", "position", "created_at", "id"],
                name="job_waiting",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(
                    ("group__isnull", False),
                    (
                        "status__in",
                        [
                            jobs.states.Status["DISPATCHING"],
                            jobs.states.Status["PAUSED"],
                            jobs.states.Status["PENDING"],
                            jobs.states.Status["QUEUED"],
                            jobs.states.Status["RUNNING"],
                        ],
                    ),
                ),
                fields=["group"],
                name="job_group_live",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("group__isnull", False)), fields=["group", "group_index"], name="job_group_place"
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("status__in", ["CANCELLED", "FAILED", "PAUSED", "PENDING", "SKIPPED"])),
                fields=["status", "id"],
                name="job_of_rare_status",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("status__in", ["PENDING", "QUEUED"]), ("time_sensitive", True)),
                fields=["deadline_at"],
                name="job_deadline",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("template__isnull", False)), fields=["template"], name="job_template"
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("target__isnull", False)), fields=["target", "id"], name="job_of_target"
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("tenant", "default"), _negated=True), fields=["tenant", "id"], name="job_of_tenant"
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    (
                        "status__in",
                        [
                            "PENDING",
                            "QUEUED",
                            "DISPATCHING",
                            "RUNNING",
                            "PAUSED",
                            "COMPLETED",
                            "FAILED",
                            "SKIPPED",
                            "CANCELLED",
                        ],
                    )
                ),
                name="job_status_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("gate__gt", 0), ("gate__lte", 3), ("status", jobs.states.Status["QUEUED"])),
                    models.Q(models.Q(("status", jobs.states.Status["QUEUED"]), _negated=True), ("gate", 0)),
                    _connector="OR",
                ),
                name="job_gate_iff_queued",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("lease_expires_at__isnull", False),
                        ("lease_owner__isnull", False),
                        ("lease_token__isnull", False),
                        ("status", jobs.states.Status["RUNNING"]),
                    ),
                    models.Q(
                        models.Q(("status", jobs.states.Status["RUNNING"]), _negated=True),
                        ("lease_expires_at__isnull", True),
                        ("lease_owner__isnull", True),
                        ("lease_token__isnull", True),
                    ),
                    _connector="OR",
                ),
                name="job_lease_iff_running",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("reserved_until__isnull", False), ("status", jobs.states.Status["DISPATCHING"])),
                    models.Q(
                        models.Q(("status", jobs.states.Status["DISPATCHING"]), _negated=True),
                        ("reserved_until__isnull", True),
                    ),
                    _connector="OR",
                ),
                name="job_reserved_iff_dispatching",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("status__in", [jobs.states.Status["DISPATCHING"], jobs.states.Status["RUNNING"]]),
                        _negated=True,
                    ),
                    ("dispatched_at__isnull", False),
                    _connector="OR",
                ),
                name="job_started_is_dispatched",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("cancel_mode", ""), ("cancel_requested", False)),
                    models.Q(("cancel_mode__in", ["CANCEL", "PAUSE"]), ("cancel_requested", True)),
                    _connector="OR",
                ),
                name="job_stop_mode",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("holds_lane", False), ("lane__isnull", True), ("target__isnull", True)),
                    models.Q(("lane__isnull", False), ("target__isnull", False)),
                    _connector="OR",
                ),
                name="job_lane_iff_target",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("group__isnull", True), ("group_index__isnull", True)),
                    models.Q(("group__isnull", False), ("group_index__gte", 0), ("group_index__isnull", False)),
                    _connector="OR",
                ),
                name="job_place_iff_group",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("base_priority__range", (0, 100)), ("cost_units__range", (0, 100)), ("priority__range", (0, 100))
                ),
                name="job_priority_range",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("attempt__gte", 1),
                    ("max_retries__gte", 0),
                    ("tokens_used__gte", 0),
                    models.Q(("progress__isnull", True), ("progress__range", (0, 1)), _connector="OR"),
                ),
                name="job_counts_in_range",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.CheckConstraint(
                condition=models.Q(("retry_of", models.F("id")), _negated=True), name="job_retry_not_of_itself"
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("resolved_at__isnull", True), ("status", jobs.states.Status["FAILED"]), _connector="OR"
                ),
                name="job_only_failed_resolved",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.UniqueConstraint(
                condition=models.Q(
                    ("status__in", [jobs.states.Status["DISPATCHING"], jobs.states.Status["RUNNING"]]),
                    ("target__isnull", False),
                ),
                fields=("tenant", "target"),
                name="job_one_active_per_lane",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.UniqueConstraint(
                condition=models.Q(("status", jobs.states.Status["RUNNING"])),
                fields=("lease_owner",),
                name="job_one_per_slot",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.UniqueConstraint(
                condition=models.Q(("idempotency_key__isnull", False)),
                fields=("tenant", "idempotency_key"),
                name="job_idempotency_key",
            ),
        ),
    ]
