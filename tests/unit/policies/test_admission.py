"""The admission policies: who may start, given how the machine is doing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs.policies.admission import (
    Approved,
    Candidate,
    Capacity,
    Denied,
    Open,
    Snapshot,
    State,
    available_capacity,
    classify_load,
)

pytestmark = pytest.mark.once

QUIET = Snapshot(state=State.QUIET, held_sec=60)
NORMAL = Snapshot(state=State.NORMAL, held_sec=60, load=0.4)
BUSY = Snapshot(state=State.BUSY, held_sec=60, load=0.9)
HEAVY = frozenset({"cpu_heavy"})


def job(cost: int = 30, **facts: object) -> Candidate:
    return replace(Candidate(job_type="index", cost_units=cost), **facts)  # type: ignore[arg-type]


def refusal(candidate: Candidate, snapshot: Snapshot) -> str | None:
    verdict = Capacity().decide(candidate, snapshot)
    return verdict.reason if isinstance(verdict, Denied) else None


def test_open_admits_everything() -> None:
    full = replace(BUSY, used=1000)
    assert Open().decide(job(100, constraints=HEAVY), full) == Approved()


@pytest.mark.parametrize(("used", "admitted"), [(0, True), (70, True), (71, False), (100, False)])
def test_cost_units_fit_the_capacity_or_wait(used: int, admitted: bool) -> None:
    assert (refusal(job(30), replace(QUIET, used=used)) is None) == admitted


def test_a_job_of_no_cost_is_never_too_much() -> None:
    assert refusal(job(0), replace(QUIET, used=100)) is None


def test_who_costs_more_than_there_will_ever_be_hears_so() -> None:
    small = replace(QUIET, capacity_max=20)
    assert "total capacity" in str(refusal(job(30), small))


def test_the_capacity_shrinks_from_the_quiet_to_the_busy_load_and_is_never_gone() -> None:
    loads = [0.0, 0.3, 0.55, 0.8, 5.0]
    assert [available_capacity(replace(QUIET, load=load)) for load in loads] == [100, 100, 62, 25, 25]
    assert available_capacity(replace(QUIET, cpu=0.8)) == 25, "the processors count as much as the load"
    assert available_capacity(replace(QUIET, memory=0.96)) == 25


@pytest.mark.parametrize(
    ("load", "cpu", "memory", "state"),
    [
        (0.3, 0.1, 0.5, State.QUIET),
        (0.31, 0.1, 0.5, State.NORMAL),
        (0.1, 0.5, 0.5, State.NORMAL),
        (0.8, 0.1, 0.5, State.BUSY),
        (0.0, 0.9, 0.5, State.BUSY),
        (0.0, 0.0, 0.95, State.BUSY),
    ],
)
def test_the_state_follows_the_worst_of_load_and_processors_and_memory(
    load: float, cpu: float, memory: float, state: State
) -> None:
    assert classify_load(load, cpu, memory, quiet_load=0.3, busy_load=0.8) == state


@pytest.mark.parametrize(
    ("snapshot", "deadline_in_sec", "admitted"),
    [
        (QUIET, None, True),
        (replace(QUIET, held_sec=29), None, False),
        (NORMAL, None, False),
        (BUSY, None, False),
        (NORMAL, 299.0, True),
        (NORMAL, 301.0, False),
        (replace(QUIET, held_sec=0), 10.0, True),
        (BUSY, 10.0, False),
    ],
)
def test_heavy_work_waits_for_a_quiet_streak_and_a_near_deadline_allows_normal(
    snapshot: Snapshot, deadline_in_sec: float | None, admitted: bool
) -> None:
    heavy = job(10, constraints=HEAVY, deadline_in_sec=deadline_in_sec)
    assert (refusal(heavy, snapshot) is None) == admitted


def test_a_near_deadline_never_exceeds_the_capacity() -> None:
    assert refusal(job(30, deadline_in_sec=1.0), replace(NORMAL, used=90)) is not None


def test_an_addon_has_no_more_than_its_cap_and_others_are_not_touched() -> None:
    capped = replace(QUIET, max_cost_per_addon=40, used=20, used_by_addon={"visuals": 20})
    assert refusal(job(30, addon_id="visuals"), capped) == "the cost limit of its addon is reached"
    assert refusal(job(20, addon_id="visuals"), capped) is None
    assert refusal(job(40, addon_id="sounds"), capped) is None
    assert refusal(job(70), capped) is None, "work of no addon has no cap"


def test_the_reason_does_not_change_with_the_figures() -> None:
    """A new reason is a new decision, and an event."""
    reasons = {refusal(job(30), replace(QUIET, used=used)) for used in range(71, 100)}
    assert len(reasons) == 1
