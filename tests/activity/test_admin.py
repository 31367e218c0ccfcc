"""What a user changes in the console is recorded under the user's id; the screen *Activity* shows it with filters."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

import tests.sample_app.job_types  # noqa: F401  templates and schedules choose among the types that are known
from jobs.actors import Actor, ActorKind
from jobs.admin import activity as activity_screen
from jobs.models import Activity, ApiToken, ConcurrencyLimit, JobTemplate
from jobs.models.activity import ALL_ACTIONS, OBJECT_KINDS
from jobs.services import groups, limits, targets, templates, tokens, workers
from jobs.services import jobs as job_services
from jobs.states import Status
from schedules.models import Schedule
from tests.factories import (
    ActivityFactory,
    ConcurrencyLimitFactory,
    JobEventFactory,
    JobFactory,
    JobTemplateFactory,
    ScheduleFactory,
    TargetFactory,
    WebhookDeliveryFactory,
    WebhookEndpointFactory,
    WorkerFactory,
    job_in,
)
from tests.support.activities import record_new
from tests.support.admin_pages import count_queries, get_list_url, get_page_url, read_messages, run_action
from tests.support.admin_users import create_reader, log_in
from tests.support.snapshots import dump_tables
from webhooks import services as webhooks
from webhooks.models import WebhookEndpoint

pytestmark = [pytest.mark.django_db, pytest.mark.once]

URL = "admin:jobscheduler_jobs_activity"
ANN = Actor(ActorKind.USER, "ann", "17")
TEMPLATE = {"tenant": "default", "name": "nightly", "job_type": "tests.note", "params": '{"text": "hi"}'}
ENDPOINT = {"tenant": "default", "url": "https://example.org/a", "events": ["job.*"], "enabled": "on"}
TIMING = {"cron": "0 3 * * *", "timezone": "UTC", "catch_up": "latest", "catch_up_max": "10", "overlap": "allow"}
SCHEDULE = {
    "name": "nightly",
    "tenant": "default",
    "enabled": "on",
    "job_type": "tests.anything",
    "params": "{}",
    **TIMING,
    "misfire_grace_sec": "60",
    "jitter_sec": "0",
}
LIST_FORM = {"form-TOTAL_FORMS": "1", "form-INITIAL_FORMS": "1", "_save": "1"}


def add(model: Any, form: dict[str, Any]) -> Callable[[Client], Any]:
    return lambda client: client.post(f"{get_list_url(model)}add/", form)


def save(make_row: Callable[[], Any], form: dict[str, Any]) -> Callable[[Client], Any]:
    return lambda client: client.post(get_page_url(make_row()), form)


def press(make_row: Callable[[], Any], verb: str) -> Callable[[Client], Any]:
    def post(client: Client) -> Any:
        return client.post(get_page_url(make_row()).replace("/change/", f"/verb/{verb}/"), {"confirmed": "1"})

    return post


def delete(make_row: Callable[[], Any]) -> Callable[[Client], Any]:
    return lambda client: client.post(get_page_url(make_row()).replace("/change/", "/delete/"), {"post": "yes"})


def make_limit() -> Any:
    return ConcurrencyLimitFactory.create(max=3)


def make_paused_limit() -> Any:
    return ConcurrencyLimitFactory.create(max=3, paused=True)


def set_in_list(client: Client) -> Any:
    limit = make_limit()
    return client.post(get_list_url(ConcurrencyLimit), {**LIST_FORM, "form-0-id": limit.pk, "form-0-max": "8"})


def make_group() -> Any:
    return groups.create([{"job_type": "sample.noop"}])


def make_due_schedule() -> Any:
    return ScheduleFactory.create(next_fire_at=timezone.now() + timedelta(hours=1))


def make_disabled_schedule() -> Any:
    return ScheduleFactory.create(enabled=False)


def disable_endpoint(client: Client) -> Any:
    endpoint = WebhookEndpointFactory.create()
    return client.post(get_page_url(endpoint), {"url": endpoint.url, "events": endpoint.events})


def make_token() -> Any:
    return tokens.create("robot")[0]


CASES: list[tuple[str, Callable[[Client], Any]]] = [
    ("limit.set", add(ConcurrencyLimit, {"scope": "resource", "key": "gpu", "max": "2", "overridden": "on"})),
    ("limit.set", save(make_limit, {"max": "9", "overridden": "on"})),
    ("limit.set", set_in_list),
    ("limit.reset", save(make_limit, {"max": "3"})),
    ("limit.pause", add(ConcurrencyLimit, {"scope": "resource", "key": "gpu", "paused": "on", "reason": "heat"})),
    ("limit.pause", press(make_limit, "pause")),
    ("limit.unpause", press(make_paused_limit, "unpause")),
    ("limit.reset", press(make_limit, "reset")),
    ("target.pause", press(TargetFactory.create, "pause")),
    ("worker.quiet", press(WorkerFactory.create, "quiet")),
    ("worker.stop", press(WorkerFactory.create, "stop")),
    ("group.cancel", press(make_group, "cancel")),
    ("template.create", add(JobTemplate, TEMPLATE)),
    ("template.update", save(JobTemplateFactory.create, TEMPLATE)),
    ("template.delete", delete(JobTemplateFactory.create)),
    ("schedule.create", add(Schedule, SCHEDULE)),
    ("schedule.update", save(ScheduleFactory.create, SCHEDULE)),
    ("schedule.enable", press(make_disabled_schedule, "enable")),
    ("schedule.disable", press(ScheduleFactory.create, "disable")),
    ("schedule.skip_next", press(make_due_schedule, "skip")),
    ("schedule.trigger", press(ScheduleFactory.create, "trigger")),
    ("schedule.delete", delete(ScheduleFactory.create)),
    ("endpoint.create", add(WebhookEndpoint, ENDPOINT)),
    ("endpoint.update", save(WebhookEndpointFactory.create, ENDPOINT)),
    ("endpoint.disable", disable_endpoint),
    ("endpoint.rotate_secret", press(WebhookEndpointFactory.create, "rotate")),
    ("endpoint.test", press(WebhookEndpointFactory.create, "test")),
    ("endpoint.resend", press(lambda: WebhookDeliveryFactory.create(failed=True), "resend")),
    ("endpoint.delete", delete(WebhookEndpointFactory.create)),
    ("token.create", add(ApiToken, {"name": "robot", "tenant": "default", "scopes": ["read"]})),
    ("token.revoke", press(make_token, "revoke")),
]


@pytest.mark.parametrize(("action", "post"), CASES, ids=[action for action, _ in CASES])
def test_a_change_in_the_console_is_recorded_under_the_users_id(
    action: str, post: Callable[[Client], Any], boss: Client
) -> None:
    with record_new() as recorded:
        assert post(boss).status_code in (200, 302)
    by_boss = [row for row in recorded if row.actor_kind == "user"]
    user = User.objects.get(username="boss")
    assert [(row.action, row.actor_id, row.actor_name) for row in by_boss] == [(action, str(user.pk), "boss")]


def test_a_form_that_changes_nothing_leaves_no_activity(boss: Client) -> None:
    limit, template = make_limit(), JobTemplateFactory.create(**{**TEMPLATE, "params": {"text": "hi"}})
    with record_new() as recorded:
        assert boss.post(get_page_url(limit), {"max": "3", "overridden": "on"}).status_code == 302
        assert boss.post(get_page_url(template), TEMPLATE).status_code == 302
    assert recorded == []


def test_a_limit_without_a_maximum_or_a_pause_is_refused(boss: Client) -> None:
    response = boss.post(f"{get_list_url(ConcurrencyLimit)}add/", {"scope": "resource", "key": "gpu"})
    assert "Enter a maximum" in str(response.context["adminform"].form.errors)
    assert not ConcurrencyLimit.objects.exists()


def test_a_template_in_use_is_kept_and_the_page_says_why(boss: Client) -> None:
    template = JobTemplateFactory.create(name="nightly")
    JobFactory.create(template=template, queued=True)
    response = boss.post(get_page_url(template).replace("/change/", "/delete/"), {"post": "yes"})
    assert (response.status_code, "have not finished" in read_messages(response)) == (302, True)
    response = run_action(boss, "delete_selected", [template], post="yes")
    assert (response.status_code, "have not finished" in read_messages(response)) == (302, True)
    assert JobTemplate.objects.exists()


# ------------------------------------------------------------------------------------------------ the screen


def list_actions(client: Client, **query: str) -> list[str]:
    return [row["entry"].action for row in client.get(reverse(URL), query).context["rows"]]


def test_the_screen_shows_who_did_what_to_which_object_and_what_changed(boss: Client) -> None:
    target = targets.pause("book", reason="heat", actor=ANN)
    job = job_services.enqueue("sample.noop", actor=Actor(ActorKind.TOKEN, "robot"))
    job_services.pause(job.pk, reason="not now", actor=Actor(ActorKind.CLI, "root"))
    template = templates.create({"name": "nightly", "job_type": "sample.noop"}, actor=ANN)
    templates.delete(template.pk, actor=ANN)
    limits.set_maximum("resource", "gpu", maximum=3, actor=ANN)
    job_in(Status.RUNNING)
    JobEventFactory.create(job=job, actor_kind="worker", actor_name="mailer", reason="machine")
    page = boss.get(reverse(URL)).content.decode()
    for text in (
        "ann",
        "root",
        "heat",
        "not now",
        "nightly",
        "resource gpu",
        "paused: <bdi>no</bdi> → <bdi>yes",
        "root (command line)",
        "Pause target",
        f'sample.noop <span class="jc-whole">…{str(job.pk)[-12:]}</span>',
    ):
        assert text in page, text
    for row in (job, target):
        assert f'href="{get_page_url(row)}"' in page
    assert "machine" not in page
    assert list_actions(boss) == [
        *("limit.set", "template.delete", "template.create", "job.pause", "target.pause"),
    ]


def test_a_stop_of_a_running_job_is_under_the_name_of_the_user_who_requested_it(boss: Client) -> None:
    jobs = [job_in(Status.RUNNING) for _ in range(2)]
    job_services.cancel(jobs[0].pk, reason="wrong book", actor=ANN)
    job_services.pause(jobs[1].pk, reason="disk full", actor=ANN)
    JobEventFactory.create(job=jobs[0], kind="CANCELLED", actor_kind="worker", actor_name="mailer")
    rows = boss.get(reverse(URL)).context["rows"]
    entries = [(row["entry"].action, row["entry"].actor_name, row["entry"].reason) for row in rows]
    assert entries == [("job.pause", "ann", "disk full"), ("job.cancel", "ann", "wrong book")]


def test_a_changed_limit_shows_the_value_before_and_after(boss: Client) -> None:
    limit = ConcurrencyLimitFactory.create(scope="resource", key="gpu", max=1)
    boss.post(get_page_url(limit), {"max": "3", "overridden": "on", "reason": "second card"})
    (row,) = boss.get(reverse(URL)).context["rows"]
    assert row["changes"] == [("maximum", "1", "3")]
    assert get_page_url(limit) in row["object"]
    assert (str(row["action"]), "boss" in row["actor"], row["entry"].reason) == ("Set limit", True, "second card")


def test_fields_and_their_values_have_the_names_of_the_console(boss: Client) -> None:
    workers.quiet(WorkerFactory.create().pk)
    (row,) = boss.get(reverse(URL)).context["rows"]
    assert row["changes"] == [("requested state", "–", "Draining")]


def test_a_retry_is_one_row_and_submissions_are_none(boss: Client) -> None:
    job = job_in(Status.FAILED)
    job_services.enqueue("sample.noop", actor=ANN)
    job_services.retry(job.pk, actor=ANN)
    assert list_actions(boss) == ["job.retry"]


def test_every_action_and_object_has_a_name_in_plain_words() -> None:
    assert set(activity_screen.ACTION_LABELS) == set(ALL_ACTIONS)
    assert set(activity_screen.OBJECT_LABELS) == set(OBJECT_KINDS)


def test_the_times_of_the_filter_are_in_the_zone_that_the_page_names(boss: Client, settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    row = ActivityFactory.create()
    local = timezone.localtime(row.at, ZoneInfo("Europe/Berlin")).replace(tzinfo=None)
    before, after = (local + timedelta(minutes=minutes) for minutes in (-5, 5))
    assert "Times in Europe/Berlin" in boss.get(reverse(URL)).content.decode()
    assert list_actions(boss, since=f"{before:%Y-%m-%dT%H:%M}", until=f"{after:%Y-%m-%dT%H:%M}") == [row.action]
    assert list_actions(boss, since=f"{after:%Y-%m-%dT%H:%M}") == []


def test_the_screen_refreshes_itself(boss: Client) -> None:
    live = {"X-Jobs-Live": "1"}
    first = boss.get(reverse(URL), headers=live)
    ActivityFactory.create()
    again = boss.get(reverse(URL), headers={**live, "If-None-Match": first["ETag"]})
    assert (again.status_code, len(again.context["rows"])) == (200, 1)


def test_filters_and_pages(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity_screen, "ROWS_SHOWN", 2)
    for number in range(5):
        ActivityFactory.create(object_id=f"book-{number}", tenant="acme" if number % 2 else "default")
    ActivityFactory.create(actor_kind="cli", actor_name="root", action="limit.set", object_kind="limit")
    assert list_actions(boss, actor_kind="cli") == ["limit.set"]
    assert list_actions(boss, actor="root", verb="limit.set") == ["limit.set"]
    assert len(list_actions(boss, tenant="acme")) == 2
    assert list_actions(boss, object_kind="target", object_id="book-3") == ["target.pause"]
    assert list_actions(boss, until="2020-01-01T00:00") == []
    url, seen = reverse(URL), []
    while True:
        page = boss.get(url)
        seen += [row["entry"].id for row in page.context["rows"]]
        if not page.context["older"]:
            break
        url = reverse(URL) + page.context["older"]
    assert seen == [str(pk) for pk in Activity.objects.order_by("-pk").values_list("pk", flat=True)]


@pytest.mark.parametrize(
    "query",
    [
        *("from=x", "from=/-1", "from=/" + "9" * 40, "from=zz/1", "actor_kind=ghost&verb=x", "actor=%00"),
        *("actor=" + "x" * 900, "since=x", "since=0001-01-01T00:00", "until=9999-12-31T23:59", "object_id=x"),
        *("object_kind=job&object_id=x", "since=2026-13-01T00:00"),
    ],
)
def test_odd_filters_are_answered(boss: Client, query: str) -> None:
    JobEventFactory.create(actor_kind="user")
    assert boss.get(f"{reverse(URL)}?{query}").status_code == 200


def test_the_screen_takes_its_permission_and_changes_nothing(looker: Client) -> None:
    before = dump_tables()
    assert looker.get(reverse(URL)).status_code == 200
    assert looker.post(reverse(URL)).status_code == 405
    assert dump_tables() == before
    stranger = User.objects.create_user("stranger", is_staff=True)
    assert log_in(stranger).get(reverse(URL)).status_code == 403


def test_params_are_shown_to_users_who_may_see_payload_only() -> None:
    row = ActivityFactory.create(action="template.update", object_kind="template", after={"params": {"text": "plain"}})
    reader, auditor = log_in(create_reader("reader")), log_in(create_reader("auditor", "view_payload"))
    for url in (reverse(URL), get_page_url(row)):
        assert "plain" not in reader.get(url).content.decode()
        assert "plain" in auditor.get(url).content.decode()


def test_the_path_of_a_webhook_url_is_shown_to_users_who_may_see_payload_only() -> None:
    endpoint, _ = webhooks.create("https://example.org/hooks/hidden-path", ["job.*"])
    row = Activity.objects.get(object_id=str(endpoint.pk))
    reader, auditor = log_in(create_reader("reader")), log_in(create_reader("auditor", "view_payload"))
    for url in (reverse(URL), get_page_url(row)):
        assert "hidden-path" not in reader.get(url).content.decode()
        assert "hidden-path" in auditor.get(url).content.decode()


def test_the_screen_takes_as_many_statements_for_many_rows_as_for_few(boss: Client) -> None:
    ActivityFactory.create()
    JobEventFactory.create(actor_kind="user", kind="MOVED")
    baseline = count_queries(boss, reverse(URL))
    ActivityFactory.create_batch(20)
    JobEventFactory.create_batch(20, actor_kind="user", kind="MOVED")
    assert count_queries(boss, reverse(URL)) == baseline <= 9


def test_an_empty_screen_teaches(boss: Client) -> None:
    assert "No activity yet." in boss.get(reverse(URL)).content.decode()
