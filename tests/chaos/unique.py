"""A crowd of processes submits jobs of a few unique keys beside workers: never two of a key at a time."""

from __future__ import annotations

import random
from contextlib import nullcontext
from typing import Any

from jobs.models import Job, JobEvent
from jobs.states import TERMINAL, EventKind
from tests.chaos.report import SuiteReport
from tests.races.parallel import run_parallel
from tests.races.unique_keys import find_violations, without_indexes
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet, wait_until

CROWD_SEC = 600.0


def run(
    fleet: Fleet, chance: random.Random, *, processes: int, share: int, keys: int, rounds: int, indexes: bool = True
) -> SuiteReport:
    report = SuiteReport()
    for _ in range(2):
        fleet.start("--concurrency=4", settings=LONG_LEASE_SETTINGS)
    created = submitted = 0
    with nullcontext() if indexes else without_indexes():
        for number in range(rounds):
            for until in ("start", "end"):
                plan = {"processes": processes, "share": share, "keys": keys, "until": until, "seed": chance.random()}
                submissions = submit(fleet, on_conflict="return", delay_sec=0, prefix=f"{number}-", **plan)
                submitted += len(submissions)
                created += sum(submission["created"] for submission in submissions)
                submit(
                    fleet, on_conflict="replace", delay_sec=3600, prefix=f"debounced-{number}-", **{**plan, "keys": 1}
                )
        waiting = Job.objects.exclude(status__in=sorted(TERMINAL)).filter(not_before__isnull=True)
        wait_until(lambda: not waiting.exists(), 300, fleet.logs)
        report.broken += find_violations()
        judge_replacements(report, rounds)
    report.note(submitted=submitted, created=created)
    return report


def submit(fleet: Fleet, **plan: Any) -> list[dict[str, Any]]:
    answers = run_parallel(fleet.env, "unique_keys", patience_sec=CROWD_SEC, **plan)["answers"]
    crashed = [answer for answer in answers if not isinstance(answer, list)]
    if crashed:
        raise AssertionError(f"{len(crashed)} processes crashed: {crashed[0]}")
    return [submission for answer in answers for submission in answer]


def judge_replacements(report: SuiteReport, rounds: int) -> None:
    """One job for each round and end, with the params of its last event."""
    debounced = Job.objects.filter(unique_key__startswith="debounced-")
    report.require(debounced.count() == 2 * rounds, f"{debounced.count()} debounced jobs, not {2 * rounds}")
    for job in debounced:
        last = JobEvent.objects.filter(job=job, kind=EventKind.UPDATED).order_by("-id").first()
        params = None if last is None else last.data["new"].get("params")
        report.require(job.params == params, f"job {job.pk} has {job.params}, its last replacement {params}")
