"""What was enqueued, for a test to look at. Retries are not enqueued by anybody, and are left out."""

from __future__ import annotations

from typing import Any

from jobs import db, parsing
from jobs.models import Job
from jobs.registry import Handler


def enqueued(
    job_type: str | Handler[..., Any] | None = None, params: dict[str, Any] | None = None, **fields: Any
) -> list[Job]:
    """The jobs of this type, with these very params, and with these fields, in the order of their submission."""
    found = Job.objects.using(db.alias()).filter(retry_of__isnull=True).order_by("id")
    if job_type is not None:
        found = found.filter(job_type=job_type.name if isinstance(job_type, Handler) else job_type)
    if "priority" in fields:
        fields["priority"] = parsing.priority(fields["priority"], "priority")
    return [job for job in found if _fits(job, params, fields)]


def assert_enqueued(
    job_type: str | Handler[..., Any] | None = None,
    params: dict[str, Any] | None = None,
    *,
    count: int | None = None,
    **fields: Any,
) -> Job:
    """Some such job was enqueued; exactly `count` of them, if that is said. Returns the last one."""
    found = enqueued(job_type, params, **fields)
    assert found if count is None else len(found) == count, _told(job_type, params, fields, len(found), count)
    return found[-1]


def assert_not_enqueued(
    job_type: str | Handler[..., Any] | None = None, params: dict[str, Any] | None = None, **fields: Any
) -> None:
    found = enqueued(job_type, params, **fields)
    assert not found, _told(job_type, params, fields, len(found), 0)


def _fits(job: Job, params: dict[str, Any] | None, fields: dict[str, Any]) -> bool:
    return (params is None or job.params == params) and all(getattr(job, name) == said for name, said in fields.items())


def _told(job_type: Any, params: Any, fields: dict[str, Any], found: int, count: int | None) -> str:
    name = job_type.name if isinstance(job_type, Handler) else job_type or "any job"
    named = [f"{key}={value!r}" for key, value in fields.items()]
    said = ", ".join(named if params is None else [repr(params), *named])
    wanted = "at least 1" if count is None else str(count)
    there = [f"  {job.job_type} {job.params!r} target={job.target!r} {job.status}" for job in enqueued()[:50]]
    return "\n".join([f"{name} ({said}): {found} enqueued, expected {wanted}. There are:", *(there or ["  none"])])
