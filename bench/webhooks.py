"""What webhooks cost the jobs: the drain with dead receivers against one without any: `python -m bench.webhooks`."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from bench.jobs import NOOP
from bench.measure import CAL, Bar, Calibration, Rates, calibrated, per_second, ratio, spread, table
from bench.sizes import scaled
from bench.workers import empty, fill, rate_of_the_middle, work_off

TITLE = "Webhooks: no-op jobs drained while their events are owed to receivers"
ROUNDS = 5
ENDPOINTS = 20
JOBS = {"postgresql": (2, 100, 60_000), "sqlite": (1, 8, 20_000)}  # processes, slots, jobs
ENDS, ALL = f"{ENDPOINTS} dead, job.completed", f"{ENDPOINTS} dead, every event"
OTHERS = f"{ENDPOINTS} dead, job.failed only"


def measure(calibration: Calibration, rounds: int | None) -> Rates:
    """In a process whose Django is set up on the database in question."""
    from django.db import connection

    os.environ["JOBSCHEDULER_WEBHOOK_ALLOW_PRIVATE"] = "1"  # the dead are on loopback; for us and for the workers
    with dead_receivers() as urls:
        drain = _drain(*JOBS[connection.vendor], urls)
        wanted = {OTHERS: ["job.failed"], ENDS: ["job.completed"], ALL: ["*"]}
        return calibrated(rounds or ROUNDS, drain([]), {name: drain(events) for name, events in wanted.items()})


def _drain(processes: int, slots: int, jobs: int, urls: list[str]) -> Callable[[list[str]], Callable[[], float]]:
    number = scaled(jobs, least=40 * slots)

    def with_endpoints_for(events: list[str]) -> Callable[[], float]:
        def rate() -> float:
            _forget_all()
            fill(NOOP, number)
            if events:
                _subscribe(urls, events)
            work_off(processes, slots, number)
            return rate_of_the_middle(number)

        return rate

    return with_endpoints_for


@contextmanager
def dead_receivers() -> Iterator[list[str]]:
    """Half of them refuse connections, half accept them and never say a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as deaf:
        hangs = f"http://127.0.0.1:{deaf.getsockname()[1]}/"
        yield [hangs if number % 2 else "http://127.0.0.1:9/" for number in range(ENDPOINTS)]


def _subscribe(urls: list[str], events: list[str]) -> None:
    from webhooks import services
    from webhooks.models import WebhookEndpoint

    for url in urls:
        endpoint, _secret = services.create("https://example.org/", events)
        WebhookEndpoint.objects.filter(pk=endpoint.pk).update(url=url)  # loopback, which is not allowed in this process


def _forget_all() -> None:
    from django.apps import apps
    from django.core.management.color import no_style
    from django.db import connection

    empty()
    tables = [model._meta.db_table for model in apps.get_app_config("jobscheduler_webhooks").get_models()]
    connection.ops.execute_sql_flush(connection.ops.sql_flush(no_style(), tables, allow_cascade=True))


def report(found: Mapping[str, Rates]) -> str:
    heads = ("database", "endpoints", "jobs a second", "of all rounds", "without any", "÷ without")
    rows = [
        (
            database,
            name,
            per_second(rates[name]),
            spread(rates[name]),
            per_second(rates[name + CAL]),
            f"{_share(rates, name):.2f}",
        )
        for database, rates in found.items()
        for name in (OTHERS, ENDS, ALL)
    ]
    return table(heads, rows)


def _share(rates: Rates, name: str) -> float:
    return ratio(rates, name, name + CAL)


def bars(found: Mapping[str, Rates]) -> list[Bar]:
    return [
        Bar(f"drain with {name} ÷ without webhooks, {database}", _share(rates, name), 0.9)
        for database, rates in found.items()
        for name in (OTHERS, ENDS, ALL)
    ]


if __name__ == "__main__":
    from bench.__main__ import main

    sys.exit(main(["webhooks", *sys.argv[1:]]))
