"""Read the calls that handlers recorded in a file outside of the database, and check their order and overlap."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

NEVER = float("inf")


@dataclass(frozen=True)
class HandlerCall:
    """One call of a handler, by the clock that all processes of this machine share. `end` of a killed one is never."""

    job: str
    type: str
    fence: int
    attempt: int
    pid: int
    start: float
    end: float
    facts: dict[str, Any]


class Ledger:
    def __init__(self, path: Path) -> None:
        self.path = path

    def read_lines(self, *events: str) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        # The last line of a killed process may be cut short.
        whole = [line for line in self.path.read_text().split("\n") if line.endswith("}")]
        found = [json.loads(line) for line in whole]
        return [line for line in found if not events or line["event"] in events]

    def read_job_lines(self, job_id: object, *events: str) -> list[dict[str, Any]]:
        return [line for line in self.read_lines(*events) if line.get("job") == str(job_id)]

    def list_calls(self) -> list[HandlerCall]:
        ends = {_call_key(line): line["at"] for line in self.read_lines("end")}
        return sorted((_parse_call(line, ends) for line in self.read_lines("start")), key=lambda call: call.start)


def count_most_at_once(stretches: Iterable[HandlerCall]) -> int:
    """Return the largest number of handlers that ran at the same time."""
    steps = sorted(step for call in stretches for step in ((call.start, 1), (call.end, -1)))
    running = peak = 0
    for _, step in steps:
        running += step
        peak = max(peak, running)
    return peak


def find_overlaps(stretches: Iterable[HandlerCall], key: Callable[[HandlerCall], Hashable]) -> Iterator[str]:
    """Yield a line for each pair of calls with the same key that ran at the same time."""
    for name, several in group_calls(stretches, key).items():
        for one, two in pairwise(several):
            if two.start < one.end:
                yield f"{name}: {two.job} (pid {two.pid}) started while {one.job} (pid {one.pid}) was running"


def group_calls(
    stretches: Iterable[HandlerCall], key: Callable[[HandlerCall], Hashable]
) -> dict[Hashable, list[HandlerCall]]:
    found: dict[Hashable, list[HandlerCall]] = defaultdict(list)
    for call in stretches:
        found[key(call)].append(call)
    return found


def compute_utilization(stretches: list[HandlerCall], slots: int) -> float:
    """Return the share of busy slots from the first start until nine tenths of the calls had started."""
    begin, end = stretches[0].start, stretches[len(stretches) * 9 // 10].start
    worked = sum(max(0.0, min(call.end, end) - call.start) for call in stretches)
    return worked / ((end - begin) * slots)


def _call_key(line: dict[str, Any]) -> tuple[object, ...]:
    return line["job"], line["fence"], line["pid"], line.get("number")  # a direct call has no job, but a number


def _parse_call(line: dict[str, Any], ends: dict[tuple[object, ...], float]) -> HandlerCall:
    known = {name: line[name] for name in ("job", "type", "fence", "attempt", "pid")}
    facts = {name: value for name, value in line.items() if name not in (*known, "at", "event")}
    return HandlerCall(**known, start=line["at"], end=ends.get(_call_key(line), NEVER), facts=facts)
