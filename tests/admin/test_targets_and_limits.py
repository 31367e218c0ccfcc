"""Targets and limits in the console: who holds a lane and why it is shut, what a limit lets run, and who paused it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from jobs.models import ConcurrencyLimit, Job, Lease, Target
from jobs.services import jobs as job_services
from jobs.services import targets
from jobs.states import Status
from tests.factories import ConcurrencyLimitFactory, JobFactory, LeaseFactory, TargetFactory, WorkerFactory, job_in
from tests.support.admin_pages import count_queries, get_list_url, get_page_url, list_buttons, read_messages, run_action
from tests.support.admin_users import create_reader, log_in
from tests.support.snapshots import dump_tables


def verb_of(row: Any, verb: str) -> str:
    return get_page_url(row).replace("/change/", f"/verb/{verb}/")


def create_blocked_target() -> Target:
    target = TargetFactory.create(key="book-1")
    job_in(Status.FAILED, target="book-1", status_reason="out of ink")
    JobFactory.create_batch(3, target="book-1")
    return target


def test_the_list_says_who_holds_a_lane_why_it_is_shut_and_who_waits(boss: Client) -> None:
    create_blocked_target()
    TargetFactory.create(key="book-2")
    targets.pause("book-3", reason="on holiday")
    job_in(Status.RUNNING, target="book-2")
    page = boss.get(get_list_url(Target)).content.decode()
    for text in ("until retried or resolved", "out of ink", "</span> 3<", "on holiday", "Running"):
        assert text in page, text
    rows = boss.get(f"{get_list_url(Target)}?blocked=1").context["cl"].result_list
    assert [target.key for target in rows] == ["book-1"]
    assert [target.key for target in boss.get(f"{get_list_url(Target)}?paused=1").context["cl"].result_list] == [
        "book-3"
    ]


def test_a_lane_that_was_just_used_is_in_the_list(boss: Client) -> None:
    job_services.enqueue("system.noop", target="new")
    assert [target.key for target in boss.get(get_list_url(Target)).context["cl"].result_list] == ["new"]


def test_a_page_shows_who_waits_in_order(boss: Client) -> None:
    target = create_blocked_target()
    urgent = JobFactory.create(target="book-1", priority=100)
    page = boss.get(get_page_url(target)).content.decode()
    waiting = page[page.index("target-queue") :]
    first = Job.objects.filter(target="book-1", priority=50, status=Status.QUEUED).earliest("position")
    assert waiting.index(str(urgent.pk)) < waiting.index(str(first.pk))


@pytest.mark.parametrize("key", ['a "b" & c', "50% #1", "back\\slash", "plain"])
def test_a_page_leads_to_all_jobs_of_its_target_whatever_its_name(boss: Client, key: str) -> None:
    job_in(Status.RUNNING, target=key)
    job_in(Status.RUNNING, target="another")
    page = boss.get(get_page_url(TargetFactory.create(key=key)))
    (table,) = page.context["tables"]
    rows = boss.get(table["list_url"]).context["cl"].result_list
    assert [job.target for job in rows] == [key]


def test_a_target_is_paused_and_unpaused_under_ones_name_from_list_and_page(db: Any) -> None:
    client = log_in(create_reader("operator", "pause_target"))
    target = TargetFactory.create()
    assert list_buttons(client, target) == ["pause"]
    assert client.post(verb_of(target, "pause"), {"reason": "tea"})["Location"] == get_page_url(target)
    target.refresh_from_db()
    assert (target.paused, target.paused_by, target.reason) == (True, "operator", "tea")
    assert list_buttons(client, target) == ["unpause"]
    assert read_messages(run_action(client, "unpause", [target])) == "1 target resumed."
    target.refresh_from_db()
    assert not target.paused
    assert LogEntry.objects.count() == 2


def test_what_failed_is_resolved_after_a_second_look(boss: Client) -> None:
    target, free = create_blocked_target(), TargetFactory.create(key="free")
    assert set(list_buttons(boss, target)) == {"pause", "resolve"}
    assert list_buttons(boss, free) == ["pause"]
    asked = boss.post(verb_of(target, "resolve"), {"reason": "seen"})
    assert ("Nothing has changed yet." in asked.content.decode(), 'value="seen"' in asked.content.decode()) == (
        True,
        True,
    )
    assert targets.get_states([target])[0].blocked_by is not None
    assert boss.post(verb_of(target, "resolve"), {"reason": "seen", "confirmed": "1"}).status_code == 302
    assert targets.get_states([target])[0].blocked_by is None
    assert "no failed job blocks it" in read_messages(boss.post(verb_of(free, "resolve"), {"confirmed": "1"}))


def test_a_second_look_at_a_selection_keeps_the_selection(boss: Client) -> None:
    target = create_blocked_target()
    asked = boss.post(
        get_list_url(Target), {"action": "resolve", "_selected_action": [target.pk], "index": 0}
    ).content.decode()
    assert f'name="_selected_action" value="{target.pk}"' in asked
    assert read_messages(run_action(boss, "resolve", [target], confirmed="1")) == "1 target unblocked."


def test_a_limit_shows_what_is_in_use_and_who_paused_it(boss: Client) -> None:
    ConcurrencyLimitFactory.create(scope="resource", key="smtp", max=3)
    JobFactory.create_batch(2, running=True, resource="smtp")
    page = boss.get(get_list_url(ConcurrencyLimit)).content.decode()
    assert "2 / 3" in page
    limit = ConcurrencyLimit.objects.get()
    assert "2 / 3" in boss.get(get_page_url(limit)).content.decode()
    boss.post(verb_of(limit, "pause"), {"reason": "relay is down"})
    page = boss.get(get_list_url(ConcurrencyLimit)).content.decode()
    assert ("relay is down" in page, "boss" in page) == (True, True)
    assert "relay is down" in boss.get(get_list_url(Job)).content.decode()  # the banner above every list of jobs


def test_each_maximum_in_the_list_has_a_label_of_its_own(boss: Client) -> None:
    ConcurrencyLimitFactory.create(scope="resource", key="smtp", max=3)
    ConcurrencyLimitFactory.create(scope="tenant", key="acme", max=3)
    labels = re.findall(r'name="form-\d-max"[^>]*aria-label="([^"]+)"', read(boss, get_list_url(ConcurrencyLimit)))
    assert labels == ["Maximum: Resource smtp", "Maximum: Tenant acme"]


def read(client: Client, url: str) -> str:
    return client.get(url).content.decode()


def test_a_limit_says_when_the_slots_of_its_workers_are_fewer(boss: Client) -> None:
    everything = ConcurrencyLimitFactory.create(scope="global", key="", max=5)
    smtp = ConcurrencyLimitFactory.create(scope="resource", key="smtp", max=2)
    acme = ConcurrencyLimitFactory.create(scope="tenant", key="acme", max=1)
    pages = (get_list_url(ConcurrencyLimit), get_page_url(everything))
    assert all("no running worker" in read(boss, url) for url in pages)
    WorkerFactory.create(slots=3, serves={"types": ["a"], "resources": ["smtp"]})
    WorkerFactory.create(slots=8, state="QUIET", request="QUIET", serves={"types": ["a"]})
    WorkerFactory.create(slots=1, serves={"types": ["a"], "resources": ["gpu"], "tenant": "default"})
    note = "Workers have only 4 slots: the limit is not reached."
    assert all(note in read(boss, url) for url in pages)
    assert ("is not reached" in read(boss, get_page_url(smtp)), "no running" in read(boss, get_page_url(acme))) == (
        False,
        False,
    )


def test_slots_of_workers_that_exclude_a_resource_do_not_count_for_its_limit(boss: Client) -> None:
    smtp = ConcurrencyLimitFactory.create(scope="resource", key="smtp", max=5)
    WorkerFactory.create(slots=3, serves={"types": ["a"]})
    WorkerFactory.create(slots=8, serves={"types": ["a"], "excluded_resources": ["smtp"]})
    assert "Workers have only 3 slots: the limit is not reached." in read(boss, get_page_url(smtp))


def test_the_page_of_a_limit_has_one_way_to_pause_it(boss: Client) -> None:
    limit = ConcurrencyLimitFactory.create(scope="resource", key="smtp", max=2)
    page = read(boss, get_page_url(limit))
    assert (page.count("/verb/pause/"), 'name="paused"' in page) == (1, False)
    boss.post(get_page_url(limit), {"max": "2", "overridden": "on", "paused": "on"})
    limit.refresh_from_db()
    assert not limit.paused


def test_who_may_pause_resources_changes_no_other_limit(db: Any) -> None:
    smtp = ConcurrencyLimitFactory.create(scope="resource", key="smtp", max=2)
    acme = ConcurrencyLimitFactory.create(scope="tenant", key="acme", max=2)
    operator = log_in(create_reader("ann", "pause_resource"))
    assert (list_buttons(operator, smtp), list_buttons(operator, acme)) == (["pause"], [])
    assert operator.post(verb_of(smtp, "pause"), {"reason": "toner"}).status_code == 302
    assert operator.post(verb_of(acme, "pause")).status_code == 403
    smtp.refresh_from_db()
    assert (smtp.paused, smtp.paused_by, smtp.reason) == (True, "ann", "toner")
    messages = read_messages(run_action(operator, "unpause", [smtp, acme]))
    assert ("1 skipped" in messages, "1 limit resumed" in messages) == (True, True)
    screen = reverse("admin:jobscheduler_jobs_resource", args=["pause"])
    assert operator.post(screen, {"key": "gpu", "reason": "heat"}).status_code == 302
    assert ConcurrencyLimit.objects.get(key="gpu").paused
    before = dump_tables()
    assert "form-0-max" not in read(operator, get_list_url(ConcurrencyLimit))
    operator.post(get_page_url(smtp), {"max": "9", "overridden": "on"})
    assert operator.post(verb_of(smtp, "reset")).status_code == 403
    assert log_in(create_reader("looker")).post(screen, {"key": "gpu"}).status_code == 403
    assert dump_tables() == before


def edit(client: Client, limit: ConcurrencyLimit, maximum: str) -> Any:
    form = {"form-TOTAL_FORMS": "1", "form-INITIAL_FORMS": "1", "form-0-id": limit.pk, "form-0-max": maximum}
    return client.post(get_list_url(ConcurrencyLimit), {**form, "_save": "Save"})


def test_a_maximum_is_changed_in_the_list(boss: Client) -> None:
    limit = ConcurrencyLimitFactory.create(max=1, overridden=False)
    assert edit(boss, limit, "7").status_code == 302
    limit.refresh_from_db()
    assert (limit.max, limit.overridden) == (7, True)
    edit(boss, limit, "")
    limit.refresh_from_db()
    assert limit.max is None


@pytest.mark.parametrize("maximum", ["0", "-1", "many", "9" * 30])
def test_a_bad_maximum_in_the_list_is_told_and_changes_nothing(boss: Client, maximum: str) -> None:
    limit = ConcurrencyLimitFactory.create(max=1)
    before = dump_tables()
    assert "errorlist" in edit(boss, limit, maximum).content.decode()
    assert dump_tables() == before


def test_an_override_is_put_back_and_one_that_says_nothing_then_is_gone(boss: Client, settings: Any) -> None:
    settings.JOBSCHEDULER = {"LIMITS": {"resource": {"smtp": 7}}}
    known = ConcurrencyLimitFactory.create(scope="resource", key="smtp", max=1)
    own = ConcurrencyLimitFactory.create(scope="resource", key="other", max=1)
    assert boss.post(verb_of(known, "reset"))["Location"] == get_page_url(known)
    known.refresh_from_db()
    assert (known.max, known.overridden) == (7, False)
    assert boss.post(verb_of(own, "reset"))["Location"] == get_list_url(ConcurrencyLimit)
    assert not ConcurrencyLimit.objects.filter(pk=own.pk).exists()


def test_who_may_only_look_is_offered_nothing_and_changes_nothing(looker: Client) -> None:
    rows = [create_blocked_target(), ConcurrencyLimitFactory.create()]
    before = dump_tables()
    for row in rows:
        assert list_buttons(looker, row) == []
        for verb in ("pause", "unpause", "resolve", "reset"):
            assert looker.post(verb_of(row, verb), {"confirmed": "1"}).status_code in (403, 404)
            run_action(looker, verb, [row], confirmed="1")
    assert "form-0-max" not in looker.get(get_list_url(ConcurrencyLimit)).content.decode()
    assert edit(looker, ConcurrencyLimit.objects.get(), "9").status_code in (200, 302, 403)
    assert dump_tables() == before


def test_lists_take_as_many_statements_for_many_rows_as_for_few(boss: Client) -> None:
    create_blocked_target()
    ConcurrencyLimitFactory.create()
    baseline = {model: count_queries(boss, get_list_url(model)) for model in (Target, ConcurrencyLimit)}
    for number in range(20):
        TargetFactory.create(key=f"many-{number}")
        job_in(Status.PAUSED, target=f"many-{number}")
        ConcurrencyLimitFactory.create()
    assert {model: count_queries(boss, get_list_url(model)) for model in baseline} == baseline
    assert max(baseline.values()) <= 14


def test_empty_lists_teach(boss: Client) -> None:
    assert "No targets yet." in boss.get(get_list_url(Target)).content.decode()
    assert "No limit has a row yet." in boss.get(get_list_url(ConcurrencyLimit)).content.decode()


def test_rows_that_a_verb_does_not_suit_are_left_alone_and_told(boss: Client) -> None:
    targets.pause("book-1")
    TargetFactory.create(key="book-2")
    messages = read_messages(run_action(boss, "unpause", Target.objects.all()))
    assert "1 unchanged" in messages
    assert "1 target resumed" in messages
    assert LogEntry.objects.count() == 1


@pytest.mark.parametrize("key", ["9" * 26, "-" + "9" * 26, "nine"])
def test_a_key_that_cannot_be_one_selects_nothing(key: str, boss: Client) -> None:
    ConcurrencyLimitFactory.create()
    before = dump_tables()
    assert boss.post(get_list_url(ConcurrencyLimit), {"action": "pause", "_selected_action": [key]}).status_code == 302
    assert dump_tables() == before


# ---------------------------------------------------------------------- leases


def test_a_direct_call_is_ended_after_a_second_look_and_the_history_says_by_whom(db: Any) -> None:
    call = LeaseFactory.create(kind="DIRECT", job_type="story.generate")
    operator = log_in(create_reader("ann", "end_lease"))
    assert list_buttons(operator, call) == ["end"]
    assert "Nothing has changed yet." in operator.post(verb_of(call, "end")).content.decode()
    call.refresh_from_db()
    assert call.ended_at is None
    operator.post(verb_of(call, "end"), {"confirmed": "1", "reason": "too slow"})
    call.refresh_from_db()
    assert (call.ended_at is None, call.outcome) == (False, "ended by ann: too slow")
    assert LogEntry.objects.get(object_id=str(call.pk)).change_message == "end: too slow"
    assert list_buttons(operator, call) == []


def test_ending_a_direct_call_takes_its_own_permission(looker: Client) -> None:
    call = LeaseFactory.create(kind="DIRECT")
    assert list_buttons(looker, call) == []
    assert looker.post(verb_of(call, "end"), {"confirmed": "1"}).status_code == 403
    run_action(looker, "end", [call])
    call.refresh_from_db()
    assert call.ended_at is None


def test_live_direct_calls_are_found_and_ended_together_and_other_leases_stay(boss: Client) -> None:
    calls = [LeaseFactory.create(kind="DIRECT") for _ in range(2)]
    admission, over = LeaseFactory.create(), LeaseFactory.create(kind="DIRECT", ended_at=timezone.now())
    assert set(boss.get(f"{get_list_url(Lease)}?live=1").context["cl"].result_list) == set(calls)
    response = run_action(boss, "end", [*calls, admission, over])
    assert "2 direct calls ended" in read_messages(response)
    assert Lease.objects.filter(outcome="ended by boss").count() == 2
    assert Lease.objects.get(pk=admission.pk).ended_at is None
