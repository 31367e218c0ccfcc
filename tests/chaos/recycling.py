"""Workers whose handlers leak end by `--max-rss` and are started again: nothing is lost, no attempt is used."""

from __future__ import annotations

import random
from collections import Counter

from jobs.models import Job
from jobs.services import jobs as job_services
from jobs.states import TERMINAL
from tests.chaos.report import SuiteReport
from tests.support.snapshots import list_event_kinds
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet, WorkerProcess, wait_until

WORKERS, SLOTS, MAX_RSS_MIB = 3, 4, 300
LEAK_MIB = (20, 60)
KINDS = ["SUBMITTED", "RUNNING", "COMPLETED"]


def run(fleet: Fleet, chance: random.Random, *, jobs: int, longest_sec: float) -> SuiteReport:
    """The supervisor is this loop: it replaces each worker that ends. Jobs take longer than the grace of a shutdown."""
    report = SuiteReport()
    job_services.enqueue_many(
        [
            {
                "job_type": "sample.leak",
                "params": {"mib": chance.randint(*LEAK_MIB), "seconds": longest_sec * chance.random() ** 6},
                "max_retries": 0,
            }
            for _ in range(jobs)
        ]
    )

    def start() -> WorkerProcess:
        options = (f"--max-rss={MAX_RSS_MIB}", f"--concurrency={SLOTS}")
        return fleet.start(*options, settings=LONG_LEASE_SETTINGS, wait=False)

    crew = [start() for _ in range(WORKERS)]
    exit_codes: Counter[int] = Counter()

    def has_ended() -> bool:
        for place, worker in enumerate(crew):
            if not worker.alive:
                exit_codes[worker.wait_for_end()] += 1
                crew[place] = start()
        return not Job.objects.exclude(status__in=sorted(TERMINAL)).exists()

    wait_until(has_ended, 60 + jobs * longest_sec, fleet.logs)
    for worker in crew:
        worker.terminate()
        worker.wait_for_end()
    calls = Counter(str(call["job"]) for call in fleet.ledger.read_lines("start"))
    report.note(jobs=jobs, recycled=sum(exit_codes.values()))
    report.require(set(exit_codes) <= {0}, f"workers ended with {dict(exit_codes)}")
    report.require(exit_codes[0] >= WORKERS, f"{exit_codes[0]} workers were recycled")
    report.broken += [f"job {job} ran {count} times" for job, count in calls.items() if count != 1]
    for job in Job.objects.all():
        kinds = list_event_kinds(job)
        story = f"attempt {job.attempt}, {kinds}, {job.status_reason}"
        report.require((job.attempt, kinds) == (1, KINDS), f"job {job.pk}: {story}")
    return report
