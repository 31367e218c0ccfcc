"""Job types `tests.*`, registered only where a test imports this module."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from jobs import job
from tests.factories import SAMPLE_TYPE


@job(SAMPLE_TYPE)
def note(text: str, times: int = 1) -> dict[str, Any]:
    return {"text": text * times}


@job("tests.anything")
def anything(**params: Any) -> dict[str, Any]:
    return params


@job("tests.nothing", priority="LOW", max_retries=1, tags=("quiet",), resource="attic", cost_units=2)
def nothing() -> None:
    return None


@job("tests.at")
def at(when: datetime) -> str:
    return when.isoformat()
