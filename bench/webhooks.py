"""What webhooks cost the jobs: the drain with dead receivers against one without any: `python -m bench.webhooks`."""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from statistics import median

from bench.jobs import NOOP, SHORT
from bench.measure import CAL, Bar, Calibration, Ceiling, Rates, calibrated, per_second, ratio, spread, table
from bench.processes import Processes, require_sound
from bench.sizes import is_quick, scaled
from bench.workers import SLOWEST, START_SEC, empty, fill, rate_of_the_middle, workers

TITLE = "Webhooks: drain while every event has subscribers"
ROUNDS = 5
ENDPOINTS = 20
NOOPS = {"postgresql": (NOOP, 2, 100, 60_000), "sqlite": (NOOP, 1, 8, 20_000)}  # processes, slots, jobs
SHORTS = {"postgresql": (SHORT, 2, 8, 16_000), "sqlite": (SHORT, 1, 8, 8_000)}  # of 10 ms: slots are what is short
ENDS, ALL = f"{ENDPOINTS} dead, job.completed", f"{ENDPOINTS} dead, every event"
OTHERS, ALL_SHORT = f"{ENDPOINTS} dead, job.failed only", f"{ALL}, jobs of 10 ms"
BARS = {OTHERS: 0.9, ENDS: 0.9, ALL: 0.85, ALL_SHORT: 0.98}
FAN_OUT = "fan-out"  # seconds from the last job's end until the deliveries of all events are there, up to the cap
FAN_OUT_SEC, PATIENCE_SEC = 60.0, 120.0
LOOK_SEC = 0.2
EVENTS_A_JOB = 2  # started and completed; the endpoints come after the submission
CAP = 10_000  # deliveries that wait at one endpoint, unless WEBHOOK_MAX_PENDING says otherwise


def measure(calibration: Calibration, rounds: int | None) -> Rates:
    """In a process whose Django is set up on the database in question."""
    from django.db import connection

    logging.getLogger("webhooks.services").setLevel(logging.WARNING)  # of each endpoint it would say so
    os.environ["JOBSCHEDULER_WEBHOOK_ALLOW_PRIVATE"] = "1"  # the dead are on loopback; for the workers
    rounds = rounds or ROUNDS
    with dead_receivers() as urls:
        noops, shorts = (Drain(*setups[connection.vendor], urls) for setups in (NOOPS, SHORTS))
        measures = {
            OTHERS: partial(noops.rate, ["job.failed"]),
            ENDS: partial(noops.rate, ["job.completed"]),
            ALL: partial(noops.rate, ["*"]),
        }
        found = calibrated(rounds, noops.rate, measures)
        found |= calibrated(rounds, shorts.rate, {ALL_SHORT: partial(shorts.rate, ["*"])})
    return found | {FAN_OUT: noops.fan_out_sec}


@dataclass
class Drain:
    """Jobs worked off by workers whose senders run, too."""

    job_type: str
    processes: int
    slots: int
    jobs: int
    urls: list[str]
    fan_out_sec: list[float] = field(default_factory=list)

    def rate(self, events: Sequence[str] = ()) -> float:
        jobs = scaled(self.jobs, least=40 * self.slots)
        _forget_all()
        fill(self.job_type, jobs)
        if events:
            _subscribe(self.urls, events)
        with workers(self.processes, self.slots) as processes:
            _await(lambda: not _has_live_jobs(), processes, START_SEC + jobs / SLOWEST)
            if "*" in events and self.job_type == NOOP:
                self.fan_out_sec.append(_await_fan_out(processes, len(self.urls) * min(_cap(), EVENTS_A_JOB * jobs)))
        return rate_of_the_middle(jobs)


def _await_fan_out(processes: Processes, deliveries: int) -> float:
    """Return how many seconds it took, or PATIENCE_SEC where it was not done by then."""
    from webhooks.models import WebhookDelivery

    began = time.monotonic()
    with suppress(TimeoutError):
        patience = PATIENCE_SEC / 10 if is_quick() else PATIENCE_SEC
        _await(lambda: WebhookDelivery.objects.count() >= deliveries, processes, patience)
        return time.monotonic() - began
    return PATIENCE_SEC


def _await(is_done: Callable[[], bool], processes: Processes, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not is_done():
        require_sound(processes)
        if time.monotonic() > deadline:
            raise TimeoutError(f"the condition was not met within {seconds:g} s")
        time.sleep(LOOK_SEC)


def _has_live_jobs() -> bool:
    from jobs.models import Job

    live: bool = Job.objects.filter(status__in=["QUEUED", "RUNNING"]).exists()
    return live


def _cap() -> int:
    from jobs.conf import conf

    return int(getattr(conf, "WEBHOOK_MAX_PENDING", CAP))


@contextmanager
def dead_receivers() -> Iterator[list[str]]:
    """Half of them refuse connections, half accept them and never say a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as deaf:
        hangs = f"http://127.0.0.1:{deaf.getsockname()[1]}/"
        yield [hangs if number % 2 else "http://127.0.0.1:9/" for number in range(ENDPOINTS)]


def _subscribe(urls: list[str], events: Sequence[str]) -> None:
    from webhooks import services
    from webhooks.models import WebhookEndpoint

    for url in urls:
        endpoint, _ = services.create("https://example.org/", list(events))
        WebhookEndpoint.objects.filter(pk=endpoint.pk).update(url=url)  # only the workers may send to loopback


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
        for name in BARS
    ]
    return table(heads, rows)


def _share(rates: Rates, name: str) -> float:
    return ratio(rates, name, name + CAL)


def bars(found: Mapping[str, Rates]) -> list[Bar | Ceiling]:
    reached: list[Bar | Ceiling] = []
    for database, rates in found.items():
        for name, bar in BARS.items():
            reached.append(Bar(f"drain with {name} ÷ without webhooks, {database}", _share(rates, name), bar))
        fan_out = f"fan-out of {ALL}, after the drain, {database}"
        reached.append(Ceiling(fan_out, median(rates[FAN_OUT]), FAN_OUT_SEC, None, " s"))
    return reached


if __name__ == "__main__":
    from bench.__main__ import main

    sys.exit(main(["webhooks", *sys.argv[1:]]))
