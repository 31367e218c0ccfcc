"""Remote workers without any limit in their way, unless a test says otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.engine.maintenance import runner
from tests.support.remote_client import RemoteClient


@pytest.fixture(autouse=True)
def unlimited(settings: Any) -> None:
    settings.JOBSCHEDULER = {"LIMITS": {"global": None}}


@pytest.fixture
def remote(db: None) -> RemoteClient:
    return RemoteClient()


@pytest.fixture(autouse=True)
def first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has just started: nothing was looked after yet."""
    monkeypatch.setattr(runner, "_offer_tasks", runner.build_offer_tasks())
