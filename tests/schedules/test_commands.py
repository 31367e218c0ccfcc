"""`manage.py schedules`: the same services at a terminal, with exit codes that scripts can trust."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from jobs.models import Job
from schedules import services
from schedules.firing import fire_due
from schedules.models import Schedule
from tests.factories import JobTemplateFactory
from tests.support.commands import call
from tests.support.schedules import NOON, TYPE, create_due_schedule, list_jobs

pytestmark = pytest.mark.django_db

NIGHTLY = ("schedules", "add", "nightly", TYPE, "a=1", "--cron", "0 3 * * *", "--timezone", "Europe/Berlin")


def test_a_schedule_is_made_and_listed() -> None:
    assert call(*NIGHTLY).code == 0
    row = Schedule.objects.get()
    assert (row.name, row.cron, row.timezone, row.params) == ("nightly", "0 3 * * *", "Europe/Berlin", {"a": 1})
    listed = call("schedules", "list")
    assert "nightly" in listed.out
    assert "0 3 * * * Europe/Berlin" in listed.out
    (document,) = call("schedules", "list", "--json").json
    assert (document["name"], document["next_fire_at"]) == ("nightly", listed.out.split("\n")[1].split("  ")[4].strip())


def test_every_option_arrives_where_it_belongs() -> None:
    JobTemplateFactory.create(name="preset", job_type=TYPE, tenant="acme")
    options = ("--every", "15m", "--anchor", "2026-01-01T00:00:00Z", "--max-fires", 3, "--priority", "HIGH")
    others = (
        "--target",
        "book-1",
        "--resource",
        "attic",
        "--catch-up",
        "all",
        "--catch-up-max",
        5,
        "--overlap",
        "skip",
    )
    last = ("--grace", "2m", "--jitter", "0", "--fire-time-param", "when", "--disabled", "--tenant", "acme")
    result = call(
        *("schedules", "create", "often", "--template", "preset", "--params", '{"x": 1}'), *options, *others, *last
    )
    assert (result.code, result.err) == (0, "")
    row = Schedule.objects.get()
    assert (row.every_sec, row.anchor_at.isoformat() if row.anchor_at else "") == (900, "2026-01-01T00:00:00+00:00")
    assert (row.max_fires, row.priority, row.target, row.resource) == (3, 75, "book-1", "attic")
    assert (row.catch_up, row.catch_up_max, row.overlap, row.misfire_grace_sec) == ("all", 5, "skip", 120)
    assert (row.jitter_sec, row.fire_time_param, row.enabled, row.tenant) == (0, "when", False, "acme")
    assert (row.params, row.template is not None) == ({"x": 1}, True)
    assert call("schedules", "add", "soon", TYPE, "--at", "+10m").code == 0


def test_params_and_options_may_stand_in_any_order() -> None:
    result = call(
        "schedules", "add", "--cron", "@daily", "nightly", TYPE, "--priority", 3, "a=1", "--target", "t", "b=2"
    )
    assert (result.code, Schedule.objects.get().params) == (0, {"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("nightly", TYPE), "exactly one of cron"),
        (("nightly", TYPE, "--cron", "61 * * * *"), "bad field: minute"),
        (("nightly", TYPE, "--cron", "0 0 31 2 *"), "never comes due"),
        (("nightly", TYPE, "--cron", "@daily", "--timezone", "Mars/Phobos"), "There is no time zone"),
        (("nightly", TYPE, "--cron", "@daily", "--timezone", "../../etc/passwd"), "There is no time zone"),
        (("nightly", "no.such.type", "--cron", "@daily"), "There is no job type"),
        (("nightly", "--cron", "@daily"), "either a job type or a template"),
        (("nightly", "a=1", "--cron", "@daily"), "either a job type or a template"),
        (("nightly", TYPE, "b", "--cron", "@daily"), "key=value"),
        (("nightly", TYPE, "--params", "{", "--cron", "@daily"), "not valid JSON"),
        (("nightly", TYPE, "--every", "soon"), "--every"),
        (("nightly", TYPE, "--every", "1m", "--cron", "@daily"), "exactly one of cron"),
        (("nightly", TYPE, "--cron", "@daily", "--catch-up", "some"), "none, latest, all"),
        (("nightly", TYPE, "--cron", "@daily", "--max-fires", "x"), "--max-fires"),
        (("nightly", TYPE, "--at", "yesterday"), "--at"),
        (("nightly", TYPE, "--at", "2020-01-01T00:00:00Z"), "has passed"),
    ],
)
def test_nonsense_is_exit_code_2_and_one_line(words: tuple[Any, ...], text: str) -> None:
    result = call("schedules", "add", *words)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert text in result.err
    assert not Schedule.objects.exists()


def test_verbs_by_name_and_by_id() -> None:
    call(*NIGHTLY)
    row = Schedule.objects.get()
    assert call("schedules", "disable", "nightly", "--reason", "too loud").code == 0
    row.refresh_from_db()
    assert (row.enabled, row.disabled_reason) == (False, "too loud")
    assert "disabled: too loud" in call("schedules", "list").out
    assert call("schedules", "skip-next", "nightly").code == 1
    assert call("schedules", "enable", str(row.pk)).code == 0
    before = services.get(row.pk).next_fire_at
    after = call("schedules", "skip-next", "nightly", "--json").json["next_fire_at"]
    assert before is not None
    assert after > before.isoformat()
    triggered = call("schedules", "trigger", "nightly")
    assert str(Job.objects.get().pk) == triggered.out.strip()
    assert call("schedules", "delete", "nightly").code == 0
    assert not Schedule.objects.exists()


@pytest.mark.parametrize("verb", ["enable", "disable", "skip-next", "trigger", "delete", "preview", "fires"])
def test_what_is_not_there_is_exit_code_1(verb: str) -> None:
    result = call("schedules", verb, "nowhere")
    assert (result.code, result.err) == (1, "There is no such schedule.\n")


def test_previews_and_fires() -> None:
    lines = call("schedules", "preview", "--cron", "30 2 * * *", "--timezone", "Europe/Berlin", "--count", 3).out
    assert lines.count("T02:30:00+0") == 3 or "does not exist" in lines
    assert call("schedules", "preview").code == 2
    assert call("schedules", "preview", "--cron", "@daily", "--count", "0").code == 2
    assert call("schedules", "preview", "--cron", "0 0 31 2 *").code == 2
    row = create_due_schedule(name="busy")
    fire_due(NOON)
    assert call("schedules", "preview", "busy", "--json").json[0]["fire_at"] == "2026-06-15T12:01:00Z"
    (fire,) = call("schedules", "fires", "busy", "--json").json
    assert (fire["job_id"], fire["outcome"]) == (str(list_jobs(row)[0].pk), "QUEUED")
    assert "2026-06-15T12:00:00Z  QUEUED" in call("schedules", "fires", "busy").out


def test_tick_fires_what_is_due_every_time_it_is_called() -> None:
    from django.utils import timezone

    row = create_due_schedule(timezone.now().replace(second=0, microsecond=0), misfire_grace_sec=3600)
    first = call("tick")
    assert (first.code, "schedules: 1" in first.out) == (0, True)
    Schedule.objects.update(next_fire_at=timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=1))
    assert "schedules: 1" in call("tick").out
    assert len(list_jobs(row)) == 2


def test_the_command_is_there_under_our_own_name_too() -> None:
    call(*NIGHTLY)
    assert "nightly" in call("jobscheduler", "schedules", "list").out
