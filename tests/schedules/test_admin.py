"""Schedules in the console: same validation as the API, actions by permission, past and next fires on the page."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.utils import timezone

from jobs.models import Job
from schedules import history, services, validation
from schedules.firing import fire_due
from schedules.models import CatchUp, Overlap, Schedule, ScheduleFire
from tests.factories import JobFactory, JobTemplateFactory, ScheduleFactory
from tests.support.admin_pages import count_queries, get_list_url, get_page_url, read_messages, run_action
from tests.support.admin_users import create_reader, log_in
from tests.support.schedules import NOON, TYPE, create_due_schedule, create_schedule, list_fire_times
from tests.support.snapshots import dump_tables

FORM = {
    "name": "nightly",
    "tenant": "default",
    "enabled": "on",
    "job_type": TYPE,
    "params": '{"a": 1}',
    "cron": "0 3 * * *",
    "timezone": "Europe/Berlin",
    "catch_up": "latest",
    "catch_up_max": "10",
    "misfire_grace_sec": "60",
    "overlap": "allow",
    "jitter_sec": "0",
}


def post_form(client: Client, **data: str) -> Any:
    return client.post(f"{get_list_url(Schedule)}add/", {**FORM, **data})


def read_errors(response: Any) -> dict[str, str]:
    assert response.status_code == 200
    return {name: " ".join(error) for name, error in response.context["adminform"].form.errors.items()}


def get_action_url(row: Schedule, verb: str) -> str:
    return get_page_url(row).replace("/change/", f"/verb/{verb}/")


def test_a_schedule_created_here_is_like_one_of_the_api(boss: Client) -> None:
    assert boss.get(f"{get_list_url(Schedule)}add/").status_code == 200
    assert post_form(boss, priority="75", target="book-1").status_code == 302
    row = Schedule.objects.get()
    assert (row.cron, row.timezone, row.params, row.priority, row.target) == (
        "0 3 * * *",
        "Europe/Berlin",
        {"a": 1},
        75,
        "book-1",
    )
    assert row.next_fire_at is not None
    assert LogEntry.objects.get().object_id == str(row.pk)


def test_the_other_rules_and_a_template(boss: Client) -> None:
    template = JobTemplateFactory.create(name="preset", job_type=TYPE)
    assert post_form(boss, cron="", every_sec="90", template=str(template.pk), job_type="").status_code == 302
    once = {"cron": "", "run_at_0": "2099-01-01", "run_at_1": "00:00:00"}
    assert post_form(boss, name="once", **once).status_code == 302
    every, single = Schedule.objects.order_by("pk")
    assert (every.every_sec, every.template, every.job_type) == (90, template, "")
    assert every.anchor_at is not None
    assert single.next_fire_at == single.run_at


@pytest.mark.parametrize(
    ("field", "data", "reason"),
    [
        ("cron", {"cron": "61 * * * *"}, "bad field: minute"),
        ("cron", {"cron": "0 0 31 2 *"}, "never comes due"),
        ("cron", {"cron": ""}, "exactly one of"),
        ("every_sec", {"every_sec": "60"}, "exactly one of"),
        ("every_sec", {"cron": "", "every_sec": "0"}, ""),
        ("every_sec", {"cron": "", "every_sec": "9" * 5000}, ""),
        ("timezone", {"timezone": "Mars/Phobos"}, "There is no time zone"),
        ("timezone", {"timezone": "../../etc/passwd"}, "There is no time zone"),
        ("job_type", {"job_type": ""}, "either a job type or a template"),
        ("job_type", {"job_type": "no.such.type"}, ""),
        ("params", {"params": "["}, ""),
        ("params", {"job_type": "tests.note", "params": '{"text": 5}'}, "text"),
        ("run_at", {"cron": "", "run_at_0": "2020-01-01", "run_at_1": "00:00"}, "has passed"),
        ("target", {"target": "a/b"}, "slash"),
        ("tenant", {"tenant": "a b"}, ""),
        ("name", {"name": "a\tb"}, "control"),
        ("name", {"name": ""}, ""),
        ("catch_up", {"catch_up": "some"}, ""),
        ("catch_up_max", {"catch_up_max": "0"}, ""),
        ("priority", {"priority": "101"}, ""),
        ("jitter_sec", {"jitter_sec": "-1"}, ""),
    ],
)
def test_bad_input_is_refused_at_its_field_with_the_reason(field: str, data: Any, reason: str, boss: Client) -> None:
    before = dump_tables()
    errors = read_errors(post_form(boss, **data))
    assert (set(errors), reason in errors[field]) == ({field}, True), errors
    assert dump_tables() == before
    row = create_schedule(name="there")
    before = dump_tables()
    if field != "tenant":
        boss.post(get_page_url(row), {**FORM, **data})
        assert dump_tables() == before


def test_no_error_is_the_text_of_a_database_constraint(boss: Client) -> None:
    errors = read_errors(post_form(boss, name="", cron="", job_type="", priority="101", params="["))
    assert "Constraint" not in str(errors), errors
    errors = read_errors(post_form(boss, name="", cron="0 3 * * *", every_sec="0"))
    assert "Constraint" not in str(errors), errors


def test_an_empty_form_has_the_defaults_of_the_services(boss: Client) -> None:
    form = boss.get(f"{get_list_url(Schedule)}add/").context["adminform"].form
    defaults = validation.clean_fields(dict.fromkeys(validation.VALIDATORS.keys() - {"name"}), {})
    for name in defaults.keys() - {"params"}:
        is_empty = defaults[name] is None or defaults[name] == ""
        assert form[name].value() in (None, "") if is_empty else form[name].value() == defaults[name]
    assert not form["params"].value()
    expected = {
        "timezone": "UTC",
        "enabled": True,
        "catch_up": CatchUp.LATEST,
        "catch_up_max": 10,
        "overlap": Overlap.ALLOW,
    }
    expected |= {"misfire_grace_sec": 60, "jitter_sec": 0}
    assert {name: form[name].value() for name in expected} == expected


def test_two_cannot_share_a_name(boss: Client) -> None:
    assert post_form(boss).status_code == 302
    assert read_errors(post_form(boss))
    other = create_schedule(name="other")
    boss.post(get_page_url(other), {**FORM, "name": "nightly"})
    other.refresh_from_db()
    assert other.name == "other"


def test_an_edit_changes_the_edited_fields_and_nothing_else(boss: Client) -> None:
    row = create_schedule(
        name="nightly", cron="0 3 * * *", params={"password": "hunter2", "a": 1}, timezone="Europe/Berlin"
    )
    next_fire_at = row.next_fire_at
    masked_params = boss.get(get_page_url(row)).context["adminform"].form["params"].value()
    assert "hunter2" not in masked_params
    changed = boss.post(get_page_url(row), {**FORM, "params": masked_params.replace("1", "2")})
    assert "write its value in again" in str(read_errors(changed))
    assert boss.post(get_page_url(row), {**FORM, "params": masked_params, "priority": "3"}).status_code == 302
    row.refresh_from_db()
    assert (row.params, row.priority, row.next_fire_at, row.edited) == (
        {"password": "hunter2", "a": 1},
        3,
        next_fire_at,
        True,
    )
    boss.post(get_page_url(row), {**FORM, "params": masked_params, "cron": "30 4 * * *"})
    row.refresh_from_db()
    assert row.next_fire_at != next_fire_at


def test_an_editor_who_may_not_see_params_does_not_overwrite_them(db: Any) -> None:
    editor = log_in(create_reader("editor", "change_schedule"))
    row = create_schedule(name="nightly", params={"text": "kept"})
    assert "kept" not in editor.get(get_page_url(row)).content.decode()
    assert editor.post(get_page_url(row), {**FORM, "params": '{"text": "mine"}'}).status_code == 302
    row.refresh_from_db()
    assert (row.cron, row.params) == ("0 3 * * *", {"text": "kept"})


def test_a_reader_reads_and_changes_nothing(looker: Client) -> None:
    row = create_due_schedule()
    before = dump_tables()
    assert looker.get(get_page_url(row)).status_code == 200
    assert looker.post(get_page_url(row), FORM).status_code == 403
    assert post_form(looker).status_code == 403
    for verb in ("trigger", "skip", "enable", "disable"):
        assert looker.post(get_action_url(row, verb)).status_code == 403
        run_action(looker, verb, [row])
    assert dump_tables() == before


VERBS = {"trigger": "triggered", "skip": "skips its next run", "enable": "enabled", "disable": "disabled"}


@pytest.mark.parametrize("verb", VERBS)
def test_each_action_requires_its_own_permission_in_the_list_and_on_the_page(verb: str, db: Any) -> None:
    rows = [create_due_schedule(timezone.now() + timedelta(days=1)) for _ in range(2)]
    if verb == "enable":
        for row in rows:
            services.disable(row.pk)
    client = log_in(create_reader("operator", f"{verb}_schedule"))
    others = log_in(create_reader("another", *(f"{other}_schedule" for other in VERBS if other != verb)))
    assert others.post(get_action_url(rows[0], verb)).status_code == 403
    assert [button.name for button, _url in client.get(get_page_url(rows[0])).context["buttons"]] == [verb]
    messages = read_messages(run_action(client, verb, rows[:1], reason="as agreed"))
    assert f"1 schedule {VERBS[verb]}" in messages
    assert client.post(get_action_url(rows[1], verb)).status_code == 302
    assert client.get(get_action_url(rows[1], verb)).status_code == 405
    if verb == "trigger":
        assert {job.schedule_id for job in Job.objects.all()} == {row.pk for row in rows}
    else:
        for row in rows:
            row.refresh_from_db()
        assert {row.enabled for row in rows} == {verb != "disable"}


def test_an_action_that_fails_says_why(boss: Client) -> None:
    disabled, broken = (
        create_schedule(enabled=False, name="disabled"),
        ScheduleFactory.create(job_type="gone", name="broken"),
    )
    messages = read_messages(run_action(boss, "skip", [disabled]))
    assert "0 schedules skip their next run" in messages
    assert "“disabled” has no next run to skip" in messages
    assert "gone" in read_messages(run_action(boss, "trigger", [broken]))


def test_the_page_shows_next_and_past_fires(boss: Client) -> None:
    row = create_due_schedule(cron="30 2 * * *", timezone="Europe/Berlin", misfire_grace_sec=3600)
    Schedule.objects.filter(pk=row.pk).update(next_fire_at="2027-03-27T01:30:00Z")
    page = boss.get(get_page_url(row)).content.decode()
    assert "2027-03-27T02:30:00+01:00" in page
    assert "02:30 does not exist on this day" in page
    assert "No runs yet." in page
    other = create_due_schedule(NOON)
    fire_due(NOON)
    page = boss.get(get_page_url(other)).content.decode()
    assert str(list_fire_times(other)[0].date()) in page
    assert str(ScheduleFire.objects.get(schedule=other).job_id) in page
    assert "clocks" in boss.get(get_list_url(Schedule)).content.decode() or row.next_fire_at is not None


def test_a_broken_row_can_be_opened_listed_and_repaired(boss: Client) -> None:
    row = ScheduleFactory.create(
        name="broken", cron="nonsense", timezone="Mars/Phobos", job_type="gone", next_fire_at=NOON
    )
    assert boss.get(get_list_url(Schedule)).status_code == 200
    page = boss.get(get_page_url(row)).content.decode()
    assert "This schedule is broken" in page
    assert boss.post(get_page_url(row), FORM).status_code == 302
    row.refresh_from_db()
    assert (row.cron, row.job_type) == ("0 3 * * *", TYPE)


def test_deleting_goes_through_the_services_and_lists_no_fires(boss: Client) -> None:
    row, other = create_due_schedule(), create_due_schedule()
    fire_due(NOON)
    url = get_page_url(row).replace("/change/", "/delete/")
    baseline = count_queries(boss, url)
    ScheduleFire.objects.bulk_create(
        [ScheduleFire(schedule=row, fire_time=NOON - timedelta(minutes=n)) for n in range(1, 300)]
    )
    assert count_queries(boss, url) == baseline
    assert boss.post(url, {"post": "yes"}).status_code == 302
    run_action(boss, "delete_selected", [other], post="yes")
    assert not Schedule.objects.exists()
    assert not ScheduleFire.objects.exists()
    assert Job.objects.filter(schedule=None).count() == 2


def test_a_page_takes_as_many_queries_for_many_fires_as_for_few(boss: Client) -> None:
    row = create_due_schedule(misfire_grace_sec=3600)
    fire_due(NOON)
    baseline = count_queries(boss, get_page_url(row))
    fire_due(NOON + timedelta(minutes=30))
    assert count_queries(boss, get_page_url(row)) == baseline


@pytest.mark.django_db
def test_a_template_takes_the_permission_to_run_templates() -> None:
    template = JobTemplateFactory.create(name="preset", job_type=TYPE)
    clerk = log_in(create_reader("clerk", "add_schedule", "change_schedule", "view_payload"))
    errors = read_errors(post_form(clerk, template=str(template.pk), job_type=""))
    assert errors.keys() == {"template"}
    assert not Schedule.objects.exists()
    row = ScheduleFactory.create(name="nightly", template=template, job_type="")
    data = {**FORM, "template": str(template.pk), "job_type": "", "cron": "5 5 * * *"}
    assert clerk.post(get_page_url(row), data).status_code == 302, "it has had this template before"
    runner = log_in(create_reader("runner", "add_schedule", "run_jobtemplate"))
    assert post_form(runner, name="other", template=str(template.pk), job_type="").status_code == 302


def test_a_manual_run_is_in_the_list_of_runs(boss: Client) -> None:
    row = create_schedule(name="nightly")
    assert "No runs yet." in boss.get(get_page_url(row)).content.decode()
    boss.post(get_action_url(row, "trigger"))
    page = boss.get(get_page_url(row)).content.decode()
    assert ("No runs yet." in page, "<td>manual</td>" in page) == (False, True)
    assert f"…{str(Job.objects.get().pk)[-12:]}" in page


def test_manual_and_scheduled_runs_are_listed_together_and_retries_are_not(boss: Client) -> None:
    row = create_due_schedule(misfire_grace_sec=3600)
    fire_due(NOON)
    manual = services.trigger(row.pk)
    JobFactory.create(retry_of=JobFactory.create(failed=True, schedule_id=row.pk), schedule_id=row.pk, attempt=2)
    runs = history.list_runs(row, 20)
    assert [run.due is None for run in runs].count(True) == 2  # the second is the failed one, its retry is no run
    assert runs[1].job_id == manual.pk or runs[0].job_id == manual.pk
    assert [run.due for run in history.list_runs(row, 1)] == [None]


NOTE = {"job_type": "tests.note", "params_of": "tests.note"}


def test_params_have_fields_from_the_signature_of_the_handler(boss: Client) -> None:
    page = boss.get(f"{get_list_url(Schedule)}add/?job_type=tests.note")
    assert "param-text" in page.context["adminform"].form.fields
    assert post_form(boss, **NOTE, **{"param-text": "hello"}).status_code == 302
    row = Schedule.objects.get()
    assert (row.job_type, row.params) == ("tests.note", {"text": "hello"})
    form = boss.get(get_page_url(row)).context["adminform"].form
    assert (form["param-text"].value(), form["params_of"].value()) == ("hello", "tests.note")
    assert boss.post(get_page_url(row), {**FORM, **NOTE, "param-text": "bye"}).status_code == 302
    row.refresh_from_db()
    assert row.params == {"text": "bye"}
    assert boss.post(get_page_url(row), {**FORM, **NOTE, "param-text": "bye", "priority": "7"}).status_code == 302
    row.refresh_from_db()
    assert (row.params, row.priority) == ({"text": "bye"}, 7)


def test_a_missing_param_is_reported_at_its_field(boss: Client) -> None:
    errors = read_errors(post_form(boss, **NOTE, **{"param-text": ""}))
    assert set(errors) == {"param-text"}


def test_params_of_another_job_type_are_asked_for_first(boss: Client) -> None:
    response = post_form(boss, params_of="tests.note", **{"param-text": "hello"})
    assert "Another job type has other params" in read_errors(response)["job_type"]
    assert not Schedule.objects.exists()


def test_the_chosen_kind_of_rule_replaces_the_others(boss: Client) -> None:
    assert post_form(boss, kind="every", every_sec="90").status_code == 302
    row = Schedule.objects.get()
    assert (row.cron, row.every_sec) == (None, 90)
    assert boss.get(get_page_url(row)).context["adminform"].form["kind"].value() == "every"
    data = {**FORM, "kind": "cron", "every_sec": "90"}
    response = boss.post(get_page_url(row), data)
    assert response.status_code == 302
    row.refresh_from_db()
    assert (row.cron, row.every_sec, row.anchor_at) == ("0 3 * * *", None, None)
