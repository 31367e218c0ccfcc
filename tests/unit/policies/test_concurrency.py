"""The concurrency policies: which limit stands in the way of one more job."""

from __future__ import annotations

import pytest

from jobs.policies.concurrency import (
    Combined,
    ConcurrencyPolicy,
    Flow,
    GlobalLimit,
    InUse,
    Limit,
    Limits,
    PerAddonLimit,
    PerResourceLimit,
    PerTenantLimit,
    PerTypeLimit,
    count_free,
)

pytestmark = pytest.mark.once

STORY = Flow("acme", "story", "ollama", "visuals")
OTHER = Flow("other", "mail", "remote", "")
ALL = [
    Limit("global", "", 4),
    Limit("job_type", "story", 2),
    Limit("resource", "ollama", 3),
    Limit("tenant", "acme", 3),
    Limit("addon", "visuals", 3),
]


def make_in_use(*flows: Flow) -> InUse:
    return InUse([(flow, 1) for flow in flows])


def blocking(policy: ConcurrencyPolicy, flow: Flow, limits: list[Limit], *active: Flow) -> tuple[str, str] | None:
    blocked = policy.blocked(flow, limits, make_in_use(*active))
    return None if blocked is None else (blocked.limit.scope, blocked.limit.key)


@pytest.mark.parametrize(
    ("policy", "scope", "key"),
    [
        (GlobalLimit(), "global", ""),
        (PerTypeLimit(), "job_type", "story"),
        (PerResourceLimit(), "resource", "ollama"),
        (PerTenantLimit(), "tenant", "acme"),
        (PerAddonLimit(), "addon", "visuals"),
    ],
)
def test_each_policy_looks_at_its_own_scope_only(policy: ConcurrencyPolicy, scope: str, key: str) -> None:
    tight = [Limit(scope, key, 1)]
    assert blocking(policy, STORY, tight, STORY) == (scope, key)
    assert blocking(policy, STORY, tight) is None
    others = [limit for limit in ALL if limit.scope != scope]
    assert blocking(policy, STORY, others, *[STORY] * 9) is None
    if scope != "global":
        assert blocking(policy, OTHER, tight, STORY, OTHER) is None


def test_the_built_in_policy_knows_every_scope() -> None:
    assert blocking(Limits(), STORY, ALL, STORY, STORY) == ("job_type", "story")
    assert blocking(Limits(), OTHER, ALL, STORY, STORY) is None
    assert blocking(Limits(), OTHER, ALL, STORY, STORY, OTHER, OTHER) == ("global", "")


def test_policies_combine_and_the_first_full_limit_is_named() -> None:
    both = PerResourceLimit() & PerTypeLimit(default=1)
    assert isinstance(both, Combined)
    assert blocking(both, STORY, [Limit("resource", "ollama", 2)], STORY) == ("job_type", "story")
    assert blocking(both, STORY, [Limit("resource", "ollama", 1)], STORY) == ("resource", "ollama")
    assert blocking(both & GlobalLimit(default=1), OTHER, [], STORY) == ("global", "")


def test_a_default_is_for_keys_that_nobody_set() -> None:
    policy = PerTypeLimit(default=1)
    assert blocking(policy, STORY, [], STORY) == ("job_type", "story")
    assert blocking(policy, STORY, [Limit("job_type", "story", 5)], STORY) is None
    assert blocking(policy, STORY, [Limit("job_type", "story", None)], STORY) is None, "unlimited by an operator"
    assert blocking(GlobalLimit(default=1), STORY, [Limit("global", "", None)], STORY) == ("global", "")


def test_jobs_of_no_addon_are_not_limited_per_addon() -> None:
    assert blocking(PerAddonLimit(default=1), OTHER, [], OTHER, OTHER) is None


@pytest.mark.parametrize("shut", [{"paused": True}, {"reserved": True}])
def test_a_limit_that_is_shut_has_no_room_whatever_its_maximum(shut: dict[str, bool]) -> None:
    for maximum in (None, 9):
        limit = Limit("resource", "ollama", maximum, **shut)
        assert count_free(limit, make_in_use()) == 0
        assert blocking(Limits(), STORY, [limit]) == ("resource", "ollama")
        assert blocking(PerResourceLimit(), STORY, [limit]) == ("resource", "ollama")
