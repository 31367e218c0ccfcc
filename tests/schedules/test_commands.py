"""`manage.py schedules` calls the services and exits with documented codes."""

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


def test_a_schedule_is_created_and_listed() -> None:
    assert call(*NIGHTLY).code == 0
    row = Schedule.objects.get()
    assert (row.name, row.cron, row.timezone, row.params) == ("nightly", "0 3 * * *", "Europe/Berlin", {"a": 1})
    listing = call("schedules", "list")
    assert "nightly" in listing.out
    assert "0 3 * * * Europe/Berlin" in listing.out
    (document,) = call("schedules", "list", "--json").json
    assert (document["name"], document["next_fire_at"]) == (
        "nightly",
        listing.out.split("\n")[1].split("  ")[4].strip(),
    )


def test_every_option_sets_its_field() -> None:
    JobTemplateFactory.create(name="preset", job_type=TYPE, tenant="acme")
    rule = ("--every", "15m", "--anchor", "2026-01-01T00:00:00Z", "--max-fires", 3, "--priority", "HIGH")
    policy = (
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
    remaining = ("--grace", "2m", "--jitter", "0", "--fire-time-param", "when", "--disabled", "--tenant", "acme")
    result = call(
        *("schedules", "create", "often", "--template", "preset", "--params", '{"x": 1}'), *rule, *policy, *remaining
    )
    assert (result.code, result.err) == (0, "")
    row = Schedule.objects.get()
    assert (row.every_sec, row.anchor_at.isoformat() if row.anchor_at else "") == (900, "2026-01-01T00:00:00+00:00")
    assert (row.max_fires, row.priority, row.target, row.resource) == (3, 75, "book-1", "attic")
    assert (row.catch_up, row.catch_up_max, row.overlap, row.misfire_grace_sec) == ("all", 5, "skip", 120)
    assert (row.jitter_sec, row.fire_time_param, row.enabled, row.tenant) == (0, "when", False, "acme")
    assert (row.params, row.template is not None) == ({"x": 1}, True)
    assert call("schedules", "add", "soon", TYPE, "--at", "+10m").code == 0


def test_params_and_options_may_come_in_any_order() -> None:
    result = call(
        "schedules", "add", "--cron", "@daily", "nightly", TYPE, "--priority", 3, "a=1", "--target", "t", "b=2"
    )
    assert (result.code, Schedule.objects.get().params) == (0, {"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("arguments", "message"),
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
def test_bad_input_is_exit_code_2_and_one_line(arguments: tuple[Any, ...], message: str) -> None:
    result = call("schedules", "add", *arguments)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert message in result.err
    assert not Schedule.objects.exists()


def test_actions_by_name_and_by_id() -> None:
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
def test_an_unknown_schedule_is_exit_code_1(verb: str) -> None:
    result = call("schedules", verb, "nowhere")
    assert (result.code, result.err) == (1, "There is no such schedule.\n")


def test_previews_and_fires() -> None:
    output = call("schedules", "preview", "--cron", "30 2 * * *", "--timezone", "Europe/Berlin", "--count", 3).out
    assert output.count("T02:30:00+0") == 3 or "does not exist" in output
    assert call("schedules", "preview").code == 2
    assert call("schedules", "preview", "--cron", "@daily", "--count", "0").code == 2
    assert call("schedules", "preview", "--cron", "0 0 31 2 *").code == 2
    row = create_due_schedule(name="busy")
    fire_due(NOON)
    assert call("schedules", "preview", "busy", "--json").json[0]["fire_at"] == "2026-06-15T12:01:00Z"
    (fire,) = call("schedules", "fires", "busy", "--json").json
    assert (fire["job_id"], fire["outcome"]) == (str(list_jobs(row)[0].pk), "QUEUED")
    assert "2026-06-15T12:00:00Z  QUEUED" in call("schedules", "fires", "busy").out


def test_every_tick_fires_due_schedules() -> None:
    from django.utils import timezone

    row = create_due_schedule(timezone.now().replace(second=0, microsecond=0), misfire_grace_sec=3600)
    first = call("tick")
    assert (first.code, "schedules: 1" in first.out) == (0, True)
    Schedule.objects.update(next_fire_at=timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=1))
    assert "schedules: 1" in call("tick").out
    assert len(list_jobs(row)) == 2


def test_the_command_also_runs_through_jobscheduler() -> None:
    call(*NIGHTLY)
    assert "nightly" in call("jobscheduler", "schedules", "list").out
