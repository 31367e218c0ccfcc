"""Many schedulers at once, killed at any moment, over hours of simulated time: one fire and one job per due time."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection

from jobs.models import Job
from schedules.models import Schedule, ScheduleFire
from tests.chaos.report import SuiteReport
from tests.support.worker_processes import MANAGE, Fleet

BEGIN = datetime(2026, 6, 15, tzinfo=UTC)
DAY_SEC = 86_400
PATIENCE_SEC = 1800
FORK = multiprocessing.get_context("fork")


def run(
    fleet: Fleet, chance: random.Random, *, schedules: int, minutes: int, schedulers: int = 4, sabotage: bool = False
) -> SuiteReport:
    verdict = SuiteReport()
    stage(schedules)
    connection.close()
    report = storm(fleet, {"minutes": minutes, "schedulers": schedulers, "seed": chance.random(), "sabotage": sabotage})
    judge(verdict, minutes)
    verdict.note(schedules=schedules, minutes=minutes, jobs=Job.objects.count(), **report)
    return verdict


def stage(schedules: int) -> None:
    """Every minute, in zones of every temper; each third must not overlap itself."""
    zones = ("UTC", "Europe/Berlin", "Australia/Lord_Howe")
    Schedule.objects.bulk_create(
        Schedule(
            name=f"every minute {number}",
            job_type="sample.add",
            params={"a": number, "b": 1},
            cron="* * * * *",
            timezone=zones[number % len(zones)],
            overlap="allow" if number % 3 else "skip",
            misfire_grace_sec=DAY_SEC,
            next_fire_at=BEGIN + timedelta(minutes=1),
        )
        for number in range(schedules)
    )


def storm(fleet: Fleet, plan: dict[str, Any]) -> dict[str, Any]:
    begin = f"import django, sys; django.setup(); from {__name__} import main; main(sys.argv[1])"
    command = [sys.executable, "-c", begin, json.dumps(plan)]
    with subprocess.Popen(
        command, env=fleet.env, cwd=MANAGE.parent, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            answer, _ = process.communicate(timeout=PATIENCE_SEC)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    found: dict[str, Any] = json.loads(answer)
    return found


def judge(verdict: SuiteReport, minutes: int) -> None:
    expected = {BEGIN + timedelta(minutes=number) for number in range(1, minutes + 1)}
    fires = list(ScheduleFire.objects.values_list("schedule_id", "fire_time", "job_id"))
    for schedule_id in Schedule.objects.values_list("pk", flat=True):
        times = Counter(due for item, due, _ in fires if item == schedule_id)
        wrong = [due for due in expected | set(times) if times[due] != (due in expected)]
        verdict.require(
            not wrong, f"schedule {schedule_id}: {len(wrong)} due times not fired once, such as {wrong[:3]}"
        )
    jobs = list(Job.objects.filter(schedule__isnull=False).values_list("schedule_id", "fire_time", "pk"))
    verdict.require(len(jobs) == len(fires), f"{len(jobs)} jobs, {len(fires)} fires")
    strays = len(set(jobs) ^ set(fires))
    verdict.require(not strays, f"{strays} jobs without their fire, or fires without their job")


# ---------------------------------------------------------------------- in the process that forks and kills schedulers


def main(text: str) -> None:
    die_with_parent()
    plan = json.loads(text)
    if plan["sabotage"]:
        take_the_guards_out()
    clock, stop = FORK.RawValue("d", BEGIN.timestamp()), FORK.RawValue("b", 0)  # no locks: their holder may be killed
    crew = [_start(clock, stop) for _ in range(plan["schedulers"])]
    kills = _rage(crew, clock, stop, plan)
    _await_all_fired(BEGIN + timedelta(minutes=plan["minutes"]))
    stop.value = 1
    for worker in crew:
        worker.join()
    json.dump({"kills": kills}, sys.stdout)


def _rage(crew: list[Any], clock: Any, stop: Any, plan: dict[str, Any]) -> int:
    chance, kills = random.Random(plan["seed"]), 0
    for minute in range(1, plan["minutes"] + 1):
        clock.value = (BEGIN + timedelta(minutes=minute)).timestamp()
        time.sleep(chance.uniform(0.0, 0.1))  # the storm's own pace
        if chance.random() < 0.4:
            place = chance.randrange(len(crew))
            crew[place].kill()
            crew[place].join()
            crew[place] = _start(clock, stop)
            kills += 1
    return kills


def _start(clock: Any, stop: Any) -> Any:
    from django.db import connections

    connections.close_all()  # a connection must not be shared across a fork
    child = FORK.Process(target=_fire_on, args=(clock, stop), daemon=True)
    child.start()
    return child


def _fire_on(clock: Any, stop: Any) -> None:
    """Tick again after a lock timeout, as the maintenance thread does."""
    die_with_parent()
    from jobs.outages import OUTAGE_ERRORS
    from schedules.firing import fire_due

    while not stop.value:
        made = 0
        with suppress(*OUTAGE_ERRORS):
            made = fire_due(datetime.fromtimestamp(clock.value, UTC))
        if not made:
            time.sleep(0.01)  # leave the machine to the others


def die_with_parent() -> None:
    """Kill a process with all that it has started."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _await_all_fired(end: datetime) -> None:
    deadline = time.monotonic() + PATIENCE_SEC / 2
    while Schedule.objects.filter(next_fire_at__lte=end).exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def take_the_guards_out() -> None:
    """No transaction, no lock, and a job for every due time that one sees: the judges must notice."""
    from django.db.models import QuerySet

    from jobs import db
    from schedules import firing

    insert = firing.insert_fires

    def insert_all(fires: Any) -> Any:
        insert(fires)
        return {fire.spec.id for fire in fires}

    def advance(plans: Any) -> int:
        for plan in plans:
            Schedule.objects.filter(pk=plan.schedule.pk).update(next_fire_at=plan.next_at)
        return len(plans)

    db.atomic = lambda **_: nullcontext(db.connection())  # type: ignore[assignment]
    QuerySet.select_for_update = lambda self, **_: self  # type: ignore[method-assign]
    firing.insert_fires, firing.advance_schedules = insert_all, advance
