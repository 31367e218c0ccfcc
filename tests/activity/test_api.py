"""What a token changes is recorded under its id and name; `GET /api/activity` lists it with actions on jobs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

import tests.sample_app.job_types  # noqa: F401  the factories name these types
from jobs.actors import Actor, ActorKind, make_token_actor
from jobs.ids import min_id_at
from jobs.models import Activity, ApiToken, payload
from jobs.models.activity import JOB_ACTIONS, Action
from jobs.redaction import MASK
from jobs.services import activity_list, groups, targets
from jobs.services import jobs as job_services
from jobs.states import Status
from tests.factories import (
    ActivityFactory,
    JobEventFactory,
    JobTemplateFactory,
    ScheduleFactory,
    WebhookDeliveryFactory,
    WebhookEndpointFactory,
    job_in,
)
from tests.support.activities import record_new
from tests.support.admin_users import create_reader, log_in
from tests.support.api_client import ApiClient, read_error_locations
from webhooks import services as webhooks

pytestmark = pytest.mark.django_db

ANN = Actor(ActorKind.USER, "ann", "17")
SCHEDULE = {"name": "nightly", "cron": "0 3 * * *", "job_type": "sample.noop"}
ENDPOINT = {"url": "https://example.org/a", "events": ["job.*"]}


def on(model: Any, path: str, method: str = "post", body: Any = None) -> Callable[[ApiClient], Any]:
    """Return a request on a new object of this factory."""
    return lambda api: api.send(method, path.format(model().pk), body)


def make_group() -> Any:
    return groups.create([{"job_type": "sample.noop"}])


def make_cancelled_group() -> Any:
    return groups.cancel(make_group().pk)


def make_disabled_schedule() -> Any:
    return ScheduleFactory.create(enabled=False, next_fire_at=None)


def make_live_schedule() -> Any:
    return ScheduleFactory.create(next_fire_at=timezone.now() + timedelta(hours=1))


def make_failed_delivery() -> Any:
    return WebhookDeliveryFactory.create(failed=True)


REQUESTS: dict[str, Callable[[ApiClient], Any]] = {
    "limit.set": lambda api: api.put("/limits", {"scope": "resource", "key": "gpu", "max": 3}),
    "limit.pause": lambda api: api.put("/limits", {"scope": "global", "paused": True}),
    "target.pause": lambda api: api.post("/targets/book/pause", {"reason": "heat"}),
    "group.cancel": on(make_group, "/job-groups/{}/cancel"),
    "group.retry": on(make_cancelled_group, "/job-groups/{}/retry"),
    "template.create": lambda api: api.post("/job-templates", {"name": "nightly", "job_type": "sample.noop"}),
    "template.update": on(JobTemplateFactory.create, "/job-templates/{}", "patch", {"priority": 75}),
    "template.delete": on(JobTemplateFactory.create, "/job-templates/{}", "delete"),
    "schedule.create": lambda api: api.post("/schedules", SCHEDULE),
    "schedule.update": on(ScheduleFactory.create, "/schedules/{}", "patch", {"cron": "1 * * * *"}),
    "schedule.enable": on(make_disabled_schedule, "/schedules/{}/enable"),
    "schedule.disable": on(ScheduleFactory.create, "/schedules/{}/disable"),
    "schedule.skip_next": on(make_live_schedule, "/schedules/{}/skip-next"),
    "schedule.trigger": on(ScheduleFactory.create, "/schedules/{}/trigger"),
    "schedule.delete": on(ScheduleFactory.create, "/schedules/{}", "delete"),
    "endpoint.create": lambda api: api.post("/webhooks", ENDPOINT),
    "endpoint.update": on(WebhookEndpointFactory.create, "/webhooks/{}", "patch", {"url": "https://example.org/b"}),
    "endpoint.disable": on(WebhookEndpointFactory.create, "/webhooks/{}", "patch", {"enabled": False}),
    "endpoint.rotate_secret": on(WebhookEndpointFactory.create, "/webhooks/{}/rotate-secret"),
    "endpoint.test": on(WebhookEndpointFactory.create, "/webhooks/{}/test"),
    "endpoint.resend": on(make_failed_delivery, "/webhook-deliveries/{}/resend"),
    "endpoint.delete": on(WebhookEndpointFactory.create, "/webhooks/{}", "delete"),
}


@pytest.mark.parametrize("action", REQUESTS)
def test_a_change_by_a_token_is_recorded_under_its_id_and_name(action: str) -> None:
    api = ApiClient("admin", tenant=None)
    token = ApiToken.objects.get()
    with record_new() as recorded:
        response = REQUESTS[action](api)
    assert response.status_code in (200, 201, 204), response.content
    (found,) = [row for row in recorded if row.actor_kind == "token"]
    assert (found.action, found.actor_id, found.actor_name) == (
        action,
        str(token.pk),
        make_token_actor(token.name, token.prefix, token.pk).name,
    )


def test_a_refused_request_leaves_no_activity() -> None:
    api = ApiClient("read", "submit", tenant=None)
    with record_new() as recorded:
        for request in REQUESTS.values():
            assert request(api).status_code == 403
    assert [row for row in recorded if row.actor_kind == "token"] == []


def test_the_list_has_activities_and_actions_on_jobs_by_time() -> None:
    targets.pause("book", reason="heat", actor=ANN)
    job = job_services.enqueue("sample.noop", actor=ANN)
    job_services.pause(job.pk, reason="not now", actor=ANN)
    targets.unpause("book", actor=ANN)
    job_in(Status.COMPLETED)  # events of a worker
    items = ApiClient("read").get("/activity").json()["items"]
    shown = [(item["action"], item["object"]["kind"], item["object"]["id"], item["reason"]) for item in items]
    assert shown == [
        *([("token.create", "token", str(ApiToken.objects.get().pk), "")]),
        ("target.unpause", "target", "book", ""),
        ("job.pause", "job", str(job.pk), "not now"),
        ("target.pause", "target", "book", "heat"),
    ]
    assert items[1]["actor"] == {"kind": "user", "id": "17", "name": "ann"}
    assert items[2]["actor"] == {"kind": "user", "id": None, "name": "ann"}
    assert (items[2]["before"], items[2]["after"]) == ({"status": "QUEUED"}, {"status": "PAUSED"})


def test_a_stop_of_a_running_job_is_found_under_the_name_of_the_action() -> None:
    running, waiting = job_in(Status.RUNNING), job_services.enqueue("sample.noop")
    job_services.cancel(running.pk, actor=ANN)
    job_services.cancel(waiting.pk, actor=ANN)
    items = ApiClient("read").get("/activity?action=job.cancel").json()["items"]
    assert {item["object"]["id"] for item in items} == {str(running.pk), str(waiting.pk)}


def test_another_tenant_is_not_seen_and_global_changes_need_a_token_of_all_tenants() -> None:
    ActivityFactory.create(tenant="acme", object_name="hers")
    ActivityFactory.create(tenant=None, action="limit.set", object_kind="limit", object_name="global")
    job = job_services.enqueue("sample.noop", tenant="acme")
    job_services.pause(job.pk, actor=ANN)
    mine, hers, all_tenants = (ApiClient("read", tenant=tenant) for tenant in ("default", "acme", None))
    assert {item["action"] for item in mine.get("/activity").json()["items"]} == {"token.create"}
    assert {item["action"] for item in hers.get("/activity").json()["items"]} == {
        *("token.create", "target.pause", "job.pause")
    }
    assert "limit.set" in {item["action"] for item in all_tenants.get("/activity").json()["items"]}
    assert mine.get("/activity?tenant=acme").json() == {"items": [], "next_cursor": None}
    assert {item["tenant"] for item in all_tenants.get("/activity?tenant=acme").json()["items"]} == {"acme"}


def test_filters_select_by_actor_action_object_and_time() -> None:
    api = ApiClient("read", tenant=None)
    now = timezone.now()
    old = ActivityFactory.create(id=min_id_at(now - timedelta(days=3)), at=now - timedelta(days=3), actor_name="bob")
    ActivityFactory.create(object_id="book", actor_name="bob", action="target.unpause")
    JobEventFactory.create(kind="RESUMED", actor_kind="cli", actor_name="bob", at=now - timedelta(days=3))
    job = job_services.enqueue("sample.noop")
    job_services.pause(job.pk, actor=Actor(ActorKind.CLI, "bob"))

    def list_actions(query: str) -> list[str]:
        return [item["action"] for item in api.get(f"/activity?{query}").json()["items"]]

    day_ago = (now - timedelta(days=1)).isoformat().replace("+00:00", "Z")
    assert sorted(list_actions("actor=bob")) == ["job.pause", "job.resume", "target.pause", "target.unpause"]
    assert list_actions("actor=bob&actor_kind=cli") == ["job.pause", "job.resume"]
    assert list_actions("action=target.unpause") == ["target.unpause"]
    assert list_actions("object_kind=target&object_id=book") == ["target.unpause"]
    assert list_actions(f"object_kind=job&object_id={job.pk}&action=job.pause") == ["job.pause"]
    assert list_actions("object_kind=job&object_id=nonsense") == []
    assert sorted(list_actions(f"actor=bob&until={day_ago}")) == ["job.resume", "target.pause"]
    assert sorted(list_actions(f"actor=bob&since={day_ago}")) == ["job.pause", "target.unpause"]
    assert [
        item["id"] for item in api.get(f"/activity?object_id={old.object_id}&object_kind=target").json()["items"]
    ] == [str(old.pk)]


@pytest.mark.parametrize(
    "query", ["action=explode", "actor_kind=ghost", "object_kind=moon", "since=now", "object_id=x", "actor=", "limit=0"]
)
def test_an_invalid_filter_is_refused_by_name(query: str) -> None:
    assert read_error_locations(ApiClient("read").get(f"/activity?{query}")) == [["query", query.partition("=")[0]]]


@pytest.mark.parametrize("scan_limit", [1, 3, 10_000])
def test_pages_have_every_row_once_and_in_order(scan_limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity_list, "SCAN_LIMIT", scan_limit)
    job = job_services.enqueue("sample.noop")
    start = timezone.now() - timedelta(hours=1)
    for number in range(12):
        at = start + timedelta(minutes=number)
        if number % 3:
            name = "ann" if number % 2 else "bob"
            JobEventFactory.create(job=job, kind="MOVED", actor_kind="user", actor_name=name, reason=str(number), at=at)
        else:
            name = "ann" if number % 2 else "bob"
            ActivityFactory.create(id=min_id_at(at), at=at, actor_name=name, reason=str(number))
    api = ApiClient("read", tenant=None)
    for limit in (1, 2, 5, 50):
        found = [item["reason"] for item in api.list_all("/activity?actor_kind=user", limit)]
        assert found == [str(number) for number in reversed(range(12))], limit
        found = [item["reason"] for item in api.list_all("/activity?actor_kind=user&actor=ann", limit)]
        assert found == [str(number) for number in reversed(range(12)) if number % 2], limit


def test_a_page_ends_where_its_fields_would_exceed_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "MAX_PAGE_BYTES", 5000)
    for number in range(9):
        ActivityFactory.create(before={"text": "x" * 900}, after={"number": number})
        JobEventFactory.create(job=job_in(Status.QUEUED), kind="PAUSED", actor_kind="user", actor_name="ann")
    api = ApiClient("read", tenant=None)
    everything = api.list_all("/activity?since=2020-01-01T00:00:00Z", limit=500)
    assert [item["after"]["number"] for item in everything if item["object"]["kind"] == "target"] == [*range(9)][::-1]
    assert all(len(item["before"]["text"]) == 900 for item in everything if item["object"]["kind"] == "target")
    assert len({item["id"] for item in everything}) == len(everything) >= 18
    page = api.get("/activity?limit=500").json()
    assert sum(item["object"]["kind"] == "target" for item in page["items"]) == 5
    assert page["next_cursor"] is not None


def test_a_cursor_is_of_one_list_of_filters() -> None:
    ActivityFactory.create_batch(3)
    api = ApiClient("read")
    cursor = api.get("/activity?limit=1").json()["next_cursor"]
    assert api.get(f"/activity?limit=2&cursor={cursor}").status_code == 200
    assert api.get(f"/activity?actor=ann&cursor={cursor}").status_code == 422
    assert api.get("/activity?cursor=nonsense").status_code == 422


def test_a_token_needs_the_scope_read_and_a_session_its_permission() -> None:
    assert Client().get("/api/activity").status_code == 401
    assert ApiClient("submit").get("/activity").status_code == 403
    reader = create_reader("reader")
    assert log_in(reader).get("/api/activity").status_code == 200
    reader.user_permissions.remove(*reader.user_permissions.filter(codename="view_activity"))
    assert log_in(reader).get("/api/activity").status_code == 403


def test_params_take_the_permission_to_see_payload() -> None:
    params = {"text": "a", "password": MASK}
    ActivityFactory.create(action="template.update", after={"params": params, "priority": 1})
    viewer, auditor = (log_in(create_reader(name, *also)) for name, also in (("v", ()), ("a", ("view_payload",))))
    (hidden,), (shown,) = (client.get("/api/activity").json()["items"] for client in (viewer, auditor))
    assert hidden["after"] == {"params": None, "priority": 1}
    assert shown["after"] == {"params": params, "priority": 1}


def test_the_path_of_a_webhook_url_takes_the_permission_to_see_payload() -> None:
    endpoint, _ = webhooks.create("https://example.org/hooks/hidden-path", ["job.*"])
    webhooks.update(endpoint.pk, {"url": "https://example.org/hooks/other-path"})
    webhooks.delete(endpoint.pk)
    viewer, auditor = (log_in(create_reader(name, *also)) for name, also in (("v", ()), ("a", ("view_payload",))))
    hidden, shown = (client.get("/api/activity").content.decode() for client in (viewer, auditor))
    assert "-path" not in hidden
    assert "https://example.org" in hidden
    assert "hooks/hidden-path" in shown


def test_the_documented_actions_are_all_there_are() -> None:
    assert {action.object_kind for action in Action} >= {"limit", "target", "worker", "template", "token"}
    assert not set(JOB_ACTIONS) & set(map(str, Action))
    assert Activity._meta.get_field("action").max_length >= max(map(len, Action))
