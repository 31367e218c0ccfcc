"""The watchdog stops handlers before their leases run out, and leaves results alone that wait to be written."""

from __future__ import annotations

import time

import pytest

from jobs import services
from jobs.engine.claim import Claimer, Serves
from jobs.engine.context import Context
from jobs.engine.heartbeat import Watchdog
from jobs.engine.leases import Held, Leases

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("returned", [False, True])
def test_only_a_handler_that_still_runs_is_stopped_when_its_lease_cannot_be_renewed(returned: bool) -> None:
    """The database was away when it returned: the end is still said, with its token, when it is back."""
    services.enqueue("sample.noop")
    [claim] = Claimer("one", Serves(("sample.noop",)), "one").claim([0], lease_sec=30)
    held = Held(claim, Context(job_id=claim.id, params={}), deadline=time.monotonic() - 1, returned=returned)
    leases = Leases()
    leases.add(held)
    Watchdog(leases, on_timeout=lambda held: None)._judge(held, time.monotonic())
    assert held.lost is not returned
