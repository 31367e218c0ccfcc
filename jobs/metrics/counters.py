"""What only grows: submissions, ends, retries, recoveries, and how long jobs waited and ran."""

from __future__ import annotations

from jobs.census import Census
from jobs.metrics.exposition import Family
from jobs.metrics.labels import declared, job_types, known, resources
from jobs.models.rollup import BUCKETS_SEC
from jobs.states import TERMINAL

TYPE = ("job_type",)


def enqueued(counted: Census) -> Family:
    """Whatever was ever submitted is still live or has ended, and one statement told both."""
    family = Family("jobs_enqueued_total", "counter", "Jobs submitted, retries too.", ("resource", *TYPE))
    for place in declared():
        family.add(0, *place)
    types, pools = job_types(), resources()
    for kind in counted.ever:
        family.add(kind.jobs, known(kind.resource, pools), known(types.get(kind.job_type), types))
    return family


def ended(counted: Census) -> list[Family]:
    finished = Family("jobs_finished_total", "counter", "Jobs ended.", ("resource", *TYPE, "outcome"))
    retries = Family("jobs_retries_total", "counter", "Failed jobs that were retried automatically.", TYPE)
    recovered = Family("jobs_recovered_total", "counter", "Jobs that failed because their worker was gone.")
    waited = Family("jobs_wait_seconds", "histogram", "From submission to start.", TYPE, BUCKETS_SEC)
    ran = Family("jobs_attempt_duration_seconds", "histogram", "From start to end.", TYPE, BUCKETS_SEC)
    _begin(finished, retries, recovered)
    types, pools = job_types(), resources()
    for row in counted.ended:
        job_type = known(types.get(row.job_type), types)
        finished.add(row.jobs, known(row.resource, pools), job_type, row.status)
        retries.add(row.retried, job_type)
        recovered.add(row.recovered)
        if row.wait_bucket >= 0:
            waited.observe(row.wait_bucket, row.jobs, row.wait_sec, job_type)
            ran.observe(row.run_bucket, row.jobs, row.run_sec, job_type)
    return [finished, retries, recovered, waited, ran]


def _begin(finished: Family, retries: Family, recovered: Family) -> None:
    """A counter that starts at 0 shows its first step; one that appears with it does not."""
    recovered.add(0)
    for resource, job_type in declared():
        retries.add(0, job_type)
        for outcome in sorted(TERMINAL):
            finished.add(0, resource, job_type, str(outcome))
