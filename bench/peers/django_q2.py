"""django-q2 with its ORM broker: one cluster of two workers, tasks fetched in bulk, successes not kept."""

from __future__ import annotations

from bench.peers.django_site import configure, migrate

JOBS = 2_000
REMAINING_SQL = "SELECT count(*) FROM django_q_ormq"
WORKERS = 1  # a cluster starts its processes itself


def noop() -> None:
    return None


def _configure() -> None:
    cluster = {
        "name": "bench",
        "orm": "default",
        "workers": 2,
        "bulk": 50,
        "queue_limit": 200,
        "poll": 0.05,
        "save_limit": -1,
        "recycle": 100_000,
        "timeout": 60,
        "retry": 600,
        "scheduler": False,
        "log_level": "ERROR",
    }
    configure(INSTALLED_APPS=["django_q"], Q_CLUSTER=cluster)


def enqueue_jobs(jobs: int) -> None:
    _configure()
    migrate()
    from django.db import transaction
    from django_q.tasks import async_task

    with transaction.atomic():
        for _ in range(jobs):
            async_task("bench.peers.django_q2.noop")


def run_worker() -> None:
    _configure()
    from django.core.management import call_command

    call_command("qcluster", verbosity=0)
