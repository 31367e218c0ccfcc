"""A crowd submits jobs of a few unique keys; `find_violations` judges by the events, whose ids are in order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from django.db import OperationalError, connection

from jobs.models import Job, JobEvent
from jobs.services import jobs as job_services
from jobs.states import TERMINAL, EventKind, UniqueUntil
from tests.races.parallel import SyncPoints

TYPE = "sample.work"
CONSTRAINTS = ("job_unique_until_start", "job_unique_until_end")


def stage(plan: dict[str, Any]) -> dict[str, Any]:
    return {}


def act(index: int, plan: dict[str, Any], meeting: SyncPoints) -> list[dict[str, Any]]:
    """Submit the share of this process, and return what each submission got."""
    chance = random.Random(f"{plan.get('seed')} {index}")
    meeting.start.wait()
    return [submit(chance.randrange(plan["keys"]), index * plan["share"] + n, plan) for n in range(plan["share"])]


def submit(key: int, number: int, plan: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {"unique_until": plan["until"], "on_conflict": plan["on_conflict"]}
    if plan["delay_sec"]:
        fields["not_before"] = timedelta(seconds=plan["delay_sec"])
    name = f"{plan.get('prefix', '')}key-{key}"
    item = {"job_type": TYPE, "params": {"number": number}, "unique_key": name, **fields}
    while True:
        with suppress(OperationalError):  # SQLite: so many writers wait longer than its timeout
            job, created = job_services.submit(item)
            break
    return {"key": name, "job": str(job.pk), "created": created, "number": number}


def find_violations() -> list[str]:
    """Replay the events in the order of their ids: two jobs of one key at a time are a violation.

    An insert that had to wait for the job with its key wrote its event after that had started or ended.
    """
    keys = {job.pk: (job.unique_key, job.unique_until) for job in Job.objects.filter(unique_key__isnull=False)}
    present: dict[Any, set[Any]] = {}
    violations = []
    for event in JobEvent.objects.filter(job_id__in=keys).order_by("id"):
        key = keys[event.job_id]
        holders = present.setdefault(key, set())
        if event.kind == EventKind.SUBMITTED:
            holders.add(event.job_id)
            if len(holders) > 1:
                violations.append(f"{len(holders)} jobs of {key[0]} at event {event.pk}")
        elif event.to_status in TERMINAL or (event.kind == EventKind.RUNNING and key[1] == UniqueUntil.START):
            holders.discard(event.job_id)
    return violations


@contextmanager
def without_indexes() -> Iterator[None]:
    """Drop the indexes that keep keys unique; at the end, no job has a key."""
    constraints = [item for item in Job._meta.constraints if item.name in CONSTRAINTS]
    with connection.schema_editor() as editor:
        for constraint in constraints:
            editor.remove_constraint(Job, constraint)
    try:
        yield
    finally:
        Job.objects.update(unique_key=None, unique_until=None)
        with connection.schema_editor() as editor:
            for constraint in constraints:
                editor.add_constraint(Job, constraint)
