"""Measure the load of the machine into one row: hosts that share a queue decide by the same figures.

The process that holds the maintenance lease measures; if the row is stale, the process that needs the figures does.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models.functions import Now

from jobs import db, notifications
from jobs.conf import conf
from jobs.models import SystemSnapshot
from jobs.policies.admission import Open, State, classify_load
from jobs.process_identity import ProcessIdentity

logger = logging.getLogger("jobs.engine.maintenance.system_load")
INTERVAL_SEC = 2.0
FIRST_CPU_SAMPLE_SEC = 0.05
STALE_SEC = 5 * INTERVAL_SEC  # also the length of the maintenance lease


@dataclass(frozen=True)
class Measurement:
    """Load per core; processor and memory use as fractions."""

    load: float
    cpu: float
    memory: float


def measure() -> Measurement:
    """Measure this machine now."""
    import psutil  # only processes that measure need it

    cores = psutil.cpu_count() or os.cpu_count() or 1
    load, memory = psutil.getloadavg()[0] / cores, psutil.virtual_memory().percent / 100
    # CPU use since the last call of this process; the first call has no last one, and samples for a moment.
    global _has_sampled
    interval = None if _has_sampled else FIRST_CPU_SAMPLE_SEC
    _has_sampled = True
    return Measurement(load, float(psutil.cpu_percent(interval=interval)) / 100, memory)


_has_sampled = False


def is_needed() -> bool:
    """Return whether the admission policy uses the figures."""
    return type(conf.policy("ADMISSION_POLICY")) is not Open


def run_round() -> str:
    """Measure if needed; return what was done."""
    if not is_needed():
        return "off"
    return "measured" if write_measurement() else "measured by another"


def write_measurement() -> bool:
    """Measure and write, if the maintenance lease is ours or free. Return whether it was."""
    measurement = measure()
    with db.atomic():
        row = lock_row()
        if row.holder != _holder_name() and not (row.held_until is None or row.held_until <= get_now(row)):
            return False
        store_measurement(row, measurement)
    return True


def lock_row() -> SystemSnapshot:
    """Lock the row until the transaction ends, and create it if missing; `row.now` is the database's clock."""
    rows = SystemSnapshot.objects.all()
    locked = rows.select_for_update(no_key=True).annotate(now=Now())
    row = locked.filter(pk=SystemSnapshot.SINGLETON_ID).first()
    if row is None:
        rows.bulk_create([SystemSnapshot()], ignore_conflicts=True)
        row = locked.get(pk=SystemSnapshot.SINGLETON_ID)
    return row


def store_measurement(row: SystemSnapshot, measurement: Measurement) -> None:
    """Write a measurement into the locked row, and take the maintenance lease."""
    bounds = {"quiet_load": conf.ADMISSION.quiet_load, "busy_load": conf.ADMISSION.busy_load}
    state = classify_load(measurement.load, measurement.cpu, measurement.memory, **bounds)
    now = get_now(row)
    has_changed = state != row.state or row.state_since is None
    row.holder, row.held_until, row.taken_at = _holder_name(), now + timedelta(seconds=STALE_SEC), now
    row.load, row.cpu, row.memory = measurement.load, measurement.cpu, measurement.memory
    if has_changed:
        figures = (measurement.load, measurement.cpu, measurement.memory)
        logger.info("the system is %s (load %.2f, cpu %.2f, memory %.2f)", state, *figures)
        row.state, row.state_since = str(state), now
        notifications.notify(notifications.READY)  # denied jobs may be admitted now
    row.save(using=db.alias(), update_fields=_MEASURED_FIELDS)


_MEASURED_FIELDS = ("holder", "held_until", "taken_at", "load", "cpu", "memory", "state", "state_since")


def refresh_if_stale(row: SystemSnapshot) -> SystemSnapshot:
    """Return the locked row, measured anew if its figures are stale."""
    now = get_now(row)
    if row.taken_at is None or (now - row.taken_at).total_seconds() > STALE_SEC:
        store_measurement(row, measure())
    return row


def get_state(row: SystemSnapshot) -> tuple[State, float]:
    """Return the state, and for how many seconds it has held."""
    since = row.state_since or get_now(row)
    return State(row.state), max((get_now(row) - since).total_seconds(), 0.0)


def get_now(row: SystemSnapshot) -> datetime:
    """Return the database's time at which the row was read."""
    now: datetime = row.now  # type: ignore[attr-defined]
    return now


def _holder_name() -> str:
    return ProcessIdentity.current().process_key[:300]
