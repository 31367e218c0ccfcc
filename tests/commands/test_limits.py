"""`manage.py limits`: list, set, reset and pause concurrency limits."""

from __future__ import annotations

import getpass
from typing import Any

import pytest

from jobs.engine.selection import limits as engine_limits
from jobs.models import ConcurrencyLimit
from jobs.services import jobs as job_services
from tests.factories import ConcurrencyLimitFactory, JobFactory, LeaseFactory
from tests.support.commands import call, run_process
from tests.support.executor import claim_next

pytestmark = pytest.mark.django_db


def get_limit(scope: str, key: str = "") -> dict[str, Any]:
    (limit_row,) = [row for row in call("limits", "list", "--json").json if (row["scope"], row["key"]) == (scope, key)]
    return {name: value for name, value in limit_row.items() if name not in ("scope", "key", "paused_at")}


NO_RATES = {"rate": None, "token_rate": None, "burst": None, "next_start_at": None, "tokens_left": None}
DEFAULT_LIMIT = {
    "max": 1,
    "in_use": 0,
    "paused": False,
    "paused_by": "",
    "reason": "",
    "source": "settings",
    **NO_RATES,
}


def test_list_shows_the_settings_before_any_worker_has_started() -> None:
    assert get_limit("global") == DEFAULT_LIMIT
    engine_limits.sync_limits()
    assert get_limit("global") == DEFAULT_LIMIT


def test_list_counts_use_as_a_claim_does(settings: Any) -> None:
    settings.JOBSCHEDULER = {"LIMITS": {"global": 9, "job_type": {"odd": 5}, "resource": {"gpu": 4}}}
    JobFactory.create(running=True, job_type="odd", resource="gpu")
    JobFactory.create(dispatching=True, job_type="odd")
    JobFactory.create(job_type="odd")
    LeaseFactory.create(kind="DIRECT", job_type="odd", granted_at="2030-01-01T00:00:00Z")
    LeaseFactory.create(kind="DIRECT", job_type="odd")

    limits = call("limits", "list", "--json").json

    assert [(limit["scope"], limit["key"], limit["in_use"]) for limit in limits] == [
        ("global", "", 3),
        ("job_type", "odd", 3),
        ("resource", "gpu", 1),
    ]


def test_set_overrides_the_settings_and_reset_restores_them() -> None:
    assert call("limits", "set", "global", 8, "--reason=busy day").code == 0
    assert get_limit("global") == {**DEFAULT_LIMIT, "max": 8, "source": "override", "reason": "busy day"}

    engine_limits.sync_limits()
    assert get_limit("global")["max"] == 8

    assert call("limits", "reset", "global").code == 0
    assert get_limit("global")["max"] == 1
    assert get_limit("global")["source"] == "settings"


def test_a_limit_that_is_not_in_the_settings_is_deleted_by_its_reset() -> None:
    assert call("limits", "set", "job_type", "mail.send", 3, "--json").json["max"] == 3
    assert ConcurrencyLimit.objects.filter(scope="job_type", key="mail.send", max=3, overridden=True).exists()

    assert call("limits", "reset", "job_type", "mail.send").code == 0
    assert not ConcurrencyLimit.objects.exists()


def test_unlimited_is_a_maximum() -> None:
    assert call("limits", "set", "global", "unlimited").code == 0
    assert get_limit("global")["max"] is None
    assert "unlimited" in call("limits", "list").out


def test_rates_are_set_beside_the_maximum_which_stays() -> None:
    assert call("limits", "set", "resource", "openai", 8).code == 0
    assert call("limits", "set", "resource", "openai", "--rate=60/minute", "--burst=5").code == 0
    limit = get_limit("resource", "openai")
    assert (limit["max"], limit["rate"], limit["burst"], limit["token_rate"]) == (8, "60/min", 5, None)

    assert call("limits", "set", "resource", "openai", "unlimited", "--rate=none", "--token-rate=900/s").code == 0
    limit = get_limit("resource", "openai")
    assert (limit["max"], limit["rate"], limit["burst"], limit["token_rate"]) == (None, None, None, "900/s")
    assert "900/s" in call("limits", "list").out


def test_the_global_rate_needs_no_key() -> None:
    assert call("limits", "set", "global", "--rate=2/s").code == 0
    assert (get_limit("global")["max"], get_limit("global")["rate"]) == (1, "2/s")


def test_a_pause_stops_claims_and_records_actor_and_reason() -> None:
    job_services.enqueue("sample.noop")
    assert call("limits", "pause", "job_type", "sample.noop", "--reason=mail is down").code == 0

    assert claim_next() is None
    paused = get_limit("job_type", "sample.noop")
    assert (paused["paused"], paused["paused_by"], paused["reason"]) == (True, getpass.getuser(), "mail is down")
    assert paused["max"] is None

    assert call("limits", "unpause", "job_type", "sample.noop").code == 0
    assert claim_next() is not None
    assert not ConcurrencyLimit.objects.filter(scope="job_type").exists()


def test_a_reset_keeps_a_pause_and_a_second_pause_only_changes_its_reason() -> None:
    ConcurrencyLimitFactory.create(scope="resource", key="gpu", max=4)
    call("limits", "pause", "resource", "gpu")
    first = ConcurrencyLimit.objects.get()

    call("limits", "pause", "resource", "gpu", "--reason=still hot")
    call("limits", "reset", "resource", "gpu")

    limit = ConcurrencyLimit.objects.get()
    assert (limit.paused, limit.paused_at, limit.reason, limit.max, limit.overridden) == (
        True,
        first.paused_at,
        "still hot",
        None,
        False,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["set", "global", "0"],
        ["set", "global", "many"],
        ["set", "global", "99999999999"],
        ["set", "global", "key", "3"],
        ["set", "job_type", "3"],
        ["set", "global"],
        ["set", "resource", "openai"],
        ["set", "resource", "--rate=60/min"],
        ["set", "resource", "openai", "--rate=60"],
        ["set", "resource", "openai", "--rate=0/min"],
        ["set", "resource", "openai", "--token-rate=many"],
        ["set", "resource", "openai", "--burst=5"],
        ["set", "resource", "openai", "--rate=60/min", "--burst=0"],
        ["set", "resource", "openai", "--rate=60/min", "--burst=few"],
        ["set", "job_type", "a", "b", "3"],
        ["set", "tenant", "a b", "3"],
        ["pause", "resource"],
        ["pause", "global", "key"],
        ["pause", "global", "--reason", "x" * 3000],
    ],
)
def test_bad_input_is_one_line_exit_code_2_and_changes_nothing(arguments: list[str]) -> None:
    result = call("limits", *arguments)

    assert (result.code, result.out) == (2, "")
    assert result.err.count("\n") == 1
    assert not ConcurrencyLimit.objects.exists()


def test_as_a_process_an_unknown_scope_is_exit_code_2(process_env: dict[str, str]) -> None:
    assert run_process(process_env, "limits", "set", "universe", 3).code == 2
