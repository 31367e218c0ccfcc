"""The schedules of the demo, one of them with a past that its own firing has made."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from jobs import clock, db
from jobs.actors import Actor
from jobs.demo import TENANT
from schedules import services
from schedules.firing import settle
from schedules.models import Schedule

FIRES = 30
NAP: dict[str, Any] = {"job_type": "system.sleep", "params": {"seconds": 8}, "priority": "LOW"}
MAIL: dict[str, Any] = {"job_type": "demo.mail", "params": {"to": "reader@open.example"}}
CLOSED: dict[str, Any] = {"job_type": "demo.mail", "params": {"to": "reader@closed.example"}}


def prepare(actor: Actor) -> None:
    """Its fires are for jobs of the demo's past; from then on it makes what any worker can run."""
    begin = clock.now() - timedelta(minutes=FIRES)
    often = {"every_sec": 60, "anchor_at": begin, "catch_up": "all", "catch_up_max": FIRES}
    pulse = services.create({"name": "demo: every minute", **often, **MAIL}, tenant=TENANT, actor=actor)
    for made, first, last in ((MAIL, 0, 21), (CLOSED, 22, 24), (MAIL, 25, FIRES - 1)):
        # Turn the schedule back, and let it make up for what was due in between.
        rows = Schedule.objects.filter(pk=pulse.pk)
        with db.atomic():
            rows.update(next_fire_at=begin + timedelta(minutes=first), **made)
            settle(rows.get(), begin + timedelta(minutes=last))
    services.update(pulse.pk, {"catch_up": "latest", "overlap": "skip", **NAP}, actor=actor)


def finish(actor: Actor) -> None:
    for values in (
        {"name": "demo: when clocks change", "cron": "30 2 * * *", "timezone": "Europe/Berlin", **NAP},
        {"name": "demo: working days at nine", "cron": "0 9 * * 1-5", "timezone": "America/New_York", **NAP},
        {"name": "demo: first of the month", "cron": "@monthly", "jitter_sec": 600, **NAP},
    ):
        services.create(values, tenant=TENANT, actor=actor)
    asleep = services.create({"name": "demo: switched off", "cron": "*/10 * * * *", **NAP}, tenant=TENANT, actor=actor)
    services.disable(asleep.pk, reason="demo: until after the fair", actor=actor)


def clear(actor: Actor) -> None:
    for key in list(services.of(TENANT).values_list("pk", flat=True)):
        services.delete(key, actor=actor)
