"""Generators and linters accept the OpenAPI document, and a generated client can call the API.

`make clients` has the tools of npm, which are not installed for this suite.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from docs.generate import OPENAPI
from jobs.models import Job
from jobs.services import tokens
from tests.packaging import clients
from tests.support.remote_client import ADDON

pytestmark = pytest.mark.once
PACKAGE = "job_scheduler_client"
NOTE = {"job_type": "sample.noop"}


def test_the_document_is_valid_openapi_3_1() -> None:
    errors = [f"{list(error.path)}: {error.message}" for error in iterate_errors(json.loads(OPENAPI.read_text()))]
    assert not errors


def test_a_list_of_examples_at_a_parameter_is_not_valid() -> None:
    document = json.loads(OPENAPI.read_text())
    document["paths"]["/api/jobs"]["get"]["parameters"][0]["examples"] = ["COMPLETED"]
    assert list(iterate_errors(document))


def iterate_errors(document: dict[str, Any]) -> Any:
    return OpenAPIV31SpecValidator(document).iter_errors()


@pytest.mark.parametrize("linter", clients.LINTERS)
def test_a_linter_has_nothing_to_say(linter: str, tmp_path: Path) -> None:
    if shutil.which(linter) is None:
        pytest.skip(f"{linter} is not installed; `make clients` installs it")
    clients.lint(linter, tmp_path, dict(os.environ))


class GeneratedClient:
    """An open client of the generated package. Records the operations that were called."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._models = importlib.import_module(f"{PACKAGE}.models")
        self.called: set[str] = set()

    def call(
        self, operation: str, *args: Any, status: int = 200, body: tuple[str, Any] | None = None, **query: Any
    ) -> Any:
        """Call `tag.operation` with a body, as (its schema, its fields). Return the parsed response."""
        module = importlib.import_module(f"{PACKAGE}.api.{operation}")
        if body is not None:
            query["body"] = getattr(self._models, body[0]).from_dict(body[1])
        response = module.sync_detailed(*args, client=self._client, **query)
        assert response.status_code == status, (operation, response.content)
        self.called.add(operation)
        return response.parsed


