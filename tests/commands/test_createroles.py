"""`manage.py createroles` creates three groups with their permissions."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.contrib.auth.models import Group, Permission, User

from tests.support.commands import call

pytestmark = pytest.mark.django_db
ROLES = ("Job viewer", "Job operator", "Job admin")
APP_LABELS = ("jobscheduler_jobs", "jobscheduler_schedules", "jobscheduler_webhooks")


def get_permissions(role: str) -> set[str]:
    return set(Group.objects.get(name=role).permissions.values_list("codename", flat=True))


def test_each_role_includes_the_permissions_of_the_one_before() -> None:
    assert call("createroles").code == 0
    viewer, operator, admin = (get_permissions(role) for role in ROLES)
    assert viewer < operator < admin
    assert all(name.startswith("view_") for name in viewer)
    assert admin == set(
        Permission.objects.filter(content_type__app_label__in=APP_LABELS).values_list("codename", flat=True)
    )


@pytest.mark.parametrize(
    ("role", "allowed", "denied"),
    [
        (
            "Job viewer",
            ["view_job", "view_schedule", "view_webhookdelivery"],
            ["view_payload", "add_job", "cancel_job"],
        ),
        (
            "Job operator",
            ["view_payload", "add_job", "cancel_job", "trigger_schedule", "resend_delivery", "stop_worker"],
            ["change_limits", "change_schedule", "add_apitoken", "rotate_webhookendpoint", "delete_jobtemplate"],
        ),
        ("Job admin", ["change_limits", "change_schedule", "add_apitoken", "rotate_webhookendpoint"], ["add_user"]),
    ],
)
def test_a_member_has_the_permissions_of_the_role_and_no_more(role: str, allowed: list[str], denied: list[str]) -> None:
    call("createroles")
    user = User.objects.create_user("member", is_staff=True)
    user.groups.add(Group.objects.get(name=role))
    actual = {permission.partition(".")[2] for permission in user.get_all_permissions()}
    assert (set(allowed) - actual, set(denied) & actual) == (set(), set())


def test_the_guide_shows_what_a_first_run_prints() -> None:
    guide = (Path(__file__).parents[2] / "docs/roles-and-demo.md").read_text().splitlines()
    assert [line for line in guide if line.startswith(tuple(f"{role}:" for role in ROLES))] == call(
        "createroles"
    ).out.splitlines()


def test_a_second_run_changes_nothing_and_says_so() -> None:
    call("createroles")
    before = {role: get_permissions(role) for role in ROLES}
    assert [role["added"] for role in call("createroles", "--json").json] == [0, 0, 0]
    assert {role: get_permissions(role) for role in ROLES} == before
    assert "(0 added, 0 removed)" in call("createroles").out


def test_it_corrects_our_permissions_and_keeps_those_of_other_apps() -> None:
    call("createroles")
    viewer = Group.objects.get(name="Job viewer")
    foreign_permission, extra_permission = (
        Permission.objects.get(codename="add_user"),
        Permission.objects.get(codename="cancel_job"),
    )
    viewer.permissions.add(foreign_permission, extra_permission)
    viewer.permissions.remove(Permission.objects.get(codename="view_job"))
    (document, *_others) = call("createroles", "--json").json
    assert (document["added"], document["taken"]) == (1, 1)
    assert {"add_user", "view_job"} <= get_permissions("Job viewer")
    assert "cancel_job" not in get_permissions("Job viewer")


def test_before_the_first_migrate_it_asks_for_migrate() -> None:
    Permission.objects.filter(content_type__app_label__in=APP_LABELS).delete()
    result = call("createroles")
    assert (result.code, "migrate" in result.err) == (1, True)
    assert not Group.objects.exists()
