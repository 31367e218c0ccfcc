"""The results of an execution. The executor returns one of them; the engine records it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jobs.states import Cause


@dataclass(frozen=True)
class Completed:
    artifacts: dict[str, Any] = field(default_factory=dict)
    exit_code: int = 0


@dataclass(frozen=True)
class Skipped:
    reason: str = ""
    artifacts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Failed:
    """`retry_in` is the delay that the retry policy chose, in seconds; None: no retry."""

    error: str
    reason: str
    cause: Cause = Cause.ERROR
    exit_code: int = 1
    artifacts: dict[str, Any] = field(default_factory=dict)
    retry_in: float | None = None


@dataclass(frozen=True)
class Snoozed:
    """The handler continues after `delay_sec`. `retry_in` is for a job that was snoozed too often: it fails."""

    delay_sec: float
    reason: str = ""
    artifacts: dict[str, Any] = field(default_factory=dict)
    retry_in: float | None = None


@dataclass(frozen=True)
class Stopped:
    """The handler followed a stop request; the request in the job's row decides the new status."""

    artifacts: dict[str, Any] = field(default_factory=dict)


Outcome = Completed | Skipped | Failed | Snoozed | Stopped
