"""What one stretch of execution can end as. The executor returns one; the lifecycle records it."""

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
    """`retry_in` is the policy's word, in seconds; None means the failure is permanent."""

    error: str
    reason: str
    cause: Cause = Cause.ERROR
    exit_code: int = 1
    artifacts: dict[str, Any] = field(default_factory=dict)
    retry_in: float | None = None


@dataclass(frozen=True)
class Stopped:
    """The handler obeyed a stop request; the request on the row says what the job becomes."""

    artifacts: dict[str, Any] = field(default_factory=dict)


Outcome = Completed | Skipped | Failed | Stopped
