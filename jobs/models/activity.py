"""Activities: what people, tokens, commands and code change apart from jobs. Append-only."""

from __future__ import annotations

from enum import StrEnum

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from jobs.ids import uuid7
from jobs.models.routing import RoutedManager
from jobs.models.run import ACTOR_CHOICES
from jobs.states import EventKind

OBJECT_LENGTH = 300  # of the id and the name of an object


class Action(StrEnum):
    """All actions that are recorded as an activity: the kind of the object, a dot, a verb."""

    LIMIT_SET = "limit.set"
    LIMIT_RESET = "limit.reset"
    LIMIT_PAUSE = "limit.pause"
    LIMIT_UNPAUSE = "limit.unpause"
    TARGET_PAUSE = "target.pause"
    TARGET_UNPAUSE = "target.unpause"
    WORKER_QUIET = "worker.quiet"
    WORKER_WAKE = "worker.wake"
    WORKER_STOP = "worker.stop"
    DIRECT_CALL_END = "direct_call.end"
    GROUP_CANCEL = "group.cancel"
    GROUP_RETRY = "group.retry"
    TEMPLATE_CREATE = "template.create"
    TEMPLATE_UPDATE = "template.update"
    TEMPLATE_DELETE = "template.delete"
    SCHEDULE_CREATE = "schedule.create"
    SCHEDULE_UPDATE = "schedule.update"
    SCHEDULE_ENABLE = "schedule.enable"
    SCHEDULE_DISABLE = "schedule.disable"
    SCHEDULE_SKIP_NEXT = "schedule.skip_next"
    SCHEDULE_TRIGGER = "schedule.trigger"
    SCHEDULE_DELETE = "schedule.delete"
    ENDPOINT_CREATE = "endpoint.create"
    ENDPOINT_UPDATE = "endpoint.update"
    ENDPOINT_ENABLE = "endpoint.enable"
    ENDPOINT_DISABLE = "endpoint.disable"
    ENDPOINT_ROTATE_SECRET = "endpoint.rotate_secret"
    ENDPOINT_TEST = "endpoint.test"
    ENDPOINT_RESEND = "endpoint.resend"
    ENDPOINT_DELETE = "endpoint.delete"
    TOKEN_CREATE = "token.create"
    TOKEN_REVOKE = "token.revoke"

    @property
    def object_kind(self) -> str:
        return self.partition(".")[0]


# Actions on jobs are job events; a list of activities shows them under these names. A stop of a running job is a
# request first. Submissions are not listed: they would outnumber all else.
JOB = "job"
JOB_ACTIONS = {
    "job.cancel": (EventKind.CANCEL_REQUESTED, EventKind.CANCELLED),
    "job.move": (EventKind.MOVED,),
    "job.pause": (EventKind.PAUSE_REQUESTED, EventKind.PAUSED),
    "job.release": (EventKind.RELEASED,),
    "job.resolve": (EventKind.RESOLVED,),
    "job.resume": (EventKind.RESUMED,),
    "job.retry": (EventKind.RETRY_CREATED,),
    "job.update": (EventKind.UPDATED,),
}
ALL_ACTIONS = sorted([*map(str, Action), *JOB_ACTIONS])
OBJECT_KINDS = (JOB, *dict.fromkeys(action.object_kind for action in Action))


class Activity(models.Model):
    """One change. `before` and `after` have the changed fields only, with secrets masked. No tenant: of all tenants."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    at = models.DateTimeField(_("at"), db_default=Now())
    tenant = models.CharField(_("tenant"), max_length=64, null=True, blank=True)
    actor_kind = models.CharField(_("actor kind"), max_length=9, choices=ACTOR_CHOICES)
    actor_id = models.CharField(_("actor id"), max_length=200, null=True, blank=True)
    actor_name = models.CharField(_("actor"), max_length=300, default="", blank=True)
    action = models.CharField(_("action"), max_length=32)  # one of Action
    object_kind = models.CharField(_("kind of object"), max_length=16)
    object_id = models.CharField(_("object id"), max_length=OBJECT_LENGTH)
    object_name = models.CharField(_("object"), max_length=OBJECT_LENGTH, default="", blank=True)
    before = models.JSONField(_("before"), null=True, blank=True)
    after = models.JSONField(_("after"), null=True, blank=True)
    reason = models.TextField(_("reason"), default="", blank=True)

    objects = RoutedManager()

    class Meta:
        db_table = "jobscheduler_activity"
        verbose_name = _("activity")
        verbose_name_plural = _("activities")
        ordering = ("-id",)
        indexes = [
            models.Index(fields=("tenant", "-id"), name="activity_of_tenant"),
            models.Index(fields=("object_kind", "object_id", "-id"), name="activity_of_object"),
            models.Index(fields=("actor_name", "-id"), name="activity_of_actor"),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.object_name}"
