"""Speed of the console pages with a million jobs and with ten thousand: `python -m bench.console`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from bench import growth
from bench.growth import bars, report
from bench.measure import Calibration, Rates

__all__ = ["TITLE", "bars", "measure", "report"]

TITLE = "Console: pages a second for one operator, at 10 k jobs and at 1 M, a tenth of them live"
SCREENS = ("overview", "counts", "queue", "activity", "performance", "enqueue")
OTHERS = ("target", "concurrencylimit", "worker", "jobgroup", "jobtemplate", "apitoken")


def measure(calibration: Calibration, rounds: int | None) -> Rates:
    return growth.measure(growth.Workload(_list_pages(), ("overview",), _create_operator), rounds)


def _list_pages() -> dict[str, str]:
    from django.urls import reverse

    from jobs.models import Job
    from jobs.states import Status

    def job_url(view: str, *args: str) -> str:
        return reverse(f"admin:{Job._meta.app_label}_{Job._meta.model_name}_{view}", args=args)

    jobs = job_url("changelist")
    screens = {name: reverse(f"admin:{Job._meta.app_label}_{name}") for name in SCREENS}
    lists = {name: reverse(f"admin:{Job._meta.app_label}_{name}_changelist") for name in OTHERS}
    return {
        **screens,
        "overview, 7 days": f"{screens['overview']}?window=7d",
        "performance, 7 days": f"{screens['performance']}?window=7d",
        "queue of a target": f"{screens['queue']}?target=target%2010",
        "jobs": jobs,
        **{f"jobs, {status}": f"{jobs}?status={status}" for status in Status},
        "jobs, of the last day": f"{jobs}?created=24h",
        "jobs, ended in a day": f"{jobs}?ended=24h",
        **{
            f"jobs, {status} in a day": f"{jobs}?ended=24h&status={status}"
            for status in (Status.COMPLETED, Status.FAILED)
        },
        **{
            f"jobs, {kind}": f"{jobs}?attention={kind}"
            for kind in ("unhandled", "blocking", "unserved", "stuck", "timed", "late")
        },
        **{
            f"jobs, tab {tab}": f"{jobs}?status={tab}"
            for tab in ("waiting", "blocked", "scheduled", "stopped", "dropped")
        },
        **{f"jobs, search {term}": f"{jobs}?q={term}" for term in ("tag:rare", "tag:none", "rare", "type:crowd.mail")},
        **{f"jobs, order {sort}": f"{jobs}?sort={sort}" for sort in ("oldest", "running", "due", "finished")},
        "jobs, submitted from, to": f"{jobs}?submitted_from={_days_ago(9)}&submitted_to={_days_ago(8)}",
        "jobs, finished from, to": f"{jobs}?ended_from={_days_ago(9)}&ended_to={_days_ago(8)}",
        "jobs, FAILED from, to": f"{jobs}?ended_from={_days_ago(9)}&ended_to={_days_ago(8)}&status=FAILED",
        "a job": f"{jobs}{{job_id}}/change/",
        "a job that waits": f"{jobs}{{waiting_id}}/change/",
        **{f"list: {name}": path for name, path in lists.items()},
    }


def _days_ago(days: int) -> str:
    return f"{datetime.now(UTC) - timedelta(days=days):%Y-%m-%dT%H:%MZ}"


def _create_operator() -> Any:
    from django.contrib.auth import get_user_model
    from django.test import Client

    client = Client(SERVER_NAME="localhost")
    client.force_login(get_user_model().objects.create_superuser("bench"))
    return client


if __name__ == "__main__":
    from bench.__main__ import main

    sys.exit(main(["console", *sys.argv[1:]]))
