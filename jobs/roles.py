"""Three Django groups: viewer, operator, admin. Each has all permissions of the one before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import Group, Permission
from django.db import router, transaction
from django.db.models import QuerySet

APP_LABELS = ("jobscheduler_jobs", "jobscheduler_schedules", "jobscheduler_webhooks")
PAYLOAD_PERMISSION = "view_payload"
NOT_VIEWING = (PAYLOAD_PERMISSION, "view_diagnostics")  # though their names begin with "view_"
OPERATOR_PERMISSIONS = (
    PAYLOAD_PERMISSION,
    *("add_job", "change_job", "cancel_job", "pause_job", "resume_job", "retry_job", "resolve_job", "release_job"),
    *("reorder_job", "pause_target", "pause_resource", "cancel_jobgroup", "retry_jobgroup", "run_jobtemplate"),
    *("stop_worker", "end_lease"),
    *("trigger_schedule", "enable_schedule", "disable_schedule", "skip_schedule"),
    *("resend_delivery", "test_webhookendpoint"),
)


@dataclass(frozen=True)
class RoleResult:
    """The permissions of a role's group, and how they were changed. The names are those of `createroles --json`."""

    name: str
    made: bool
    permissions: int
    added: int
    taken: int


def create_roles() -> list[RoleResult]:
    """Create the groups, or correct their permissions of our apps; those of other apps stay as they are."""
    alias = router.db_for_write(Group)
    permissions = Permission.objects.using(alias).filter(content_type__app_label__in=APP_LABELS)
    viewing = permissions.filter(codename__startswith="view_").exclude(codename__in=NOT_VIEWING)
    with transaction.atomic(using=alias):
        return [
            _update_role("Job viewer", viewing, permissions),
            _update_role("Job operator", viewing | permissions.filter(codename__in=OPERATOR_PERMISSIONS), permissions),
            _update_role("Job admin", permissions, permissions),
        ]


def has_permissions() -> bool:
    """Return whether the permissions exist: the first `migrate` creates them."""
    permissions = Permission.objects.using(router.db_for_write(Group))
    return permissions.filter(content_type__app_label__in=APP_LABELS, codename=PAYLOAD_PERMISSION).exists()


def _update_role(name: str, wanted: QuerySet[Permission], managed: QuerySet[Permission]) -> RoleResult:
    group, created = Group.objects.using(wanted.db).get_or_create(name=name)
    relation: Any = group.permissions
    present = set(relation.values_list("pk", flat=True)) & set(managed.values_list("pk", flat=True))
    target = set(wanted.values_list("pk", flat=True))
    relation.add(*(target - present))
    relation.remove(*(present - target))
    return RoleResult(name, created, len(target), len(target - present), len(present - target))
