from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.test import override_settings

from tests.support.webhook_receiver import Receiver, run_receiver

Settings = Callable[..., None]


@pytest.fixture
def told() -> Iterator[Settings]:
    """Webhook settings for one test; receivers are on loopback here, and retries come at once."""
    usual = {"WEBHOOK_ALLOW_PRIVATE": True, "WEBHOOK_BACKOFF_SEC": 0, "WEBHOOK_TIMEOUT_SEC": 10}
    with ExitStack() as stack:

        def tell(**said: Any) -> None:
            stack.enter_context(override_settings(JOBSCHEDULER={**usual, **said}))

        tell()
        yield tell


@pytest.fixture
def receive(told: Settings) -> Iterator[Callable[..., Receiver]]:
    with ExitStack() as stack:
        yield lambda behaviour=None, **how: stack.enter_context(run_receiver(behaviour, **how))
