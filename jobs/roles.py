"""Three groups of people: who looks, who operates, who sets up. Each role has all that the one before it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import Group, Permission
from django.db import router, transaction
from django.db.models import QuerySet

OURS = ("jobscheduler_jobs", "jobscheduler_schedules", "jobscheduler_webhooks")
PAYLOAD = "view_payload"
OPERATE = (
    PAYLOAD,
    *("add_job", "change_job", "cancel_job", "pause_job", "resume_job", "retry_job", "resolve_job", "release_job"),
    *("reorder_job", "pause_target", "cancel_jobgroup", "retry_jobgroup", "run_jobtemplate", "stop_worker"),
    *("trigger_schedule", "enable_schedule", "disable_schedule", "skip_schedule"),
    *("resend_delivery", "test_webhookendpoint"),
)


@dataclass(frozen=True)
class Given:
    """What became of a role's group."""

    name: str
    made: bool
    permissions: int
    added: int
    taken: int


def make_all() -> list[Given]:
    """Create the groups, or put their permissions on us right; those on other apps stay as they are."""
    place = router.db_for_write(Group)
    ours = Permission.objects.using(place).filter(content_type__app_label__in=OURS)
    viewing = ours.filter(codename__startswith="view_").exclude(codename=PAYLOAD)
    with transaction.atomic(using=place):
        return [
            _give("Job viewer", viewing, ours),
            _give("Job operator", viewing | ours.filter(codename__in=OPERATE), ours),
            _give("Job admin", ours, ours),
        ]


def is_ready() -> bool:
    """Permissions appear with the first `migrate`."""
    place = router.db_for_write(Group)
    found = Permission.objects.using(place).filter(content_type__app_label__in=OURS, codename=PAYLOAD)
    return found.exists()


def _give(name: str, wanted: QuerySet[Permission], ours: QuerySet[Permission]) -> Given:
    group, made = Group.objects.using(wanted.db).get_or_create(name=name)
    has: Any = group.permissions
    known = set(has.values_list("pk", flat=True)) & set(ours.values_list("pk", flat=True))
    right = set(wanted.values_list("pk", flat=True))
    has.add(*(right - known))
    has.remove(*(known - right))
    return Given(name, made, len(right), len(right - known), len(known - right))
