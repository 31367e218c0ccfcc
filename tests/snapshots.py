"""All that is stored, as plain values: what `nothing changed` means in a test."""

from __future__ import annotations

from typing import Any

from django.apps import apps

from jobs.models import Job, JobEvent

OURS = ("jobscheduler_jobs", "jobscheduler_schedules", "jobscheduler_webhooks")


def everything() -> dict[str, list[dict[str, Any]]]:
    """Every row of every table of ours."""
    models = [model for label in OURS for model in apps.get_app_config(label).get_models()]
    return {model.__name__: list(model._base_manager.order_by("pk").values()) for model in models}


def events_of(job: Job) -> list[JobEvent]:
    """A job's audit trail, oldest first."""
    return list(JobEvent.objects.filter(job_id=job.pk).order_by("id"))


def kinds_of(job: Job) -> list[str]:
    return [event.kind for event in events_of(job)]
