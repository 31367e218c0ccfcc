"""Schedules over HTTP: fields and codes follow the contract, and no input causes a 500."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.utils import timezone

from jobs.models import Job
from schedules.firing import fire_due
from schedules.models import Schedule, ScheduleFire
from tests.factories import JobTemplateFactory, ScheduleFactory
from tests.schedules.test_services import BAD_FIELDS
from tests.support import executor
from tests.support.api_client import ApiClient, read_error_locations
from tests.support.schedules import NOON, TYPE, create_due_schedule, list_jobs
from tests.support.snapshots import dump_tables

pytestmark = pytest.mark.django_db

NIGHTLY = {"name": "nightly", "cron": "0 3 * * *", "timezone": "Europe/Berlin", "job_type": TYPE, "params": {"a": 1}}
FIELDS = {
    *("id", "name", "tenant", "cron", "every_sec", "anchor_at", "run_at", "timezone", "max_fires", "enabled"),
    *("job_type", "template", "params", "priority", "target", "resource", "catch_up", "catch_up_max", "overlap"),
    *("misfire_grace_sec", "jitter_sec", "next_fire_at", "last_fire_at", "disabled_reason", "created_at"),
}


@pytest.fixture
def api() -> ApiClient:
    return ApiClient()


def create_schedule(api: ApiClient, **fields: Any) -> dict[str, Any]:
    response = api.post("/schedules", {**NIGHTLY, **fields})
    assert response.status_code == 201, response.content
    document: dict[str, Any] = response.json()
    return document


def test_a_schedule_is_created_read_changed_and_deleted(api: ApiClient) -> None:
    schedule = create_schedule(api, priority="HIGH", target="book-1")
    assert set(schedule) >= FIELDS
    assert (schedule["priority"], schedule["catch_up"], schedule["overlap"]) == (75, "latest", "allow")
    assert schedule["next_fire_at"].endswith("Z")
    path = f"/schedules/{schedule['id']}"
    assert api.get(path).json() == schedule
    changed = api.patch(path, {"cron": "30 4 * * *", "priority": None}).json()
    assert (changed["cron"], changed["priority"], changed["name"]) == ("30 4 * * *", None, "nightly")
    assert changed["next_fire_at"] != schedule["next_fire_at"]
    assert [item["id"] for item in api.get("/schedules").json()["items"]] == [schedule["id"]]
    assert (api.delete(path).status_code, api.get(path).status_code) == (204, 404)


def test_rules_and_templates_in_all_their_forms(api: ApiClient) -> None:
    JobTemplateFactory.create(name="preset", job_type=TYPE)
    every = create_schedule(api, name="a", cron=None, every_sec=90, anchor_at="2026-01-01T00:00:00+01:00")
    assert (every["every_sec"], every["anchor_at"]) == (90, "2025-12-31T23:00:00Z")
    once = create_schedule(api, name="b", cron=None, run_at="2099-01-01T00:00:00Z")
    assert once["next_fire_at"] == once["run_at"] == "2099-01-01T00:00:00Z"
    preset = create_schedule(api, name="c", job_type=None, template="preset")
    assert (preset["job_type"], preset["template"]) == (None, "preset")
    assert create_schedule(api, name="d", every_sec=60.0, cron=None)["every_sec"] == 60


@pytest.mark.parametrize(("fields", "loc"), BAD_FIELDS)
def test_bad_input_is_422_and_names_the_field(fields: dict[str, Any], loc: list[Any], api: ApiClient) -> None:
    if any(isinstance(value, float) and value != value for value in fields.values()):
        fields = {**fields, "every_sec": "NaN"}  # JSON has no such number
    before = dump_tables()["Schedule"]
    assert read_error_locations(api.post("/schedules", {**NIGHTLY, "params": {}, **fields}))[0] == ["body", *loc]
    assert dump_tables()["Schedule"] == before


def test_a_name_that_is_taken_is_409(api: ApiClient) -> None:
    create_schedule(api)
    response = api.post("/schedules", NIGHTLY)
    assert (response.status_code, response.json()["code"]) == (409, "name_taken")


def test_a_template_that_a_schedule_uses_cannot_be_deleted(api: ApiClient) -> None:
    template = JobTemplateFactory.create(name="preset", job_type=TYPE)
    create_schedule(api, job_type=None, template="preset")
    response = api.delete(f"/job-templates/{template.pk}")
    assert (response.status_code, response.json()["code"]) == (409, "in_use")


def test_actions_return_their_result(api: ApiClient) -> None:
    schedule = create_schedule(api)
    path = f"/schedules/{schedule['id']}"
    disabled = api.post(f"{path}/disable", {"reason": "too loud"})
    assert disabled.status_code == 200
    assert (disabled.json()["enabled"], disabled.json()["disabled_reason"]) == (False, "too loud")
    skipped = api.post(f"{path}/skip-next")
    assert (skipped.status_code, skipped.json()["code"]) == (409, "nothing_to_skip")
    triggered = api.post(f"{path}/trigger")
    assert triggered.status_code == 201
    job = triggered.json()
    assert (job["status"], job["schedule_id"], job["params"]) == ("QUEUED", schedule["id"], {"a": 1})
    assert not ScheduleFire.objects.exists()
    enabled = api.post(f"{path}/enable").json()
    assert (enabled["enabled"], enabled["next_fire_at"]) == (True, schedule["next_fire_at"])
    later = api.post(f"{path}/skip-next").json()["next_fire_at"]
    assert later > schedule["next_fire_at"]
    assert Job.objects.count() == 1


@pytest.mark.parametrize("body", [{"reason": 5}, {"reason": "x" * 2001}, {"reason": "\0"}, {"why": "x"}, [], '"x"'])
def test_the_body_of_an_action_is_validated_too(body: Any, api: ApiClient) -> None:
    path = f"/schedules/{create_schedule(api)['id']}"
    for verb in ("trigger", "enable", "disable", "skip-next"):
        assert api.post(f"{path}/{verb}", body).status_code == 422, verb


def test_previews_of_a_schedule_and_of_an_expression(api: ApiClient) -> None:
    schedule = create_schedule(api)
    items = api.get(f"/schedules/{schedule['id']}/preview").json()["items"]
    assert (len(items), items[0]["fire_at"]) == (5, schedule["next_fire_at"])
    assert set(items[0]) == {"fire_at", "local", "note"}
    assert items[0]["local"][11:16] == "03:00"
    assert items[0]["local"][-6:] in ("+01:00", "+02:00")
    preview = api.get("/schedules/preview?cron=0+3+*+*+*&timezone=Europe/Berlin&count=5").json()["items"]
    assert preview == items
    saved = create_schedule(api, name="at half past two", cron="30 2 * * *", timezone="Europe/Berlin")
    year = api.get(f"/schedules/{saved['id']}/preview?count=400").json()["items"]
    notes = [fire["note"] for fire in year if fire["note"]]
    assert any("does not exist on this day" in note for note in notes)
    assert any("comes twice on this day" in note for note in notes)


def test_a_preview_that_does_not_go_further_is_marked(api: ApiClient) -> None:
    rare = api.get("/schedules/preview?cron=0+*/23+29+2+*/7&timezone=Europe/Dublin&count=100").json()
    assert (len(rare["items"]) < 100, rare["truncated"]) == (True, True)
    assert api.get("/schedules/preview?cron=0+3+*+*+*&count=100").json()["truncated"] is False


@pytest.mark.parametrize(
    ("query", "loc"),
    [
        ("", "cron"),
        ("cron=x", "cron"),
        ("cron=0+0+31+2+*", "cron"),
        ("cron=%00", "cron"),
        ("cron=*+*+*+*+*&timezone=../../etc/passwd", "timezone"),
        ("cron=*+*+*+*+*&timezone=", "timezone"),
        ("cron=*+*+*+*+*&count=0", "count"),
        ("cron=*+*+*+*+*&count=101", "count"),
        ("cron=*+*+*+*+*&count=x", "count"),
        ("cron=*+*+*+*+*&count=" + "9" * 5000, "count"),
        ("cron=*+*+*+*+*&every=5", "every"),
        ("cron=*+*+*+*+*&cron=*+*+*+*+*", "cron"),
    ],
)
def test_a_preview_of_bad_input_is_422(query: str, loc: str, api: ApiClient) -> None:
    assert read_error_locations(api.get(f"/schedules/preview?{query}")) == [["query", loc]]


def test_fires_are_listed_latest_first_with_their_outcomes(api: ApiClient) -> None:
    row = create_due_schedule(misfire_grace_sec=3600, overlap="skip")
    fire_due(NOON + timedelta(minutes=2))
    failed = executor.fail(executor.claim(list_jobs(row)[0]), retry_in=0)
    path = f"/schedules/{row.pk}/fires"
    skipped, _, first = api.get(path).json()["items"]
    assert (first["fire_time"], first["job_id"]) == ("2026-06-15T12:00:00Z", str(failed.pk))
    assert (first["outcome"], first["last_job_id"]) == ("QUEUED", str(failed.retried_by.pk))
    assert (skipped["outcome"], "previous run" in skipped["note"]) == ("SKIPPED", True)
    assert [fire["id"] for fire in api.list_all(path, 1)] == [fire["id"] for fire in api.get(path).json()["items"]]


def test_a_broken_row_is_shown_and_previewed_without_a_500(api: ApiClient) -> None:
    row = ScheduleFactory.create(cron="nonsense", timezone="Mars/Phobos", job_type="gone", params={"password": "x"})
    path = f"/schedules/{row.pk}"
    assert api.get(path).json()["params"] == {"password": "••••••"}
    response = api.get(f"{path}/preview")
    assert (response.status_code, response.json()["code"]) == (409, "broken")
    assert api.post(f"{path}/skip-next").status_code == 409
    assert api.post(f"{path}/trigger").status_code == 422
    assert api.patch(path, {"name": "other"}).status_code == 422
    mended = {"cron": "@daily", "timezone": "UTC", "job_type": TYPE, "params": {"password": "x"}}
    assert api.patch(path, mended).status_code == 200
    Schedule.objects.update(params="no object")
    assert api.get(path).status_code == 200
    assert api.post(f"{path}/trigger").status_code == 422
    assert api.patch(path, {"params": {}}).status_code == 200


def test_lists_are_filtered(api: ApiClient) -> None:
    one, two = create_schedule(api, name="one"), create_schedule(api, name="two", enabled=False)
    list_ids = lambda query: [schedule["id"] for schedule in api.get(f"/schedules?{query}").json()["items"]]  # noqa: E731
    assert list_ids("") == [two["id"], one["id"]]
    assert (list_ids("enabled=true"), list_ids("enabled=false")) == ([one["id"]], [two["id"]])
    assert (list_ids("name=one"), list_ids(f"job_type={TYPE}"), list_ids("job_type=x")) == (
        [one["id"]],
        [two["id"], one["id"]],
        [],
    )
    assert list_ids("tenant=acme") == []
    assert read_error_locations(api.get("/schedules?enabled=yes")) == [["query", "enabled"]]


def test_jobs_are_listed_by_their_schedule(api: ApiClient) -> None:
    row = create_due_schedule()
    fire_due(NOON)
    assert [job["schedule_id"] for job in api.get(f"/jobs?schedule={row.pk}").json()["items"]] == [str(row.pk)]


@pytest.mark.parametrize(
    ("verb", "permission"),
    [
        ("trigger", "trigger_schedule"),
        ("enable", "enable_schedule"),
        ("disable", "disable_schedule"),
        ("skip-next", "skip_schedule"),
    ],
)
def test_a_session_needs_the_permission_of_the_action(verb: str, permission: str) -> None:
    row = create_due_schedule(timezone.now() + timedelta(days=1))
    user = User.objects.create_user("staff", is_staff=True)
    client = Client()
    client.force_login(user)
    path = f"/api/schedules/{row.pk}/{verb}"
    user.user_permissions.set(Permission.objects.exclude(codename=permission))
    assert client.post(path).status_code == 403
    user.user_permissions.set(
        Permission.objects.filter(codename=permission, content_type__app_label="jobscheduler_schedules")
    )
    assert client.post(path).status_code in (200, 201)


def test_a_user_who_may_not_see_payloads_sees_no_params() -> None:
    row = create_due_schedule(params={"secretive": 1})
    user = User.objects.create_user("staff", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename="view_schedule"))
    client = Client()
    client.force_login(user)
    assert client.get(f"/api/schedules/{row.pk}").json()["params"] is None
    assert client.get("/api/schedules").json()["items"][0]["params"] is None


def test_masked_params_survive_an_edit(api: ApiClient) -> None:
    schedule = create_schedule(api, params={"password": "hunter2", "a": 1})
    assert schedule["params"]["password"] == "••••••"
    path = f"/schedules/{schedule['id']}"
    assert api.patch(path, {"params": schedule["params"], "priority": 60}).status_code == 200
    assert api.patch(path, {"params": {**schedule["params"], "a": 2}}).status_code == 422
    assert Schedule.objects.get().params == {"password": "hunter2", "a": 1}
