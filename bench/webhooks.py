"""Cost of webhooks: the drain with dead receivers and without webhooks: `python -m bench.webhooks`."""

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
from bench.measure import (
    CAL,
    Bar,
    Calibration,
    Ceiling,
    Rates,
    format_range,
    format_rate,
    format_table,
    measure_calibrated,
    median_ratio,
)
from bench.processes import Processes, raise_if_failed
from bench.sizes import is_quick, scale_size
from bench.workers import MIN_JOBS_PER_SEC, START_SEC, empty_tables, fill_queue, measure_middle_rate, run_workers

TITLE = "Webhooks: drain while every event has subscribers"
ROUNDS = 5
ENDPOINTS = 20
NOOPS = {"postgresql": (NOOP, 2, 100, 60_000), "sqlite": (NOOP, 1, 8, 20_000)}  # processes, slots, jobs
SHORTS = {
    "postgresql": (SHORT, 2, 8, 16_000),
    "sqlite": (SHORT, 1, 8, 8_000),
}  # of 10 ms: the number of slots limits the rate
COMPLETED, ALL = f"{ENDPOINTS} dead, job.completed", f"{ENDPOINTS} dead, every event"
FAILED, ALL_SHORT = f"{ENDPOINTS} dead, job.failed only", f"{ALL}, jobs of 10 ms"
BARS = {FAILED: 0.9, COMPLETED: 0.9, ALL: 0.85, ALL_SHORT: 0.98}
FAN_OUT = "fan-out"  # seconds from the last job's finish until the deliveries of all events exist, up to the cap
FAN_OUT_SEC, TIMEOUT_SEC = 60.0, 120.0
POLL_SEC = 0.2
EVENTS_PER_JOB = 2  # started and completed; the endpoints are created after the submission
MAX_PENDING = 10_000  # deliveries of one endpoint, where the setting WEBHOOK_MAX_PENDING does not exist


def measure(calibration: Calibration, rounds: int | None) -> Rates:
    """Return the rates. Django must be set up on the database that is measured."""
    from django.db import connection

    logging.getLogger("webhooks.services").setLevel(logging.WARNING)  # it logs each new endpoint
    os.environ["JOBSCHEDULER_WEBHOOK_ALLOW_PRIVATE"] = "1"  # for the workers: the dead receivers are on loopback
    rounds = rounds or ROUNDS
    with dead_receivers() as urls:
        noops, shorts = (Drain(*setups[connection.vendor], urls) for setups in (NOOPS, SHORTS))
        measures = {
            FAILED: partial(noops.rate, ["job.failed"]),
            COMPLETED: partial(noops.rate, ["job.completed"]),
            ALL: partial(noops.rate, ["*"]),
        }
        rates = measure_calibrated(rounds, noops.rate, measures)
        rates |= measure_calibrated(rounds, shorts.rate, {ALL_SHORT: partial(shorts.rate, ["*"])})
    return rates | {FAN_OUT: noops.fan_out_sec}


@dataclass
class Drain:
    """A drain by workers that also send webhooks."""

    job_type: str
    processes: int
    slots: int
    jobs: int
    urls: list[str]
    fan_out_sec: list[float] = field(default_factory=list)

    def rate(self, events: Sequence[str] = ()) -> float:
        """Return jobs per second while these events have subscribers; append the time of a complete fan-out."""
        jobs = scale_size(self.jobs, minimum=40 * self.slots)
        _empty_all_tables()
        fill_queue(self.job_type, jobs)
        if events:
            _subscribe(self.urls, events)
        with run_workers(self.processes, self.slots) as processes:
            _wait_until(lambda: not _has_live_jobs(), processes, START_SEC + jobs / MIN_JOBS_PER_SEC)
            if "*" in events and self.job_type == NOOP:
                self.fan_out_sec.append(
                    _measure_fan_out(processes, len(self.urls) * min(_get_max_pending(), EVENTS_PER_JOB * jobs))
                )
        return measure_middle_rate(jobs)


def _measure_fan_out(processes: Processes, deliveries: int) -> float:
    """Return the seconds until the deliveries exist, at most TIMEOUT_SEC."""
    from webhooks.models import WebhookDelivery

    began = time.monotonic()
    with suppress(TimeoutError):
        timeout = TIMEOUT_SEC / 10 if is_quick() else TIMEOUT_SEC
        _wait_until(lambda: WebhookDelivery.objects.count() >= deliveries, processes, timeout)
        return time.monotonic() - began
    return TIMEOUT_SEC


def _wait_until(is_done: Callable[[], bool], processes: Processes, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not is_done():
        raise_if_failed(processes)
        if time.monotonic() > deadline:
            raise TimeoutError(f"the condition was not met within {seconds:g} s")
        time.sleep(POLL_SEC)


def _has_live_jobs() -> bool:
    from jobs.models import Job

    live: bool = Job.objects.filter(status__in=["QUEUED", "RUNNING"]).exists()
    return live


def _get_max_pending() -> int:
    from jobs.conf import conf

    return int(getattr(conf, "WEBHOOK_MAX_PENDING", MAX_PENDING))


@contextmanager
def dead_receivers() -> Iterator[list[str]]:
    """Yield URLs of receivers: half of them refuse connections, half accept them and never respond."""
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as unresponsive:
        hanging = f"http://127.0.0.1:{unresponsive.getsockname()[1]}/"
        yield [hanging if number % 2 else "http://127.0.0.1:9/" for number in range(ENDPOINTS)]


def _subscribe(urls: list[str], events: Sequence[str]) -> None:
    from webhooks import services
    from webhooks.models import WebhookEndpoint

    for url in urls:
        endpoint, _ = services.create("https://example.org/", list(events))
        WebhookEndpoint.objects.filter(pk=endpoint.pk).update(url=url)  # only the workers may send to loopback


def _empty_all_tables() -> None:
    from django.apps import apps
    from django.core.management.color import no_style
    from django.db import connection

    empty_tables()
    tables = [model._meta.db_table for model in apps.get_app_config("jobscheduler_webhooks").get_models()]
    connection.ops.execute_sql_flush(connection.ops.sql_flush(no_style(), tables, allow_cascade=True))


def report(results: Mapping[str, Rates]) -> str:
    heads = ("database", "endpoints", "jobs a second", "of all rounds", "without any", "÷ without")
    rows = [
        (
            database,
            name,
            format_rate(rates[name]),
            format_range(rates[name]),
            format_rate(rates[name + CAL]),
            f"{_ratio_to_cal(rates, name):.2f}",
        )
        for database, rates in results.items()
        for name in BARS
    ]
    return format_table(heads, rows)


def _ratio_to_cal(rates: Rates, name: str) -> float:
    return median_ratio(rates, name, name + CAL)


def bars(results: Mapping[str, Rates]) -> list[Bar | Ceiling]:
    checked: list[Bar | Ceiling] = []
    for database, rates in results.items():
        for name, bar in BARS.items():
            checked.append(Bar(f"drain with {name} ÷ without webhooks, {database}", _ratio_to_cal(rates, name), bar))
        fan_out = f"fan-out of {ALL}, after the drain, {database}"
        checked.append(Ceiling(fan_out, median(rates[FAN_OUT]), FAN_OUT_SEC, None, " s"))
    return checked


if __name__ == "__main__":
    from bench.__main__ import main

    sys.exit(main(["webhooks", *sys.argv[1:]]))
