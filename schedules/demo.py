"""The schedules of the demo. One of them has a history of fires."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from jobs import clock, db
from jobs.actors import Actor
from jobs.demo import TENANT
from schedules import services
from schedules.firing import fire_schedule
from schedules.models import Schedule

FIRE_COUNT = 30
SLEEP: dict[str, Any] = {"job_type": "system.sleep", "params": {"seconds": 8}, "priority": "LOW"}
MAIL: dict[str, Any] = {"job_type": "demo.mail", "params": {"to": "reader@open.example"}}
FAILING_MAIL: dict[str, Any] = {"job_type": "demo.mail", "params": {"to": "reader@closed.example"}}


def prepare(actor: Actor) -> None:
    """Create a schedule and fire it for the past half hour; its later fires insert jobs that any worker can run."""
    start = clock.now() - timedelta(minutes=FIRE_COUNT)
    every_minute = {"every_sec": 60, "anchor_at": start, "catch_up": "all", "catch_up_max": FIRE_COUNT}
    schedule = services.create({"name": "demo: every minute", **every_minute, **MAIL}, tenant=TENANT, actor=actor)
    for fields, first, last in ((MAIL, 0, 21), (FAILING_MAIL, 22, 24), (MAIL, 25, FIRE_COUNT - 1)):
        # Set the schedule back, so that it fires what was due in between.
        rows = Schedule.objects.filter(pk=schedule.pk)
        with db.atomic():
            rows.update(next_fire_at=start + timedelta(minutes=first), **fields)
            fire_schedule(rows.get(), start + timedelta(minutes=last))
    services.update(schedule.pk, {"catch_up": "latest", "overlap": "skip", **SLEEP}, actor=actor)


def finish(actor: Actor) -> None:
    for fields in (
        {"name": "demo: when clocks change", "cron": "30 2 * * *", "timezone": "Europe/Berlin", **SLEEP},
        {"name": "demo: working days at nine", "cron": "0 9 * * 1-5", "timezone": "America/New_York", **SLEEP},
        {"name": "demo: first of the month", "cron": "@monthly", "jitter_sec": 600, **SLEEP},
    ):
        services.create(fields, tenant=TENANT, actor=actor)
    disabled = services.create(
        {"name": "demo: switched off", "cron": "*/10 * * * *", **SLEEP}, tenant=TENANT, actor=actor
    )
    services.disable(disabled.pk, reason="demo: until after the fair", actor=actor)


def clear(actor: Actor) -> None:
    for schedule_id in list(services.of(TENANT).values_list("pk", flat=True)):
        services.delete(schedule_id, actor=actor)
