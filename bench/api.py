"""Speed of the API with a million jobs and with ten thousand: `python -m bench.api`."""

from __future__ import annotations

import sys
from typing import Any
from uuid import uuid4

from bench import growth
from bench.growth import bars, report
from bench.measure import Calibration, Rates

__all__ = ["TITLE", "bars", "measure", "report"]

TITLE = "API: answers a second to one caller, at 10 k jobs and at 1 M, a tenth of them live"
GETS = {
    "jobs": "/api/jobs",
    "jobs, QUEUED": "/api/jobs?status=QUEUED",
    "jobs, FAILED": "/api/jobs?status=FAILED",
    "jobs, of a type": "/api/jobs?job_type=crowd.mail",
    "jobs, of a target": "/api/jobs?target=target%2010",
    "jobs, of a tenant": "/api/jobs?tenant=other",
    "jobs, tagged": "/api/jobs?tag=rare",
    "jobs, in queue order": "/api/jobs?order=queue",
    "a job": "/api/jobs/{job_id}",
    "its events": "/api/jobs/{job_id}/events",
    "its logs": "/api/jobs/{job_id}/logs",
    "why it waits": "/api/jobs/{waiting_id}/explain",
    "runs": "/api/job-runs",
    "runs, FAILED": "/api/job-runs?status=FAILED",
    "a run": "/api/job-runs/{job_id}",
    "targets": "/api/targets",
    "a target": "/api/targets/target%2010",
    "templates": "/api/job-templates",
    "job types": "/api/job-types",
    "workers": "/api/workers",
    "limits": "/api/limits",
    "stats": "/api/stats",
    "metrics": "/metrics",
}


def measure(calibration: Calibration, rounds: int | None) -> Rates:
    return growth.measure(growth.Workload(GETS, ("stats", "metrics"), _create_client), rounds)


def _create_client() -> Any:
    from django.test import Client

    from jobs.services import tokens

    token = tokens.create(f"bench {uuid4()}", tenant=None)[1]
    return Client(SERVER_NAME="localhost", headers={"Authorization": f"Bearer {token}"})


if __name__ == "__main__":
    from bench.__main__ import main

    sys.exit(main(["api", *sys.argv[1:]]))