@pytest.mark.django_db(transaction=True)
def test_a_generated_python_client_calls_thirty_operations(
    live_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate_package(tmp_path, monkeypatch)
    _, token = tokens.create("generated client", tenant=None, scopes=["admin"])
    with importlib.import_module(PACKAGE).AuthenticatedClient(base_url=live_server.url, token=token) as opened:
        client = GeneratedClient(opened)
        use_jobs(client)
        use_templates_and_groups(client)
        use_schedules(client)
        use_webhooks(client)
        use_targets_and_system(client)
        use_remote_queue(client)
    assert len(client.called) >= 30, sorted(client.called)

    monkeypatch.setenv("URL", live_server.url)
    monkeypatch.setenv("TOKEN", token)
    exec(compile(clients.find_example("python"), "docs/api.md", "exec"), {})
    assert Job.objects.filter(target="book-1", tags=["draft"]).exists()


def generate_package(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Generate the client and make it importable."""
    program = Path(sys.executable).parent / "openapi-python-client"
    command = [program, "generate", "--path", OPENAPI, "--output-path", home / "client", "--fail-on-warning"]
    config = home / "config.json"
    config.write_text(json.dumps({"post_hooks": []}))  # they format the sources
    result = subprocess.run(
        [*command, "--config", config], cwd=home, capture_output=True, text=True, check=False, timeout=100
    )
    assert result.returncode == 0, result.stdout + result.stderr
    monkeypatch.syspath_prepend(home / "client")


def use_jobs(client: GeneratedClient) -> None:
    job = client.call(
        "jobs.jobs_create", status=201, body=("JobIn", {**NOTE, "priority": "HIGH", "tags": ["a"], "position": "7"})
    )
    assert (job.status, job.priority, job.position, job.params.to_dict()) == ("QUEUED", 75, "7", {})
    many = client.call("jobs.jobs_create_many", status=201, body=("JobsIn", {"jobs": [NOTE, NOTE]}))
    assert many.count == 2
    first = many.ids[0]
    page = client.call("jobs.jobs_list", limit=2, tag=["a"])
    assert [item.id for item in page.items] == [job.id]
    assert client.call("jobs.jobs_get", job.id).created_at == job.created_at
    edited = client.call(
        "jobs.jobs_update", job.id, body=("JobEdits", {"priority": 50, "deadline_at": "2031-01-01T00:00:00Z"})
    )
    assert (edited.priority, edited.deadline_at.year) == (50, 2031)
    assert client.call("jobs.jobs_move", job.id, body=("MoveIn", {"after": str(first)})).id == job.id
    assert client.call("jobs.jobs_explain", job.id).reasons
    assert client.call("jobs.jobs_pause", job.id, body=("VerbIn", {"reason": "wait"})).status == "PAUSED"
    assert client.call("jobs.jobs_resume", job.id).status == "QUEUED"
    assert client.call("jobs.jobs_cancel", job.id).status == "CANCELLED"
    problem = client.call("jobs.jobs_cancel", job.id, status=409)
    assert (problem.code, problem.allowed) == ("wrong_state", ["retry"])
    assert client.call("jobs.jobs_retry", job.id, status=201, body=("RetryIn", {"fresh": True})).retry_of == job.id
    kinds = [event.kind for event in client.call("jobs.jobs_events", job.id).items]
    assert [kinds[0], kinds[-1]] == ["SUBMITTED", "RETRY_CREATED"]
    assert client.call("jobs.jobs_logs", job.id).items == []
    assert client.call("job_runs.job_runs_list").items == []
    wrong = client.call("jobs.jobs_create", status=422, body=("JobIn", {**NOTE, "priority": 1000}))
    assert wrong.errors[0].loc == ["body", "priority"]


def use_templates_and_groups(client: GeneratedClient) -> None:
    template = client.call("templates.templates_create", status=201, body=("TemplateIn", {"name": "t", **NOTE}))
    assert client.call("templates.templates_get", template.id).name == "t"
    assert client.call("templates.templates_run", template.id, status=201, body=("RunIn", {})).template == "t"
    group = client.call(
        "job_groups.groups_create", status=201, body=("GroupIn", {"mode": "sequential", "jobs": [NOTE, NOTE]})
    )
    assert [member.status for member in group.jobs] == ["QUEUED", "PENDING"]
    assert client.call("job_groups.groups_get", group.id).progress.by_status.to_dict() == {"QUEUED": 1, "PENDING": 1}
    assert client.call("job_groups.groups_cancel", group.id).status == "CANCELLED"


def use_schedules(client: GeneratedClient) -> None:
    fields = {"name": "nightly", "cron": "0 3 * * *", "timezone": "Europe/Berlin", **NOTE, "params": {}}
    schedule = client.call("schedules.schedules_create", status=201, body=("ScheduleIn", fields))
    assert len(client.call("schedules.schedules_preview", schedule.id, count=3).items) == 3
    assert client.call("schedules.schedules_preview_cron", cron="@daily").items[0].note is None
    assert client.call("schedules.schedules_trigger", schedule.id, status=201).schedule_id == schedule.id
    assert (
        client.call("schedules.schedules_update", schedule.id, body=("ScheduleEdits", {"priority": "LOW"})).priority
        == 25
    )
    client.call("schedules.schedules_delete", schedule.id, status=204)


def use_webhooks(client: GeneratedClient) -> None:
    fields = {"url": "https://example.org/hook", "events": ["job.*"]}
    endpoint = client.call("webhooks.webhooks_create", status=201, body=("EndpointIn", fields))
    assert endpoint.secret.startswith("whsec_")
    assert client.call("webhooks.webhooks_get", endpoint.id).events == ["job.*"]
    assert client.call("webhooks.webhooks_deliveries", endpoint.id).next_cursor is None
    client.call("webhooks.webhooks_delete", endpoint.id, status=204)


def use_targets_and_system(client: GeneratedClient) -> None:
    assert client.call("targets.targets_pause", "book-9", body=("VerbIn", {"reason": "ink"})).paused
    assert client.call("targets.targets_list").items[0].reason == "ink"
    limit = client.call("limits.limits_put", body=("LimitIn", {"scope": "resource", "key": "gpu", "max": 2}))
    assert (limit.max_, limit.in_use) == (2, 0)
    assert client.call("stats.stats_get").jobs.queued >= 1
    assert client.call("workers.workers_list").items == []
    assert "sample.noop" in [item.name for item in client.call("job_types.job_types_list", limit=500).items]
    assert client.call("activity.activity_list", limit=1).items[0].action == "limit.set"


def use_remote_queue(client: GeneratedClient) -> None:
    client.call("limits.limits_put", body=("LimitIn", {"scope": "global", "max": None}))
    intent = {"addon_id": ADDON, "job_type": "indexing", "payload": {"path": "/a"}}
    job_id = client.call("remote_workers.queue_submit", status=201, body=("IntentIn", intent)).job_id
    (offer,) = client.call("remote_workers.queue_dispatchable", addon_id=ADDON).items
    lease = client.call("remote_workers.queue_start", offer.job_id, body=("StartIn", {"worker_id": "w"}))
    assert (lease.job_id, lease.payload.to_dict()) == (job_id, {"path": "/a"})
    beat = client.call(
        "remote_workers.lease_heartbeat", lease.lease_id, body=("BeatIn", {"progress": 0.5, "checkpoint": [1]})
    )
    assert not beat.cancel_requested
    result = {"lease_id": str(lease.lease_id), "state": "DONE", "artifacts": {"result": 42}}
    assert client.call("remote_workers.queue_complete", job_id, body=("CompleteIn", result)).state == "DONE"
    assert client.call("job_runs.job_runs_get", job_id).artifacts.to_dict() == {"result": 42}
