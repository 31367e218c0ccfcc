"""Events of a job (append-only), and the log lines of its handler."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Cast, Now, Right
from django.utils.translation import gettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from jobs.actors import PYTHON, Actor, ActorKind
from jobs.models.expressions import is_one_of
from jobs.models.job import STATUS_CHOICES, Job
from jobs.models.routing import RoutedManager
from jobs.states import EventKind

RARE_END_KINDS = [str(kind) for kind in (EventKind.CANCELLED, EventKind.FAILED, EventKind.SKIPPED)]
SUBMISSION_KINDS = [str(kind) for kind in (EventKind.SUBMITTED, EventKind.HELD)]
OPERATOR_KINDS = [str(kind) for kind in (ActorKind.USER, ActorKind.TOKEN, ActorKind.CLI)]  # no part of the scheduler
JOB_ID_TAIL = Right(Cast("job_id", models.TextField()), 12)  # what lists show of a job's id
ACTOR_CHOICES = [
    (str(ActorKind.USER), pgettext_lazy("actor", "user")),
    (str(ActorKind.TOKEN), pgettext_lazy("actor", "API token")),
    (str(ActorKind.WORKER), pgettext_lazy("actor", "worker")),
    (str(ActorKind.SCHEDULER), pgettext_lazy("actor", "scheduler")),
    (str(ActorKind.CLI), pgettext_lazy("actor", "command line")),
]


def describe_actor(kind: str, name: str) -> str:
    """Return the name of a user, and of others the kind as well: "ops", "root (command line)", "worker vm-9123"."""
    match ActorKind(kind):
        case ActorKind.USER:
            return name
        case ActorKind.TOKEN:
            return gettext("%s (API token)") % name
        case ActorKind.CLI:
            return gettext("%s (command line)") % name if name else gettext("command line")
        case ActorKind.WORKER:
            return gettext("worker %s") % name
        case ActorKind.SCHEDULER:
            return gettext("Python code") if name == PYTHON.name else gettext("scheduler")


class JobEvent(models.Model):
    job = models.ForeignKey(
        Job, models.DO_NOTHING, db_constraint=False, db_index=False, related_name="events", verbose_name=_("job")
    )
    at = models.DateTimeField(_("at"), db_default=Now())
    kind = models.CharField(_("kind"), max_length=16, choices=[(str(kind), str(kind)) for kind in EventKind])
    from_status = models.CharField(_("from"), max_length=11, choices=STATUS_CHOICES, default="", blank=True)
    to_status = models.CharField(_("to"), max_length=11, choices=STATUS_CHOICES, default="", blank=True)
    reason = models.TextField(_("reason"), default="", blank=True)
    actor_kind = models.CharField(_("actor kind"), max_length=9, choices=ACTOR_CHOICES)
    actor_name = models.CharField(_("actor"), max_length=300, default="", blank=True)
    token = models.UUIDField(null=True, blank=True, editable=False)
    data = models.JSONField(_("data"), null=True, blank=True)

    objects = RoutedManager()

    class Meta:
        db_table = "jobscheduler_jobevent"
        verbose_name = _("job event")
        verbose_name_plural = _("job events")
        ordering = ("-id",)
        indexes = [
            models.Index(fields=("job", "id"), name="jobevent_of_job"),
            # Of each job once: an index of jobs is written by every transition.
            models.Index(JOB_ID_TAIL, condition=Q(kind=EventKind.SUBMITTED), name="jobevent_of_id_tail"),
            # Only a start by a remote worker has a token.
            models.Index(
                fields=("token",), condition=Q(kind=EventKind.RUNNING, token__isnull=False), name="jobevent_of_lease"
            ),
            # A job that completes is never written to this index.
            models.Index(fields=("kind", "at"), condition=is_one_of("kind", RARE_END_KINDS), name="jobevent_rare_end"),
            # Nothing that a worker writes is in this index, and no submission.
            models.Index(
                fields=("id",),
                condition=is_one_of("actor_kind", OPERATOR_KINDS) & ~Q(kind__in=SUBMISSION_KINDS),
                name="jobevent_of_operator",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.job_id}"

    @property
    def initiator(self) -> Actor:
        """Return the actor; for the event of a stop, the one who requested it: the actor is the worker that obeyed."""
        requester = self.data.get("requested_by") if isinstance(self.data, dict) else None
        return Actor(**requester) if requester else Actor(ActorKind(self.actor_kind), self.actor_name)


class JobLog(models.Model):
    job = models.ForeignKey(
        Job, models.DO_NOTHING, db_constraint=False, db_index=False, related_name="logs", verbose_name=_("job")
    )
    at = models.DateTimeField(_("at"), db_default=Now())
    level = models.CharField(_("level"), max_length=16, default="INFO")
    message = models.TextField(_("message"))

    objects = RoutedManager()

    class Meta:
        db_table = "jobscheduler_joblog"
        verbose_name = _("job log line")
        verbose_name_plural = _("job log lines")
        ordering = ("-id",)
        indexes = [models.Index(fields=("job", "id"), name="joblog_of_job")]

    def __str__(self) -> str:
        return f"{self.level} {self.job_id}"  # page titles show this to users without permission to read the message
