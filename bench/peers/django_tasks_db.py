"""django-tasks with its database backend: `db_worker`, one job at a time in each process."""

from __future__ import annotations

from bench.peers.django_site import configure, migrate

JOBS = 2_000
REMAINING_SQL = "SELECT count(*) FROM django_tasks_database_dbtaskresult WHERE status IN ('READY', 'RUNNING')"
WORKERS = 2


def noop() -> None:
    return None


def _configure() -> None:
    global noop
    configure(
        INSTALLED_APPS=["django_tasks", "django_tasks_db"],
        TASKS={"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}},
    )
    from django_tasks import task

    noop = task()(noop)  # the worker imports it by its name from this module


def enqueue_jobs(jobs: int) -> None:
    _configure()
    migrate()
    from django.db import transaction

    with transaction.atomic():
        for _ in range(jobs):
            noop.enqueue()  # type: ignore[attr-defined]


def run_worker() -> None:
    _configure()
    from django.core.management import call_command

    call_command("db_worker", batch=True, startup_delay=False, interval=0.1, verbosity=0)
