"""Rates over four workers that are killed: judged by the log of handlers and their provider, not by the database.

`run`: in no stretch of time do more jobs start than the rate allows and one burst, and at least 95 % of it is used.
`run_tokens`: a provider never sees more tokens than the rate allows and what the jobs then running use; where jobs have
a token limit, and what one of them may use. A second of tolerance: handlers start a little after their claim. What a
job without a token limit used just before its worker was killed may not have been counted: it is left out.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from jobs.models import Job
from jobs.services import jobs as job_services
from jobs.states import Status
from tests.chaos.report import SuiteReport
from tests.support.ledger import HandlerCall
from tests.support.worker_processes import FAST_SETTINGS, Fleet, WorkerProcess, wait_until

WORKERS, SLOTS = 4, 8
TOLERANCE_SEC = 1.0
MINUTE_SEC = 60.0
RATE_PER_SEC, BURST = 2.0, 5
TOKENS_PER_SEC, LARGEST_USE = 300.0, 300


def run(fleet: Fleet, chance: random.Random, *, seconds: float, kills: bool = True, sabotage: str = "") -> SuiteReport:
    verdict = SuiteReport()
    jobs = round(seconds * RATE_PER_SEC) + 200
    job_services.enqueue_many(
        [
            {"job_type": "sample.work", "params": {"seconds": chance.uniform(0, 0.5)}, "max_retries": 1000}
            for _ in range(jobs)
        ]
    )
    limit = {"global": {"rate": f"{RATE_PER_SEC * 60:.0f}/min", "burst": BURST}}
    killed = rage(fleet, chance, limit, seconds, kills, sabotage)
    starts = [call.start for call in fleet.ledger.list_calls()]
    allowed = find_peak(starts, [1.0] * len(starts), MINUTE_SEC)
    expected = (starts[-1] - starts[0]) * RATE_PER_SEC
    verdict.note(starts=len(starts), kills=killed, peak_of_a_minute=allowed, used=f"{len(starts) / expected:.0%}")
    verdict.broken += judge_starts(starts)
    verdict.require(len(starts) >= 0.95 * expected, f"{len(starts)} of {expected:.0f} starts: the rate is not used")
    return verdict


def run_tokens(
    fleet: Fleet,
    chance: random.Random,
    *,
    seconds: float,
    limited: bool = True,
    kills: bool = True,
    sabotage: str = "",
) -> SuiteReport:
    verdict = SuiteReport()
    jobs = round(seconds * TOKENS_PER_SEC / LARGEST_USE * 8) + 200
    limits = {"token_limit": LARGEST_USE} if limited else {}
    job_services.enqueue_many(
        [
            {
                "job_type": "sample.spend",
                "params": {"tokens": chance.randint(20, LARGEST_USE), "seconds": chance.uniform(0.05, 0.5)},
                "max_retries": 1000,
                **limits,
            }
            for _ in range(jobs)
        ]
    )
    limit = {"global": {"token_rate": f"{TOKENS_PER_SEC * 60:.0f}/min"}}
    killed = rage(fleet, chance, limit, seconds, kills, sabotage)
    lines, calls = fleet.ledger.read_lines("tokens"), fleet.ledger.list_calls()
    uncounted = set() if limited else find_uncounted(lines)
    completed = Job.objects.filter(pk__in=uncounted, status=Status.COMPLETED)
    verdict.broken += [f"job {job.pk} completed, and its tokens were not counted" for job in completed]
    uses = [(line["at"], float(line["tokens"])) for line in lines if line["job"] not in uncounted]
    times, tokens = [at for at, _ in uses], [used for _, used in uses]
    used = sum(tokens) / ((times[-1] - times[0]) * TOKENS_PER_SEC)
    peak = find_peak(times, tokens, MINUTE_SEC)
    verdict.note(calls=len(uses), kills=killed, uncounted=len(uncounted), peak_of_a_minute=peak, used=f"{used:.0%}")
    verdict.broken += judge_tokens(uses, calls, limited=limited)
    verdict.require(used > 0.5, "hardly half of the rate is used")
    return verdict


def rage(
    fleet: Fleet, chance: random.Random, limit: dict[str, object], seconds: float, kills: bool, sabotage: str
) -> int:
    """Run the workers for so long; kill one every now and then, and start another. Return the number of kills."""
    settings = {**FAST_SETTINGS, "LIMITS": limit}

    def start() -> WorkerProcess:
        return fleet.start(f"--concurrency={SLOTS}", settings=settings, sabotage=sabotage, wait=False)

    crew = [start() for _ in range(WORKERS)]
    fleet.wait_until_started(*crew)
    wait_until(lambda: fleet.ledger.read_lines("start"), 30, "the first job starts")
    killed, end = 0, time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, chance.uniform(2, 6)))  # the storm's own pace
        if kills and left > 6:
            place = chance.randrange(WORKERS)
            crew[place].kill()
            crew[place] = start()
            killed += 1
    for worker in crew:
        worker.kill()
    return killed


def find_uncounted(uses: Sequence[dict[str, Any]]) -> set[str]:
    """Return the jobs that reported fewer tokens than their provider saw."""
    counted = {str(job_id): tokens for job_id, tokens in Job.objects.values_list("pk", "tokens_used")}
    seen: Counter[str] = Counter()
    for use in uses:
        seen[use["job"]] += use["tokens"]
    return {job_id for job_id, tokens in seen.items() if counted[job_id] < tokens}


def find_peak(times: Sequence[float], amounts: Sequence[float], seconds: float) -> float:
    """Return the largest sum of amounts within a window of so many seconds."""
    peak, total, first = 0.0, 0.0, 0
    for at, amount in zip(times, amounts, strict=True):
        total += amount
        while times[first] <= at - seconds:
            total -= amounts[first]
            first += 1
        peak = max(peak, total)
    return peak


def judge_starts(starts: Sequence[float]) -> list[str]:
    """Return a line for each stretch from one start to a later one with too many between them."""
    broken = []
    for first, begin in enumerate(starts):
        for last in range(first, len(starts)):
            span = min(starts[last] - begin, MINUTE_SEC)
            allowed = BURST + RATE_PER_SEC * (span + TOLERANCE_SEC)
            if starts[last] - begin <= MINUTE_SEC and last - first + 1 > allowed + 1:
                broken.append(f"{last - first + 1} starts within {span:.2f} s, {allowed:.1f} are allowed")
    return broken


def judge_tokens(uses: Sequence[tuple[float, float]], calls: Sequence[HandlerCall], *, limited: bool) -> list[str]:
    """Return a line for each stretch from one use to a later one, up to a minute, with too many tokens in it."""
    broken = []
    sums = [0.0, *accumulate(tokens for _, tokens in uses)]
    for last, (end, _) in enumerate(uses):
        if limited:
            running = float(LARGEST_USE)
        else:
            # what the jobs use that ran when the last of them was claimed, a little before its handler started
            newest = max(call.start for call in calls if call.start <= end)
            recent = [call for call in calls if end - 10 < call.start <= newest]
            running = LARGEST_USE * sum(call.end >= newest - TOLERANCE_SEC for call in recent)
        for first in range(last, -1, -1):
            span = end - uses[first][0]
            if span > MINUTE_SEC:
                break
            allowed = TOKENS_PER_SEC * (span + 1 + TOLERANCE_SEC) + running  # tokens of one second are kept
            used = sums[last + 1] - sums[first]
            if used > allowed:
                broken.append(f"{used:.0f} tokens within {span:.2f} s, {allowed:.0f} are allowed")
    return broken
