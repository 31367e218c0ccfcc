from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.test import override_settings

from tests.support.webhook_receiver import Receiver, run_receiver

Settings = Callable[..., None]


@pytest.fixture
def configure() -> Iterator[Settings]:
    """Override webhook settings in one test; by default loopback is allowed and retries have no delay."""
    defaults = {"WEBHOOK_ALLOW_PRIVATE": True, "WEBHOOK_BACKOFF_SEC": 0, "WEBHOOK_TIMEOUT_SEC": 10}
    with ExitStack() as stack:

        def apply(**values: Any) -> None:
            stack.enter_context(override_settings(JOBSCHEDULER={**defaults, **values}))

        apply()
        yield apply


@pytest.fixture
def receive(configure: Settings) -> Iterator[Callable[..., Receiver]]:
    """Start receivers on loopback; they stop with the test."""
    with ExitStack() as stack:
        yield lambda behaviour=None, **options: stack.enter_context(run_receiver(behaviour, **options))
