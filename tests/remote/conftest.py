"""Fixtures for remote workers: no limit holds unless a test sets one."""

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
    """Reset the maintenance of offers, as in a process that has just started."""
    monkeypatch.setattr(runner, "_offer_tasks", runner.build_offer_tasks())
