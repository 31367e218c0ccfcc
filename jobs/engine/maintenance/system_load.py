"""How the machine is doing, as one row that everybody reads: hosts that share a queue decide by the same figures.

The holder of the housekeeping lease measures; if nobody has for a while, whoever needs the figures does.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models.functions import Now

from jobs import db
from jobs.conf import conf
from jobs.engine import notifications
from jobs.engine.process_identity import Identity
from jobs.models import SystemSnapshot
from jobs.policies.admission import Open, State, classify_load

logger = logging.getLogger("jobs.engine.maintenance.system_load")
EVERY_SEC = 2.0
FIRST_LOOK_SEC = 0.05
STALE_SEC = 5 * EVERY_SEC  # also how long the housekeeping lease lasts


@dataclass(frozen=True)
class Measured:
    """Load per core; processor and memory use as fractions."""

    load: float
    cpu: float
    memory: float


def measure() -> Measured:
    import psutil  # only where somebody asks

    cores = psutil.cpu_count() or os.cpu_count() or 1
    load, memory = psutil.getloadavg()[0] / cores, psutil.virtual_memory().percent / 100
    # Since the last call of this process; the first one has nothing to compare with, and looks for a moment.
    global _looked
    looked, _looked = _looked, True
    return Measured(load, float(psutil.cpu_percent(interval=None if looked else FIRST_LOOK_SEC)) / 100, memory)


_looked = False


def is_needed() -> bool:
    """Whether anybody asks how the machine is doing."""
    return type(conf.policy("ADMISSION_POLICY")) is not Open


def one_round() -> str:
    """The duty. Says what it did."""
    if not is_needed():
        return "off"
    return "measured" if write() else "measured by another"


def write() -> bool:
    """Measure, if the housekeeping lease is ours or nobody's. Says whether it was."""
    found = measure()
    with db.atomic():
        row = lock()
        if row.holder != me() and not (row.held_until is None or row.held_until <= now_of(row)):
            return False
        store(row, found)
    return True


def lock() -> SystemSnapshot:
    """The row, locked until the transaction ends; `row.now` is the database's clock. Made if it is not there."""
    rows = SystemSnapshot.objects.all()
    locked = rows.select_for_update(no_key=True).annotate(now=Now())
    row = locked.filter(pk=SystemSnapshot.SINGLETON_ID).first()
    if row is None:
        rows.bulk_create([SystemSnapshot()], ignore_conflicts=True)
        row = locked.get(pk=SystemSnapshot.SINGLETON_ID)
    return row


def store(row: SystemSnapshot, found: Measured) -> None:
    """Write what was measured into the locked row, and take the housekeeping lease."""
    bounds = {"quiet_load": conf.ADMISSION.quiet_load, "busy_load": conf.ADMISSION.busy_load}
    state = classify_load(found.load, found.cpu, found.memory, **bounds)
    now = now_of(row)
    changed = state != row.state or row.state_since is None
    row.holder, row.held_until, row.taken_at = me(), now + timedelta(seconds=STALE_SEC), now
    row.load, row.cpu, row.memory = found.load, found.cpu, found.memory
    if changed:
        logger.info("the system is %s (load %.2f, cpu %.2f, memory %.2f)", state, found.load, found.cpu, found.memory)
        row.state, row.state_since = str(state), now
        notifications.notify(notifications.READY)  # what was denied may be admitted now
    row.save(using=db.alias(), update_fields=_MEASURED)


_MEASURED = ("holder", "held_until", "taken_at", "load", "cpu", "memory", "state", "state_since")


def refreshed(row: SystemSnapshot) -> SystemSnapshot:
    """The locked row, measured anew if nobody has for a while."""
    now = now_of(row)
    if row.taken_at is None or (now - row.taken_at).total_seconds() > STALE_SEC:
        store(row, measure())
    return row


def state(row: SystemSnapshot) -> tuple[State, float]:
    """The state, and for how many seconds it has held."""
    since = row.state_since or now_of(row)
    return State(row.state), max((now_of(row) - since).total_seconds(), 0.0)


def now_of(row: SystemSnapshot) -> datetime:
    now: datetime = row.now  # type: ignore[attr-defined]
    return now


def me() -> str:
    return Identity.mine().incarnation[:300]
