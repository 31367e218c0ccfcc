"""The system load for admission, and the usage of fair shares: read and written under the lock of one row."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from jobs.models.routing import RoutedManager
from jobs.policies.admission import State

STATE_LABELS = {
    State.QUIET: pgettext_lazy("system state", "Quiet"),
    State.NORMAL: pgettext_lazy("system state", "Normal"),
    State.BUSY: pgettext_lazy("system state", "Busy"),
}


class SystemSnapshot(models.Model):
    """The system load, in one row, which every admission decision locks, so that decisions are made one by one.

    The holder of the maintenance lease writes it. `share_clock` is the virtual time of fair shares.
    """

    SINGLETON_ID = 1

    id = models.SmallIntegerField(primary_key=True, default=SINGLETON_ID, editable=False)
    holder = models.CharField(_("measured by"), max_length=300, default="", blank=True)
    held_until = models.DateTimeField(_("housekeeping lease until"), null=True, blank=True)
    taken_at = models.DateTimeField(_("measured"), null=True, blank=True)
    load = models.FloatField(_("load per core"), default=0)
    cpu = models.FloatField(_("processor use"), default=0)
    memory = models.FloatField(_("memory use"), default=0)
    state = models.CharField(
        _("state"),
        max_length=6,
        default=str(State.NORMAL),
        choices=[(str(state), label) for state, label in STATE_LABELS.items()],
    )
    state_since = models.DateTimeField(_("in this state since"), null=True, blank=True)
    share_clock = models.FloatField(_("virtual time of fair shares"), default=0)

    objects = RoutedManager()

    class Meta:
        db_table = "jobscheduler_systemsnapshot"
        verbose_name = _("system snapshot")
        verbose_name_plural = _("system snapshots")
        constraints = [
            models.CheckConstraint(name="snapshot_only_one", condition=Q(id=1)),
            models.CheckConstraint(name="snapshot_state_known", condition=Q(state__in=[str(s) for s in State])),
        ]

    def __str__(self) -> str:
        return f"{self.state} {self.load:.2f}"


class ShareAccount(models.Model):
    """The usage of one tenant's or addon's fair share, in virtual time; deleted once it is not ahead of the clock."""

    key = models.CharField(_("key"), max_length=220, primary_key=True)
    served = models.FloatField(_("served"), default=0)

    objects = RoutedManager()

    class Meta:
        db_table = "jobscheduler_shareaccount"
        verbose_name = _("fair share account")
        verbose_name_plural = _("fair share accounts")

    def __str__(self) -> str:
        return self.key
