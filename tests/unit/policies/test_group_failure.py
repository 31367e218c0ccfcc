"""The built-in group failure policy (DEC-012)."""

from __future__ import annotations

import pytest

from jobs.policies.groups import GroupFailureFacts, GroupFailurePolicy, OnFailure
from jobs.states import Status

pytestmark = pytest.mark.once


@pytest.mark.parametrize("status", [Status.FAILED, Status.CANCELLED])
@pytest.mark.parametrize("on_failure", ["stop", "continue", "skip"])
def test_dec_012_the_group_does_what_it_was_submitted_with(on_failure: str, status: Status) -> None:
    policy: GroupFailurePolicy = OnFailure()
    facts = GroupFailureFacts(on_failure=on_failure, status=status, index=0, total=3)
    assert policy.decide(facts) == on_failure
