"""The job, a request to run one handler once with fixed params, and its run."""

from __future__ import annotations

from typing import Any

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Coalesce, Now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from jobs.ids import uuid7
from jobs.models.expressions import SqlLiteral, is_one_of, sql_literals
from jobs.models.routing import RoutedManager
from jobs.states import ACTIVE, LIVE, RUN_STATUSES, TERMINAL, WAITING, Status, StopMode, UniqueUntil

STATUS_LABELS = {
    Status.PENDING: pgettext_lazy("job status", "Pending"),
    Status.QUEUED: pgettext_lazy("job status", "Queued"),
    Status.DISPATCHING: pgettext_lazy("job status", "Dispatching"),
    Status.RUNNING: pgettext_lazy("job status", "Running"),
    Status.PAUSED: pgettext_lazy("job status", "Paused"),
    Status.COMPLETED: pgettext_lazy("job status", "Completed"),
    Status.FAILED: pgettext_lazy("job status", "Failed"),
    Status.SKIPPED: pgettext_lazy("job status", "Skipped"),
    Status.CANCELLED: pgettext_lazy("job status", "Cancelled"),
}
STATUS_IN_SENTENCE = {  # a language may spell a status within a sentence differently, e.g. in lower case
    Status.PENDING: pgettext_lazy("job status within a sentence", "pending"),
    Status.QUEUED: pgettext_lazy("job status within a sentence", "queued"),
    Status.DISPATCHING: pgettext_lazy("job status within a sentence", "dispatching"),
    Status.RUNNING: pgettext_lazy("job status within a sentence", "running"),
    Status.PAUSED: pgettext_lazy("job status within a sentence", "paused"),
    Status.COMPLETED: pgettext_lazy("job status within a sentence", "completed"),
    Status.FAILED: pgettext_lazy("job status within a sentence", "failed"),
    Status.SKIPPED: pgettext_lazy("job status within a sentence", "skipped"),
    Status.CANCELLED: pgettext_lazy("job status within a sentence", "cancelled"),
}
STATUS_CHOICES = [(str(status), label) for status, label in STATUS_LABELS.items()]
STOP_CHOICES = [
    (str(StopMode.CANCEL), pgettext_lazy("stop request", "Cancel")),
    (str(StopMode.PAUSE), pgettext_lazy("stop request", "Pause")),
]
UNTIL_CHOICES = [
    (str(UniqueUntil.START), pgettext_lazy("how long a job is the only one", "its start")),
    (str(UniqueUntil.END), pgettext_lazy("how long a job is the only one", "its end")),
]
PRIORITY_VALIDATORS = [MinValueValidator(0), MaxValueValidator(100)]
RARE_STATUSES = [str(s) for s in (Status.CANCELLED, Status.FAILED, Status.PAUSED, Status.PENDING, Status.SKIPPED)]
DISPATCH_ORDER = ("-priority", "position", "created_at", "id")


class Gate(models.IntegerChoices):
    """The wait state of a QUEUED job. Only READY jobs are in the index that a claim scans."""

    CLOSED = 0, _("not queued")
    TIME = 1, _("scheduled")
    LANE = 2, _("waiting for its target")
    READY = 3, _("ready")


class JobQuerySet(models.QuerySet["Job"]):
    def queued(self) -> JobQuerySet:
        return self.filter(status=Status.QUEUED)

    def ready(self) -> JobQuerySet:
        """Return the jobs that a local worker may claim."""
        return self.filter(gate=SqlLiteral(Gate.READY), remote=False)  # a parameter would not match the partial index

    def running(self) -> JobQuerySet:
        return self.filter(status=Status.RUNNING)

    # The conditions of partial indexes.

    def active(self) -> JobQuerySet:
        return self.filter(status__in=sql_literals(sorted(ACTIVE)))

    def waiting(self) -> JobQuerySet:
        """Return the PENDING and QUEUED jobs."""
        return self.filter(status__in=sql_literals(sorted(WAITING)))

    def in_lanes(self) -> JobQuerySet:
        """Return the jobs that wait for their target or for a slot; those with a target are in its lane."""
        return self.filter(gate__in=sql_literals([Gate.LANE, Gate.READY]))

    def of_rare_status(self, status: Status) -> JobQuerySet:
        """Return the jobs with one of RARE_STATUSES."""
        return self.filter(is_one_of("status", RARE_STATUSES), status=status)

    def latest_attempts(self) -> JobQuerySet:
        """Return the last job of each retry chain."""
        return self.filter(retried_by__isnull=True)

    def in_dispatch_order(self) -> JobQuerySet:
        return self.order_by(*DISPATCH_ORDER)


