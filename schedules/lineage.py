"""What became of jobs: the ends of their retry chains, for many at a time."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from jobs.models import Job
from jobs.models.job import JobQuerySet


def tails(job_ids: Iterable[UUID]) -> dict[UUID, Job]:
    """Each job's chain by its last job; who is no longer there is left out."""
    found = {job.pk: job for job in _jobs().filter(pk__in=set(job_ids))}
    newest = {job_id: job_id for job_id in found}  # the last job known of a chain, and the one we were asked about
    while newest:
        followers = list(_jobs().filter(retry_of_id__in=list(newest)))
        newest = {job.pk: newest[job.retry_of_id] for job in followers if job.retry_of_id is not None}
        found |= {newest[job.pk]: job for job in followers}
    return found


def _jobs() -> JobQuerySet:
    return Job.objects.only("id", "status", "status_reason", "retry_of_id").order_by()
