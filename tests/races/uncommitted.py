"""One process submits in its own transaction; another looks for the job before and after that ends."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from jobs import db
from jobs.models import Job
from jobs.services import jobs as job_services
from tests.races import NOOP, job_types
from tests.races.claim import JobClaimer
from tests.races.parallel import SyncPoints


class TakenBack(Exception):
    """Rolls the submission back."""


def stage(plan: dict[str, Any]) -> dict[str, Any]:
    assert job_types.noop.name == NOOP
    return {}


def act(index: int, plan: dict[str, Any], meeting: SyncPoints) -> dict[str, Any]:
    return look(meeting) if index else submit(meeting, commits=plan["commits"])


def submit(meeting: SyncPoints, *, commits: bool) -> dict[str, Any]:
    try:
        with transaction.atomic(using=db.alias()):
            job = job_services.enqueue(NOOP)
            meeting.first_done.set()
            meeting.arrived.acquire()
            if not commits:
                raise TakenBack
    except TakenBack:
        pass
    meeting.start.wait()
    return {"job": str(job.pk)}


def look(meeting: SyncPoints) -> dict[str, Any]:
    meeting.first_done.wait()
    # On SQLite a claim would wait for the open transaction: it is the only writer.
    before = {"seen": list_visible_jobs(), "claimed": [] if db.connection().vendor == "sqlite" else claim_jobs()}
    meeting.arrived.release()
    meeting.start.wait()
    return {"before": before, "after": {"seen": list_visible_jobs(), "claimed": claim_jobs()}}


def list_visible_jobs() -> list[str]:
    return [str(pk) for pk in Job.objects.values_list("pk", flat=True)]


def claim_jobs() -> list[str]:
    return [str(claim.id) for claim in JobClaimer("looker").take([1])]
