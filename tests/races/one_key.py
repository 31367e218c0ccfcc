"""Everybody submits under one idempotency key; the first may take its submission back, some may say something else."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from jobs import db
from jobs.errors import IdempotencyKeyReused
from jobs.services import jobs as job_services
from tests.races import NOOP, job_types
from tests.races.parallel import SyncPoints


class TakenBack(Exception):
    """Rolls the first submission back."""


def stage(plan: dict[str, Any]) -> dict[str, Any]:
    assert job_types.noop.name == NOOP
    return {}


def act(index: int, plan: dict[str, Any], meeting: SyncPoints) -> dict[str, Any]:
    if not plan["first_is_taken_back"]:
        meeting.start.wait()
        return submit(index % plan["bodies"])
    if index == 0:
        return submit_and_take_back(meeting, others=plan["processes"] - 1)
    meeting.first_done.wait()
    meeting.arrived.release()
    return submit(index % plan["bodies"])


def submit(number: int) -> dict[str, Any]:
    try:
        job = job_services.enqueue(NOOP, {"number": number}, idempotency_key="one")
    except IdempotencyKeyReused:
        return {"number": number, "refused": True}
    return {"number": number, "job": str(job.pk)}


def submit_and_take_back(meeting: SyncPoints, others: int) -> dict[str, Any]:
    """Only once the others are on their way: they find the key taken by a transaction that is still open."""
    try:
        with transaction.atomic(using=db.alias()):
            taken_back = submit(0)
            meeting.first_done.set()
            for _ in range(others):
                meeting.arrived.acquire()
            raise TakenBack
    except TakenBack:
        return {"taken_back": taken_back["job"]}
