"""Whether a job may start now, given how the machine is doing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Approved:
    pass


@dataclass(frozen=True)
class Denied:
    reason: str
    retry_after_sec: float


class AdmissionPolicy(Protocol):
    def decide(self, job: object, snapshot: object) -> Approved | Denied: ...


class Open:
    """Everything is admitted."""

    def decide(self, job: object, snapshot: object) -> Approved | Denied:
        return Approved()
