"""Groups of jobs, changes of many members that are in progress, and job templates that an operator can run."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from jobs.ids import uuid7
from jobs.models.job import PRIORITY_VALIDATORS
from jobs.models.routing import RoutedManager


class GroupStatus(models.TextChoices):
    PENDING = "PENDING", pgettext_lazy("group status", "Pending")
    RUNNING = "RUNNING", pgettext_lazy("group status", "Running")
    COMPLETED = "COMPLETED", pgettext_lazy("group status", "Completed")
    FAILED = "FAILED", pgettext_lazy("group status", "Failed")
    PARTIAL = "PARTIAL", pgettext_lazy("group status", "Partial")
    CANCELLED = "CANCELLED", pgettext_lazy("group status", "Cancelled")


class GroupMode(models.TextChoices):
    SEQUENTIAL = "sequential", pgettext_lazy("group mode", "Sequential")
    PARALLEL = "parallel", pgettext_lazy("group mode", "Parallel")


class FailureMode(models.TextChoices):
    STOP = "stop", pgettext_lazy("on failure", "Stop")
    CONTINUE = "continue", pgettext_lazy("on failure", "Continue")
    SKIP = "skip", pgettext_lazy("on failure", "Skip")


OPEN_GROUP_STATUSES = (GroupStatus.PENDING, GroupStatus.RUNNING)


class JobGroup(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.CharField(_("tenant"), max_length=64, default="default")
    name = models.CharField(_("name"), max_length=200, default="", blank=True)
    mode = models.CharField(_("mode"), max_length=10, choices=GroupMode.choices, default=GroupMode.PARALLEL)
    on_failure = models.CharField(_("on failure"), max_length=8, choices=FailureMode.choices, default=FailureMode.STOP)
    status = models.CharField(_("status"), max_length=9, choices=GroupStatus.choices, default=GroupStatus.PENDING)
    cancel_requested = models.BooleanField(_("cancelled manually"), default=False)
    then_index = models.IntegerField(
        _("place of the final job"), null=True, blank=True, help_text=_("It starts after all other jobs have finished.")
    )
    round = models.IntegerField(_("runs"), default=1, help_text=_("A retry reopens a finished group for another run."))
    created_at = models.DateTimeField(_("created"), db_default=Now())
    finished_at = models.DateTimeField(_("finished"), null=True, blank=True)

    objects = RoutedManager()

    class Meta:
        db_table = "jobscheduler_jobgroup"
        verbose_name = _("job group")
        verbose_name_plural = _("job groups")
        ordering = ("-id",)
        permissions = [("cancel_jobgroup", _("Can cancel groups")), ("retry_jobgroup", _("Can retry groups"))]
        constraints = [
            models.CheckConstraint(name="jobgroup_status_known", condition=Q(status__in=GroupStatus.values)),
            models.CheckConstraint(name="jobgroup_mode_known", condition=Q(mode__in=GroupMode.values)),
            models.CheckConstraint(name="jobgroup_on_failure_known", condition=Q(on_failure__in=FailureMode.values)),
            models.CheckConstraint(
                name="jobgroup_open_until_finished",
                condition=Q(status__in=OPEN_GROUP_STATUSES, finished_at__isnull=True)
                | (~Q(status__in=OPEN_GROUP_STATUSES) & Q(finished_at__isnull=False)),
            ),
        ]

    def __str__(self) -> str:
        return self.name or str(self.id)

    @property
    def is_terminal(self) -> bool:
        return self.status not in OPEN_GROUP_STATUSES

    @property
    def uses_on_failure(self) -> bool:
        """Whether a failed member decides about others: in a parallel group, only a final job waits for others."""
        return self.mode == GroupMode.SEQUENTIAL or self.then_index is not None


class GroupVerb(models.TextChoices):
    """What an action does to the members of a group."""

    CANCEL = "cancel"  # ends members that wait, requests running ones to stop
    STOP = "stop"  # cancels PENDING members behind one that did not end well
    SKIP = "skip"  # skips them
    RETRY = "retry"  # retries all that did not end well
    REOPEN = "reopen"  # recreates members that ended only because the retried one did


class GroupAction(models.Model):
    """A change of more members than fit into one transaction. The row exists until the last batch is done."""

    group = models.ForeignKey(JobGroup, models.CASCADE, related_name="actions")
    verb = models.CharField(max_length=6, choices=GroupVerb.choices)
    actor_kind = models.CharField(max_length=9)
    actor_name = models.CharField(max_length=300, default="", blank=True)
    reason = models.TextField(default="", blank=True)
    after_index = models.IntegerField(default=-1)  # only members behind this one are left to change
    retried = models.UUIDField(null=True, blank=True)  # the job whose retry reopens the members behind it
    created_at = models.DateTimeField(db_default=Now())

    objects = RoutedManager()

    class Meta:
        db_table = "jobscheduler_groupaction"
        verbose_name = _("group action")
        verbose_name_plural = _("group actions")
        default_permissions = ()
        constraints = [models.CheckConstraint(name="groupaction_verb_known", condition=Q(verb__in=GroupVerb.values))]

    def __str__(self) -> str:
        return f"{self.verb} {self.group_id}"


class JobTemplate(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.CharField(_("tenant"), max_length=64, default="default")
    name = models.CharField(_("name"), max_length=200)
    job_type = models.CharField(_("job type"), max_length=200)
    params = models.JSONField(_("params"), default=dict, blank=True)
    overridable = models.JSONField(
        _("overridable params"),
        null=True,
        blank=True,
        help_text=_("Params that a run may set. By default all, or none if the template contains a secret."),
    )
    retry_policy = models.JSONField(_("retry policy"), default=dict, blank=True)
    priority = models.SmallIntegerField(_("priority"), null=True, blank=True, validators=PRIORITY_VALIDATORS)
    resource = models.CharField(_("resource"), max_length=200, default="", blank=True)
    target = models.CharField(_("target"), max_length=200, null=True, blank=True)
    max_runtime_sec = models.FloatField(_("maximum runtime (s)"), null=True, blank=True)
    token_limit = models.BigIntegerField(_("token limit"), null=True, blank=True)
    cost_units = models.SmallIntegerField(_("cost units"), null=True, blank=True)
    tags = models.JSONField(_("tags"), default=list, blank=True)
    created_at = models.DateTimeField(_("created"), db_default=Now())

    objects = RoutedManager()

    class Meta:
        db_table = "jobscheduler_jobtemplate"
        verbose_name = _("job template")
        verbose_name_plural = _("job templates")
        ordering = ("tenant", "name")
        permissions = [("run_jobtemplate", _("Can run templates"))]
        constraints = [models.UniqueConstraint(fields=("tenant", "name"), name="jobtemplate_name")]

    def __str__(self) -> str:
        return self.name
