"""The fairness policies, and how shares take turns."""

from __future__ import annotations

from uuid import uuid4

import pytest

from jobs.engine.selection.fair_share import ShareCandidate, find_overtakers, order_by_share
from jobs.policies.concurrency import Flow
from jobs.policies.fairness import Aging, AgingFairShare, FairnessPolicy, FairShare, Strict, Waiting

pytestmark = pytest.mark.once

FLOW = Flow("default", "story", "default", "")


def waiting(waited_sec: float, base: int = 25, priority: int | None = None) -> Waiting:
    return Waiting(FLOW, base, base if priority is None else priority, waited_sec)


@pytest.mark.parametrize(
    ("waited_sec", "base", "priority", "expected"),
    [
        (0, 25, 25, 25),
        (59, 25, 25, 25),
        (60, 25, 25, 30),
        (600, 25, 25, 75),
        (100_000, 25, 25, 100),
        (60, 25, 90, 90),  # an operator may have raised it
        (-5, 25, 25, 25),  # clocks of two hosts
    ],
)
def test_a_priority_rises_by_a_step_at_a_time_up_to_the_ceiling(
    waited_sec: float, base: int, priority: int, expected: int
) -> None:
    assert Aging(step=5, every_sec=60).aged(waiting(waited_sec, base, priority)) == expected


def test_without_aging_a_priority_stays() -> None:
    for policy in (Strict(), FairShare()):
        assert policy.aged(waiting(1e9)) == 25


def test_both_in_one() -> None:
    policy: FairnessPolicy = AgingFairShare(among="tenant", aging=Aging(step=1, every_sec=1))
    assert policy.aged(waiting(10)) == 35
    assert (policy.shares, policy.share(FLOW).key) == (True, "tenant:default")
    assert not Aging().shares


def test_a_share_weighs_something_whatever_was_said() -> None:
    policy = FairShare(weights={"a": 0, "b": 2.5})
    weights = [policy.share(Flow("t", "j", "r", addon)).weight for addon in ("a", "b", "c")]
    assert weights == [1e-6, 2.5, 1.0]


def line(spelled: str, policy: FairShare) -> list[ShareCandidate]:
    """'Aab': a job each, in dispatch order; the letter is the addon, a capital has the higher priority."""
    found = []
    for letter in spelled:
        flow = Flow("default", "story", "default", letter.lower())
        found.append(ShareCandidate(uuid4(), flow, 75 if letter.isupper() else 50, policy.share(flow)))
    return found


def spell(jobs: list[ShareCandidate]) -> str:
    return "".join(job.flow.addon_id.upper() if job.priority == 75 else job.flow.addon_id for job in jobs)


@pytest.mark.parametrize(
    ("weights", "before", "after"),
    [
        ({}, "aaaabb", "ababaa"),
        ({}, "aabbcc", "abcabc"),
        ({"a": 2}, "aaaaaabbb", "abaabaaba"),
        ({}, "AAAb", "AAAb"),  # a priority is a priority
        ({}, "bAAa", "AAba"),
        ({}, "a", "a"),
        ({}, "", ""),
    ],
)
def test_shares_take_turns_within_a_priority(weights: dict[str, float], before: str, after: str) -> None:
    policy = FairShare(weights=weights)
    found = sorted(line(before, policy), key=lambda job: -job.priority)
    assert spell(order_by_share(found, {}, 0.0)) == after


def test_who_was_served_waits_and_who_was_idle_has_saved_nothing() -> None:
    policy = FairShare()
    found = line("aabb", policy)
    assert spell(order_by_share(found, {"addon:a": 12.0}, 10.0)) == "bbaa"
    assert spell(order_by_share(found, {"addon:a": 11.0, "addon:b": 3.0}, 10.0)) == "baba"


def test_only_those_who_went_before_another_share_have_overtaken() -> None:
    a1, a2, b1, c1 = line("aab", FairShare()) + line("C", FairShare())
    found = [c1, a1, a2, b1]
    assert find_overtakers(found, {c1.id, a1.id}) == []
    assert find_overtakers(found, {a1.id, b1.id}) == [b1]
    assert find_overtakers(found, {a2.id}) == [], "its own share was passed over by itself"
