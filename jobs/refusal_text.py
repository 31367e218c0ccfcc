"""Short translated texts for refused actions; jobs with the same reason have the same text."""

from __future__ import annotations

from django.utils.translation import gettext as _

from jobs.errors import Conflict, JobSchedulerError, NotFound
from jobs.models.job import STATUS_IN_SENTENCE
from jobs.states import WAITING, Refusal, RefusalReason, Status


def describe_refusal(refusal: Refusal) -> str:
    match refusal.reason:
        case RefusalReason.SUPERSEDED | RefusalReason.LIVE_TAIL:
            return describe_later_attempt(refusal.status)
        case RefusalReason.WAITS_IN_GROUP:
            return _("an earlier job of its group has not finished")
        case RefusalReason.CANCEL_REQUESTED:
            return _("cancel already requested")
        case RefusalReason.RESOLVED:
            return _("already resolved")
        case RefusalReason.FROZEN:
            return _("%s cannot be changed after the first dispatch") % refusal.field
    text = _("still %s") if refusal.status in WAITING else _("already %s")
    return text % STATUS_IN_SENTENCE[refusal.status]


def describe_error(error: JobSchedulerError) -> str:
    if isinstance(error, NotFound):
        return _("there is no such job")
    if isinstance(error, Conflict) and error.refusal is not None:
        return describe_refusal(error.refusal)
    return str(error).rstrip(".")


def describe_later_attempt(status: Status) -> str:
    return _("already retried (latest attempt: %s)") % STATUS_IN_SENTENCE[status]
