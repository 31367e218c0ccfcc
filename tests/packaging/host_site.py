"""The wheel in a host site: the steps of the guide are applied to it, and everything works.

Told by the suite on its own Python, and by `make matrix` on every Django and Python.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.packaging import doc_examples
from tests.packaging.processes import run

GUIDE = "existing-site.md"
HERE = Path(__file__).parent / "foreign_site"
Manage = Callable[..., str]
JOBS = "/backoffice/jobscheduler_jobs/job/"
PAGES = (
    *("/ops/queue/healthz", "/ops/queue/readyz", "/ops/queue/metrics"),
    *("/ops/queue/api/openapi.json", "/ops/queue/api/jobs"),
    *("/backoffice/", JOBS, "/backoffice/jobscheduler_schedules/schedule/"),
)
CROWD, DEFER_SEC = 1_100, 15.0  # a slow machine still reads the deferred one in time
SQLITE = {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": "PRAGMA journal_mode=WAL"}
OURS = ("DJANGO_", "JOBSCHEDULER_", "PYTHON", "DATABASE_URL")


def sqlite(path: Path) -> dict[str, Any]:
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "OPTIONS": SQLITE}


def settle(place: Path) -> Path:
    """The site in a place of its own, with all that the guide adds to it."""
    site = shutil.copytree(HERE, place, ignore=shutil.ignore_patterns("__pycache__"))
    for language, text in doc_examples.blocks(GUIDE):
        if language == "python":
            doc_examples.write(text, site)
    return site


def manager(python: Path, site: Path, database: dict[str, Any]) -> Manage:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    env = {**inherited, "SITE_DATABASE": json.dumps(database)}
    return lambda *words: run([python, site / "manage.py", *words], env=env, cwd=site)


def tell(manage: Manage, *, wheel_home: Path) -> str:
    """Where the site's `django.tasks` came from."""
    follow_the_guide(manage)
    a_job_of_its_own(manage, wheel_home)
    people_and_pages(manage)
    large_numbers(manage)
    return tasks_of_the_standard(manage)


def follow_the_guide(manage: Manage) -> None:
    manage("makemigrations", "accounts", "shop")
    manage("makemigrations", "--check", "--dry-run")
    for line in doc_examples.commands(GUIDE):
        if line.startswith("python manage.py "):
            manage(*line.split()[2:])
    manage("check", "--fail-level=WARNING")


def a_job_of_its_own(manage: Manage, wheel_home: Path) -> None:
    job = manage("order", "7").strip()
    assert manage("worker") == "the shop's own\n"
    manage("jobscheduler", "worker", "--burst")
    seen = json.loads(manage("inspect", job))
    assert (seen["status"], seen["receipts"]) == ("COMPLETED", [7]), seen
    assert seen["code"].startswith(str(wheel_home)), f"the code is not the wheel's: {seen['code']}"
    assert json.loads(manage("abandon")) == [1, 0], "a job on another database stays; one on commit is never made"


def people_and_pages(manage: Manage) -> None:
    all_open = [word for page in PAGES for word in ("200", page)]
    assert manage("visit", *PAGES).split() == all_open
    manage("createroles")
    assert manage("visit", JOBS, "--group=Job viewer").split() == ["200", JOBS]


def tasks_of_the_standard(manage: Manage) -> str:
    """Enqueue, defer, priority, async, result, failure with traceback, retry. Where the standard came from."""
    ids = manage("give_tasks", str(DEFER_SEC)).strip()
    due = time.monotonic() + DEFER_SEC
    manage("jobscheduler", "worker", "--burst", "--concurrency=1")
    read = json.loads(manage("read_tasks", ids))
    assert _read_ends(read, "plain", "coroutine", "awaited") == [["SUCCESSFUL", value, 1] for value in (42, 7, 10)]
    started = [read[name]["started_at"] for name in ("high", "plain", "low")]
    assert started == sorted(started), started
    assert _read_ends(read, "retried", "failing") == [["READY", None, 1]] * 2, "both wait out their backoff"
    _failures_and_retries(manage, ids)
    _the_deferred_one(manage, ids, read["deferred"], due)
    return str(read["plain"]["standard"])


def _failures_and_retries(manage: Manage, ids: str) -> None:
    given = json.loads(ids)
    manage("jobscheduler", "jobs", "retry", given["retried"], given["failing"])
    manage("jobscheduler", "worker", "--burst")
    read = json.loads(manage("read_tasks", ids))
    assert _read_ends(read, "retried", "failing") == [["SUCCESSFUL", 2, 2], ["FAILED", None, 2]]
    kinds, traces = zip(*read["retried"]["errors"], *read["failing"]["errors"], strict=True)
    assert kinds == ("LookupError",) * 3
    assert all("shop/tasks.py" in trace and 'raise LookupError(f"attempt' in trace for trace in traces), traces


def _the_deferred_one(manage: Manage, ids: str, before: dict[str, Any], due: float) -> None:
    if before["started_at"] is None:  # else the machine was so slow that its time had come
        assert [before[name] for name in ("status", "value", "attempts")] == ["READY", None, 0], before
    time.sleep(max(due - time.monotonic(), 0))  # it is for the clock that we wait, as the task does
    manage("jobscheduler", "worker", "--burst")
    after = json.loads(manage("read_tasks", ids))["deferred"]
    assert (after["status"], after["value"]) == ("SUCCESSFUL", 2), after
    assert after["started_at"] >= after["run_after"], after


def _read_ends(read: dict[str, Any], *names: str) -> list[list[Any]]:
    return [[read[name]["status"], read[name]["value"], read[name]["attempts"]] for name in names]


def large_numbers(manage: Manage) -> None:
    """Shown with the site's separator, and without it wherever they are an address or a field."""
    made = json.loads(manage("crowd", str(CROWD)))
    job, schedule = f"{JOBS}{made['job']}", f"/backoffice/jobscheduler_schedules/schedule/{made['schedule']}"
    seen = json.loads(manage("crawl", "/backoffice/", f"{job}/change/", f"{job}/edit/"))
    assert (seen["broken"], seen["spoiled"]) == ({}, []), seen
    assert f"{CROWD:_}".replace("_", ".") in seen["shown"], seen["shown"]
    assert seen["pages"] > 50, seen["pages"]

    limit = json.loads(manage("numbers", made["job"]))["limit"][0]
    submit_form(manage, f"{job}/edit/", {"priority": "77"})
    submit_form(manage, f"/backoffice/jobscheduler_jobs/concurrencylimit/{limit}/change/", {"reason": "for the press"})
    submit_form(manage, f"{schedule}/change/", {"misfire_grace_sec": "1300"})
    numbers = json.loads(manage("numbers", made["job"]))
    assert (numbers["job"], numbers["limit"][1], numbers["schedule"]) == ([77, 1000], 1_500, [5_400, 1_300]), numbers


def submit_form(manage: Manage, path: str, changes: dict[str, str]) -> None:
    answer = json.loads(manage("fill_in", path, json.dumps(changes)))
    assert answer == {"status": 302, "missing": [], "errors": ""}, (path, answer)
