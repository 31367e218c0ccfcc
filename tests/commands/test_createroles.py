"""`manage.py createroles`: three groups, and what their members may do."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group, Permission, User

from tests.support.commands import call

pytestmark = pytest.mark.django_db
ROLES = ("Job viewer", "Job operator", "Job admin")
OURS = ("jobscheduler_jobs", "jobscheduler_schedules", "jobscheduler_webhooks")


def of(role: str) -> set[str]:
    return set(Group.objects.get(name=role).permissions.values_list("codename", flat=True))


def test_each_role_has_what_the_one_before_it_has_and_more() -> None:
    assert call("createroles").code == 0
    viewer, operator, admin = (of(role) for role in ROLES)
    assert viewer < operator < admin
    assert all(name.startswith("view_") for name in viewer)
    assert admin == set(Permission.objects.filter(content_type__app_label__in=OURS).values_list("codename", flat=True))


@pytest.mark.parametrize(
    ("role", "may", "may_not"),
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
def test_a_member_may_what_the_role_says_and_no_more(role: str, may: list[str], may_not: list[str]) -> None:
    call("createroles")
    user = User.objects.create_user("somebody", is_staff=True)
    user.groups.add(Group.objects.get(name=role))
    has = {permission.partition(".")[2] for permission in user.get_all_permissions()}
    assert (set(may) - has, set(may_not) & has) == (set(), set())


def test_run_again_it_changes_nothing_and_says_so() -> None:
    call("createroles")
    before = {role: of(role) for role in ROLES}
    assert [role["added"] for role in call("createroles", "--json").json] == [0, 0, 0]
    assert {role: of(role) for role in ROLES} == before
    assert "(0 added, 0 removed)" in call("createroles").out


def test_it_puts_ours_right_and_leaves_those_of_other_apps_alone() -> None:
    call("createroles")
    viewer = Group.objects.get(name="Job viewer")
    foreign, ours = Permission.objects.get(codename="add_user"), Permission.objects.get(codename="cancel_job")
    viewer.permissions.add(foreign, ours)
    viewer.permissions.remove(Permission.objects.get(codename="view_job"))
    (document, *_others) = call("createroles", "--json").json
    assert (document["added"], document["taken"]) == (1, 1)
    assert {"add_user", "view_job"} <= of("Job viewer")
    assert "cancel_job" not in of("Job viewer")


def test_before_the_first_migrate_it_says_what_to_do() -> None:
    Permission.objects.filter(content_type__app_label__in=OURS).delete()
    result = call("createroles")
    assert (result.code, "migrate" in result.err) == (1, True)
    assert not Group.objects.exists()
