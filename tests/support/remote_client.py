"""A remote worker by hand: one method for each call of the API."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from jobs.models import Job
from tests.support.api_client import ApiClient

QUEUE, LEASE = "/system/scheduler/queue", "/system/scheduler/lease"
ADDON = "visuals"
INDEXING: dict[str, Any] = {"addon_id": ADDON, "job_type": "indexing", "payload": {"path": "/some/dir"}}


class RemoteClient:
    """`worker` is its name; two workers with one API token are two clients over one `ApiClient`."""

    def __init__(self, api: ApiClient | None = None, worker: str = "indexer-1", addon: str = ADDON) -> None:
        self.api = api or ApiClient("work", "submit", "read", "operate")
        self.worker, self.addon = worker, addon

    def submit(self, **fields: Any) -> UUID:
        answer = self.api.post(f"{QUEUE}/jobs/submit", {**INDEXING, "addon_id": self.addon, **fields})
        assert answer.status_code == 201, answer.content
        return UUID(answer.json()["job_id"])

    def poll(self, limit: int = 10) -> list[dict[str, Any]]:
        answer = self.api.get(f"{QUEUE}/dispatchable?addon_id={self.addon}&limit={limit}")
        assert answer.status_code == 200, answer.content
        items: list[dict[str, Any]] = answer.json()["items"]
        return items

    def poll_ids(self, limit: int = 10) -> list[UUID]:
        return [UUID(item["job_id"]) for item in self.poll(limit)]

    def try_start(self, job_id: Any, slot: int = 0, **extra: Any) -> Any:
        return self.api.post(f"{QUEUE}/jobs/{job_id}/start", {"worker_id": self.worker, "slot": slot, **extra})

    def start(self, job_id: Any, slot: int = 0, **extra: Any) -> dict[str, Any]:
        answer = self.try_start(job_id, slot, **extra)
        assert answer.status_code == 200, answer.content
        document: dict[str, Any] = answer.json()
        return document

    def start_new_job(self, slot: int = 0, **fields: Any) -> dict[str, Any]:
        """Submit a job, poll for it and start it; return its lease."""
        job_id = self.submit(**fields)
        assert job_id in self.poll_ids(500)
        return self.start(job_id, slot)

    def send_heartbeat(self, lease: dict[str, Any], **fields: Any) -> Any:
        return self.api.post(f"{LEASE}/{lease['lease_id']}/heartbeat", fields)

    def complete(self, lease: dict[str, Any], state: str = "DONE", **fields: Any) -> Any:
        body = {"lease_id": lease["lease_id"], "state": state, **fields}
        return self.api.post(f"{QUEUE}/jobs/{lease['job_id']}/complete", body)

    def release(self, lease: dict[str, Any], **fields: Any) -> Any:
        return self.api.post(f"{LEASE}/{lease['lease_id']}/release", fields)


def get_job(of: Any) -> Job:
    """Return a job by its id or by a lease on it."""
    return Job.objects.get(pk=of["job_id"] if isinstance(of, dict) else of)
