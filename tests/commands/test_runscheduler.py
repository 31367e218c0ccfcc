"""`manage.py runscheduler`: what it refuses before it listens. tests/packaging/test_run.py runs it."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": "a@b"}, "--name: must not contain"),
        ({"name": "main", "no_worker": True}, "--name: there is no worker"),
    ],
)
def test_a_name_that_no_worker_can_have_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(CommandError, match=text) as refused:
        call_command("runscheduler", port=0, **options)
    assert refused.value.returncode == 2


@pytest.mark.parametrize(("threads", "direct_calls"), [(4, 4), (1, 1), (8, 20)])
def test_direct_calls_must_leave_a_thread_for_probes(threads: int, direct_calls: int) -> None:
    with override_settings(JOBSCHEDULER={"DIRECT_MAX": direct_calls}), pytest.raises(CommandError) as refused:
        call_command("runscheduler", threads=threads, no_worker=True, port=0)
    assert f"--threads={threads} is too few" in str(refused.value)
    assert f"{direct_calls} (DIRECT_MAX)" in str(refused.value)