class Job(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)

    # work
    job_type = models.CharField(_("job type"), max_length=200)
    template = models.ForeignKey(
        "JobTemplate",
        models.SET_NULL,
        null=True,
        blank=True,
        db_index=False,
        related_name="jobs",
        verbose_name=_("template"),
    )
    params = models.JSONField(_("params"), default=dict, blank=True)
    tags = models.JSONField(_("tags"), default=list, blank=True)
    tenant = models.CharField(_("tenant"), max_length=64, default="default")
    target = models.CharField(_("target"), max_length=200, null=True, blank=True)
    lane = models.ForeignKey(
        "Target",
        models.DO_NOTHING,
        null=True,
        blank=True,
        db_constraint=False,  # the promoter creates the row later; an insert of a job must not
        db_index=False,
        related_name="jobs",
        verbose_name=_("lane"),
        help_text=_("Derived from tenant and target."),
    )
    addon_id = models.CharField(_("addon"), max_length=200, default="", blank=True)
    resource = models.CharField(_("resource"), max_length=200, default="default")
    remote = models.BooleanField(_("for remote workers"), default=False)
    flow_id = models.BigIntegerField(editable=False, help_text=_("Derived from tenant, job type, resource and addon."))

    # order and times
    priority = models.SmallIntegerField(_("priority"), default=50, validators=PRIORITY_VALIDATORS)
    base_priority = models.SmallIntegerField(_("base priority"), default=50, validators=PRIORITY_VALIDATORS)
    position = models.BigIntegerField(_("position"))
    created_at = models.DateTimeField(_("created"), db_default=Now())
    not_before = models.DateTimeField(_("not before"), null=True, blank=True)
    recheck_at = models.DateTimeField(_("admission re-checked at"), null=True, blank=True)
    deadline_at = models.DateTimeField(_("deadline"), null=True, blank=True)
    time_sensitive = models.BooleanField(_("time-sensitive"), default=False)
    expected_duration_sec = models.FloatField(_("expected duration (s)"), null=True, blank=True)
    max_runtime_sec = models.FloatField(_("maximum runtime (s)"), null=True, blank=True)
    dispatched_at = models.DateTimeField(_("first dispatched"), null=True, blank=True)

    # costs and limits
    cost_units = models.SmallIntegerField(_("cost units"), default=1)
    constraints = models.JSONField(_("constraints"), default=dict, blank=True)
    token_limit = models.BigIntegerField(_("token limit"), null=True, blank=True)
    tokens_used = models.BigIntegerField(_("tokens used"), default=0)

    # state
    status = models.CharField(_("status"), max_length=11, choices=STATUS_CHOICES)
    status_reason = models.TextField(_("reason"), default="", blank=True)
    gate = models.SmallIntegerField(_("gate"), choices=Gate.choices, default=Gate.CLOSED)
    hold = models.BooleanField(_("on hold"), default=False)
    holds_lane = models.BooleanField(_("holds its lane"), default=False)
    cancel_requested = models.BooleanField(_("stop requested"), default=False)
    cancel_mode = models.CharField(_("stop mode"), max_length=6, choices=STOP_CHOICES, default="", blank=True)
    progress = models.FloatField(_("progress"), null=True, blank=True)
    progress_message = models.TextField(_("progress message"), default="", blank=True)
    checkpoint = models.JSONField(_("checkpoint"), null=True, blank=True)

    # ownership
    lease_owner = models.CharField(_("lease owner"), max_length=300, null=True, blank=True)
    lease_token = models.UUIDField(_("lease token"), null=True, blank=True)
    lease_expires_at = models.DateTimeField(_("lease expires"), null=True, blank=True)
    heartbeat_at = models.DateTimeField(_("last heartbeat"), null=True, blank=True)
    # SQLite only, whose clock is the host's: boot id and monotonic seconds
    beat_clock = models.CharField(max_length=100, null=True, blank=True, editable=False)
    fence = models.BigIntegerField(_("fence"), default=0, help_text=_("Grows with every claim along a retry chain."))
    reserved_until = models.DateTimeField(_("reserved until"), null=True, blank=True)

    # origin: retry chain, group, schedule, submission
    retry_of = models.OneToOneField(
        "self", models.PROTECT, null=True, blank=True, related_name="retried_by", verbose_name=_("retry of")
    )
    attempt = models.IntegerField(_("attempt"), default=1)
    max_retries = models.IntegerField(_("maximum retries"), default=3)
    retry_policy = models.JSONField(_("retry policy"), default=dict, blank=True)
    snooze_count = models.IntegerField(_("times snoozed"), default=0, db_default=0)
    resolved_at = models.DateTimeField(_("resolved"), null=True, blank=True)
    group = models.ForeignKey(
        "JobGroup", models.PROTECT, null=True, blank=True, db_index=False, related_name="jobs", verbose_name=_("group")
    )
    group_index = models.IntegerField(_("place in group"), null=True, blank=True)
    schedule = models.ForeignKey(
        "jobscheduler_schedules.Schedule",
        models.SET_NULL,
        null=True,
        blank=True,
        db_index=False,
        related_name="jobs",
        verbose_name=_("schedule"),
    )
    fire_time = models.DateTimeField(_("due time"), null=True, blank=True)
    idempotency_key = models.CharField(_("idempotency key"), max_length=255, null=True, blank=True)
    idempotency_hash = models.CharField(max_length=64, default="", blank=True, editable=False)
    unique_key = models.CharField(_("unique key"), max_length=255, null=True, blank=True)
    unique_until = models.CharField(_("unique until"), max_length=5, choices=UNTIL_CHOICES, null=True, blank=True)
    context = models.JSONField(null=True, blank=True, editable=False)  # for HANDLER_WRAPPER, from JOB_CONTEXT
    traceparent = models.CharField(max_length=55, null=True, blank=True, editable=False)  # of the submitting request

    objects = RoutedManager.from_queryset(JobQuerySet)()

    class Meta:
        db_table = "jobscheduler_job"
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        ordering = ("-id",)
        permissions = [
            ("cancel_job", _("Can cancel jobs")),
            ("pause_job", _("Can pause jobs")),
            ("resume_job", _("Can resume jobs")),
            ("retry_job", _("Can retry jobs")),
            ("resolve_job", _("Can resolve failed jobs")),
            ("release_job", _("Can release held jobs")),
            ("reorder_job", _("Can reorder the queue")),
            ("view_payload", _("Can see params, artifacts and logs")),
            ("view_diagnostics", _("Can see the lists under Diagnostics in the navigation")),
        ]
        indexes = [
            models.Index(fields=DISPATCH_ORDER, condition=Q(gate=Gate.READY, remote=False), name="job_order"),
            # Not "gate = 3": a plan made while no job was ready chose job_order for the heads of flows, and sorted.
            models.Index(
                fields=("flow_id", *DISPATCH_ORDER), condition=Q(gate__gt=Gate.LANE, remote=False), name="job_ready"
            ),
            models.Index(
                fields=("addon_id", *DISPATCH_ORDER), condition=Q(gate=Gate.READY, remote=True), name="job_offerable"
            ),
            models.Index(
                fields=("flow_id", *DISPATCH_ORDER),
                condition=Q(gate__gt=Gate.LANE, remote=True),
                name="job_offerable_flow",
            ),
            models.Index(
                fields=("lane", *DISPATCH_ORDER),
                condition=Q(gate__in=[Gate.LANE, Gate.READY], lane__isnull=False),
                name="job_lane",
            ),
            models.Index(Coalesce("recheck_at", "not_before"), condition=Q(gate=Gate.TIME), name="job_due"),
            models.Index(fields=("lane",), condition=Q(holds_lane=True), name="job_lane_holder"),
            models.Index(fields=("flow_id",), condition=Q(status__in=sorted(ACTIVE)), name="job_active"),
            models.Index(
                fields=("tenant", *DISPATCH_ORDER),
                condition=Q(status__in=[str(Status.PENDING), str(Status.QUEUED)]),
                name="job_waiting",
            ),
            models.Index(
                fields=("group",), condition=Q(group__isnull=False, status__in=sorted(LIVE)), name="job_group_live"
            ),
            models.Index(fields=("group", "group_index"), condition=Q(group__isnull=False), name="job_group_place"),
            models.Index(fields=("schedule", "id"), condition=Q(schedule__isnull=False), name="job_schedule"),
            # A job that just completes is never written to this index. `resolved_at`: counts failures without rows.
            models.Index(
                fields=("status", "id", "resolved_at"),
                condition=is_one_of("status", RARE_STATUSES),
                name="job_of_rare_status",
            ),
            models.Index(
                fields=("deadline_at",),
                condition=Q(deadline_at__isnull=False, status__in=[str(Status.PENDING), str(Status.QUEUED)]),
                name="job_deadline",
            ),
            models.Index(fields=("template",), condition=Q(template__isnull=False), name="job_template"),
            models.Index(fields=("target", "id"), condition=Q(target__isnull=False), name="job_of_target"),
            # It costs nothing with one tenant; the default tenant uses the primary key.
            models.Index(fields=("tenant", "id"), condition=~Q(tenant="default"), name="job_of_tenant"),
        ]
        constraints = [
            models.CheckConstraint(name="job_status_known", condition=is_one_of("status", Status)),
            models.CheckConstraint(
                name="job_gate_iff_queued",
                condition=Q(status=Status.QUEUED, gate__gt=0, gate__lte=3) | (~Q(status=Status.QUEUED) & Q(gate=0)),
            ),
            models.CheckConstraint(
                name="job_lease_iff_running",
                condition=Q(
                    status=Status.RUNNING,
                    lease_owner__isnull=False,
                    lease_token__isnull=False,
                    lease_expires_at__isnull=False,
                )
                | (
                    ~Q(status=Status.RUNNING)
                    & Q(lease_owner__isnull=True, lease_token__isnull=True, lease_expires_at__isnull=True)
                ),
            ),
            models.CheckConstraint(
                name="job_reserved_iff_dispatching",
                condition=Q(status=Status.DISPATCHING, reserved_until__isnull=False)
                | (~Q(status=Status.DISPATCHING) & Q(reserved_until__isnull=True)),
            ),
            models.CheckConstraint(
                name="job_started_is_dispatched",
                condition=~Q(status__in=sorted(ACTIVE)) | Q(dispatched_at__isnull=False),
            ),
            models.CheckConstraint(
                name="job_stop_mode",
                condition=Q(cancel_requested=False, cancel_mode="")
                | Q(cancel_requested=True, cancel_mode__in=[str(m) for m in StopMode]),
            ),
            models.CheckConstraint(
                name="job_lane_iff_target",
                condition=Q(target__isnull=True, lane__isnull=True, holds_lane=False)
                | Q(target__isnull=False, lane__isnull=False),
            ),
            models.CheckConstraint(
                name="job_place_iff_group",
                condition=Q(group__isnull=True, group_index__isnull=True)
                | Q(group__isnull=False, group_index__isnull=False, group_index__gte=0),
            ),
            models.CheckConstraint(
                name="job_priority_range",
                condition=Q(priority__range=(0, 100), base_priority__range=(0, 100), cost_units__range=(0, 100)),
            ),
            models.CheckConstraint(
                name="job_counts_in_range",
                condition=Q(attempt__gte=1, max_retries__gte=0, tokens_used__gte=0)
                & (Q(progress__isnull=True) | Q(progress__range=(0, 1))),
            ),
            models.CheckConstraint(name="job_retry_not_of_itself", condition=~Q(retry_of=F("id"))),
            models.CheckConstraint(
                name="job_only_failed_resolved", condition=Q(resolved_at__isnull=True) | Q(status=Status.FAILED)
            ),
            models.UniqueConstraint(
                fields=("tenant", "target"),
                condition=Q(status__in=sorted(ACTIVE), target__isnull=False),
                name="job_one_active_per_lane",
            ),
            models.UniqueConstraint(
                fields=("lease_owner",), condition=Q(status=Status.RUNNING), name="job_one_per_slot"
            ),
            models.UniqueConstraint(
                fields=("tenant", "idempotency_key"),
                condition=Q(idempotency_key__isnull=False),
                name="job_idempotency_key",
            ),
            # A job that was handed back has been dispatched: it may wait beside the next one of its key.
            models.UniqueConstraint(
                fields=("tenant", "unique_key"),
                condition=Q(unique_until=str(UniqueUntil.START))  # tested first: almost no job has a key
                & Q(dispatched_at__isnull=True, status__in=sorted(LIVE)),
                name="job_unique_until_start",
            ),
            models.UniqueConstraint(
                fields=("tenant", "unique_key"),
                condition=Q(unique_until=str(UniqueUntil.END)) & Q(status__in=sorted(LIVE)),
                name="job_unique_until_end",
            ),
            models.CheckConstraint(
                name="job_unique_key_and_until",
                condition=Q(unique_key__isnull=True, unique_until__isnull=True)
                | Q(
                    unique_key__isnull=False,
                    unique_until__isnull=False,
                    unique_until__in=[str(until) for until in UniqueUntil],
                ),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job_type} {self.id}"

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def latest(self) -> Job:
        """The latest attempt of the retry chain, read now: the job that `enqueue` returned is the first one."""
        job = Job.objects.get(pk=self.pk)
        while (retry := Job.objects.filter(retry_of_id=job.pk).first()) is not None:
            job = retry
        return job

    @property
    def blocks_target(self) -> bool:
        """Whether the target waits for an operator: the job is paused, or failed and neither retried nor resolved."""
        return self.holds_lane and self.status in (Status.PAUSED, Status.FAILED)

    @property
    def permanently_failed(self) -> bool:
        """Whether the job failed and has no retry.

        A retry is inserted in the transaction of the failure, so the last job of a chain will not be retried.
        """
        return self.status == Status.FAILED and not hasattr(self, "retried_by")


class JobTag(models.Model):
    """One tag of one job, for searches. Triggers keep these rows equal to the column `tags`: see jobs.invariants."""

    job = models.ForeignKey(
        Job, models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+", verbose_name=_("job")
    )
    tag = models.CharField(_("tag"), max_length=64)

    objects = RoutedManager()

    class Meta:
        db_table = "jobscheduler_jobtag"
        verbose_name = _("tag of a job")
        verbose_name_plural = _("tags of jobs")
        constraints = [models.UniqueConstraint(fields=("tag", "job"), name="jobtag_key")]

    def __str__(self) -> str:
        return f"{self.tag} {self.job_id}"


class JobRunQuerySet(models.QuerySet["JobRun"]):
    def open(self) -> JobRunQuerySet:
        return self.filter(status=Status.RUNNING)


class JobRun(models.Model):
    """The one execution of a job, with the job's id as primary key. It is an audit record: see INV-002."""

    job = models.OneToOneField(Job, models.CASCADE, primary_key=True, related_name="run", verbose_name=_("job"))
    status = models.CharField(
        _("status"),
        max_length=11,
        default=str(Status.RUNNING),
        choices=[(str(s), STATUS_LABELS[s]) for s in RUN_STATUSES],
    )
    started_at = models.DateTimeField(_("started"), db_default=Now())
    finished_at = models.DateTimeField(_("finished"), null=True, blank=True)
    exit_code = models.IntegerField(_("exit code"), null=True, blank=True)
    error = models.TextField(_("error"), default="", blank=True)
    artifacts = models.JSONField(_("artifacts"), default=dict, blank=True)
    worker = models.CharField(_("worker"), max_length=300, default="", blank=True)

    objects = RoutedManager.from_queryset(JobRunQuerySet)()

    class Meta:
        db_table = "jobscheduler_jobrun"
        verbose_name = _("job run")
        verbose_name_plural = _("job runs")
        ordering = ("-job_id",)
        constraints = [
            models.CheckConstraint(name="jobrun_status_known", condition=is_one_of("status", RUN_STATUSES)),
            models.CheckConstraint(
                name="jobrun_open_until_finished",
                condition=Q(status=Status.RUNNING, finished_at__isnull=True)
                | (~Q(status=Status.RUNNING) & Q(finished_at__isnull=False)),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job_id}"

    @property
    def id(self) -> Any:
        return self.job_id
