"""Schedules and their fires. The unique fire row keeps a due time from being fired twice."""

from __future__ import annotations

from datetime import timedelta

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from jobs.ids import uuid7
from jobs.models import Job, JobTemplate
from jobs.models.routing import RoutedManager

LATE_SEC = 60
MANY_SKIPS = 5  # in a row: more work is scheduled than can be done


class CatchUp(models.TextChoices):
    NONE = "none", pgettext_lazy("catch-up", "None")
    LATEST = "latest", pgettext_lazy("catch-up", "Latest")
    ALL = "all", pgettext_lazy("catch-up", "All")


class Overlap(models.TextChoices):
    ALLOW = "allow", pgettext_lazy("overlap", "Allow")
    SKIP = "skip", pgettext_lazy("overlap", "Skip")


class ScheduleQuerySet(models.QuerySet["Schedule"]):
    def overdue(self) -> ScheduleQuerySet:
        """Return the enabled schedules whose due time passed LATE_SEC ago."""
        return self.filter(enabled=True, next_fire_at__lt=Now() - timedelta(seconds=LATE_SEC))


class Schedule(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.CharField(_("tenant"), max_length=64, default="default")
    name = models.CharField(_("name"), max_length=200)

    cron = models.CharField(_("cron expression"), max_length=200, null=True, blank=True)
    every_sec = models.BigIntegerField(_("every (s)"), null=True, blank=True)
    anchor_at = models.DateTimeField(_("starting at"), null=True, blank=True)
    run_at = models.DateTimeField(_("once at"), null=True, blank=True)
    timezone = models.CharField(_("time zone"), max_length=64, default="UTC")
    max_fires = models.IntegerField(_("maximum runs"), null=True, blank=True)
    enabled = models.BooleanField(_("enabled"), default=True)
    disabled_reason = models.TextField(_("disabled because"), default="", blank=True)

    template = models.ForeignKey(
        JobTemplate, models.PROTECT, null=True, blank=True, related_name="schedules", verbose_name=_("template")
    )
    job_type = models.CharField(_("job type"), max_length=200, default="", blank=True)
    params = models.JSONField(_("params"), default=dict, blank=True)
    fire_time_param = models.CharField(
        _("pass the run time as"),
        max_length=200,
        default="",
        blank=True,
        help_text=_("Name of the param that receives it."),
    )
    priority = models.SmallIntegerField(_("priority"), null=True, blank=True)
    target = models.CharField(_("target"), max_length=200, null=True, blank=True)
    resource = models.CharField(_("resource"), max_length=200, default="", blank=True)

    catch_up = models.CharField(_("missed runs"), max_length=6, choices=CatchUp.choices, default=CatchUp.LATEST)
    catch_up_max = models.IntegerField(_("missed runs, at most"), default=10)
    overlap = models.CharField(_("overlap"), max_length=5, choices=Overlap.choices, default=Overlap.ALLOW)
    misfire_grace_sec = models.IntegerField(_("grace period (s)"), default=60)
    jitter_sec = models.IntegerField(_("jitter (s)"), default=0)

    next_fire_at = models.DateTimeField(_("next run"), null=True, blank=True)
    last_fire_at = models.DateTimeField(_("last run"), null=True, blank=True)
    last_job_id = models.UUIDField(_("job of the last run"), null=True, blank=True, editable=False)
    fire_count = models.BigIntegerField(_("runs so far"), default=0)
    note = models.TextField(_("note"), default="", blank=True, help_text=_("Last message of the scheduler."))
    skips_in_a_row = models.IntegerField(_("skipped in a row"), db_default=0, editable=False)
    missed_at = models.DateTimeField(_("last missed"), null=True, blank=True, editable=False)
    source = models.CharField(_("declared by"), max_length=200, default="", blank=True)
    edited = models.BooleanField(
        _("edited manually"), default=False, help_text=_("Changes of the declaration in code are ignored.")
    )
    created_at = models.DateTimeField(_("created"), db_default=Now())

    objects = RoutedManager.from_queryset(ScheduleQuerySet)()

    class Meta:
        db_table = "jobscheduler_schedule"
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        ordering = ("tenant", "name")
        permissions = [
            ("trigger_schedule", _("Can trigger schedules")),
            ("enable_schedule", _("Can enable schedules")),
            ("disable_schedule", _("Can disable schedules")),
            ("skip_schedule", _("Can skip runs of schedules")),
        ]
        indexes = [
            models.Index(
                fields=("next_fire_at",), condition=Q(enabled=True, next_fire_at__isnull=False), name="schedule_due"
            ),
            models.Index(fields=("missed_at",), condition=Q(missed_at__isnull=False), name="schedule_missed"),
            models.Index(fields=("tenant",), condition=Q(enabled=False), name="schedule_disabled"),
            models.Index(
                fields=("skips_in_a_row",), condition=Q(skips_in_a_row__gte=MANY_SKIPS), name="schedule_skipping"
            ),
        ]
        constraints = [
            models.UniqueConstraint(fields=("tenant", "name"), name="schedule_name"),
            models.UniqueConstraint(fields=("source",), condition=~Q(source=""), name="schedule_source"),
            models.CheckConstraint(
                name="schedule_one_trigger",
                condition=Q(cron__isnull=False, every_sec__isnull=True, run_at__isnull=True)
                | Q(cron__isnull=True, every_sec__isnull=False, run_at__isnull=True)
                | Q(cron__isnull=True, every_sec__isnull=True, run_at__isnull=False),
            ),
            models.CheckConstraint(
                name="schedule_template_or_type",
                condition=Q(template__isnull=False, job_type="") | (Q(template__isnull=True) & ~Q(job_type="")),
            ),
            models.CheckConstraint(
                name="schedule_in_range",
                condition=(Q(every_sec__isnull=True) | Q(every_sec__gte=1))
                & (Q(max_fires__isnull=True) | Q(max_fires__gte=1))
                & (Q(priority__isnull=True) | Q(priority__range=(0, 100)))
                & Q(catch_up_max__gte=1, misfire_grace_sec__gte=0, jitter_sec__gte=0),
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def fires_left(self) -> int | None:
        """The number of fires until `max_fires`; None for any number."""
        return None if self.max_fires is None else max(self.max_fires - self.fire_count, 0)


class ScheduleFire(models.Model):
    """One due time of one schedule. It is inserted first; the job is inserted only if this row is new."""

    schedule = models.ForeignKey(
        Schedule, models.CASCADE, db_index=False, related_name="fires", verbose_name=_("schedule")
    )
    fire_time = models.DateTimeField(_("due"))
    fired_at = models.DateTimeField(_("created"), db_default=Now())
    job = models.ForeignKey(
        Job, models.SET_NULL, null=True, blank=True, db_constraint=False, related_name="fires", verbose_name=_("job")
    )
    note = models.TextField(_("note"), default="", blank=True)

    objects = RoutedManager()

    class Meta:
        db_table = "jobscheduler_schedulefire"
        verbose_name = _("schedule run")
        verbose_name_plural = _("schedule runs")
        ordering = ("-fire_time",)
        indexes = [models.Index(fields=("id",), condition=Q(job__isnull=True), name="schedulefire_forgotten")]
        constraints = [models.UniqueConstraint(fields=("schedule", "fire_time"), name="schedulefire_once")]

    def __str__(self) -> str:
        return f"{self.schedule_id} {self.fire_time}"
