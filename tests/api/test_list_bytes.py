"""Lists are bounded in bytes as in rows: large payload is null and not read in a list, and whole in its object."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from jobs.models import Job, payload
from jobs.services import groups, remote
from jobs.states import Status
from tests.factories import (
    JobEventFactory,
    JobFactory,
    JobTemplateFactory,
    ScheduleFactory,
    job_in,
)
from tests.sample_app import job_types
from tests.support.admin_users import create_reader, log_in
from tests.support.api_client import ApiClient
from tests.support.remote_client import ADDON, QUEUE, RemoteClient

pytestmark = pytest.mark.django_db
ROWS = 10
LARGE = {"x": [{}] * 20_000}  # 80 KB of JSON, 2 MB as Python objects
SMALL = {"text": "x" * 60_000}
READ_BYTES = 8 * 2**20  # fewer than half of them


@pytest.fixture(autouse=True)
def unlimited(settings: Any) -> None:
    settings.JOBSCHEDULER = {"LIMITS": {"global": None}}


@pytest.fixture
def api() -> ApiClient:
    return ApiClient("read", "work", tenant=None)


def create_offered_jobs(count: int, params: dict[str, Any]) -> None:
    JobFactory.create_batch(count, params=params, addon_id=ADDON, remote=True)
    assert len(remote.list_dispatchable([ADDON], tenant=None, limit=count)) == count


def create_runs() -> None:
    JobFactory.create_batch(ROWS, completed=True, run__artifacts=LARGE)


def create_events() -> None:
    job = JobFactory.create()
    JobEventFactory.create_batch(ROWS, job=job, data=LARGE)


def create_group() -> None:
    groups.create([{"job_type": job_types.note.name, "params": {"text": "x"}}] * ROWS)
    Job.objects.update(params=LARGE)


def list_events(api: ApiClient) -> Any:
    return api.get(f"/jobs/{Job.objects.get().pk}/events?limit=500")


def get_group(api: ApiClient) -> Any:
    return api.get(f"/job-groups/{Job.objects.values_list('group_id', flat=True)[0]}")


Reader = Callable[[ApiClient], Any]
CASES: list[tuple[str, Callable[[], object], Reader, str]] = [
    ("jobs", lambda: JobFactory.create_batch(ROWS, params=LARGE), lambda api: api.get("/jobs?limit=500"), "params"),
    (
        "queue",
        lambda: JobFactory.create_batch(ROWS, params=LARGE),
        lambda api: api.get("/jobs?order=queue&limit=500"),
        "params",
    ),
    ("legacy", lambda: JobFactory.create_batch(ROWS, params=LARGE), lambda api: api.get_page("/jobs/"), "params"),
    (
        "jobs of a template",
        lambda: JobFactory.create_batch(ROWS, template=JobTemplateFactory.create(params=LARGE), params=LARGE),
        lambda api: api.get("/jobs?limit=500"),
        "params",
    ),
    ("group", create_group, get_group, "params"),
    ("intents", lambda: JobFactory.create_batch(ROWS, params=LARGE), lambda api: api.get(f"{QUEUE}/jobs"), "payload"),
    (
        "offers",
        lambda: create_offered_jobs(ROWS, LARGE),
        lambda api: api.get(f"{QUEUE}/dispatchable?addon_id={ADDON}&limit=500"),
        "payload",
    ),
    ("runs", create_runs, lambda api: api.get("/job-runs?limit=500"), "artifacts"),
    ("events", create_events, list_events, "data"),
    (
        "templates",
        lambda: JobTemplateFactory.create_batch(ROWS, params=LARGE),
        lambda api: api.get("/job-templates?limit=500"),
        "params",
    ),
    (
        "schedules",
        lambda: ScheduleFactory.create_batch(ROWS, params=LARGE),
        lambda api: api.get("/schedules?limit=500"),
        "params",
    ),
]


@pytest.mark.parametrize(("create", "read", "name"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_list_never_reads_large_payload(
    api: ApiClient, create: Callable[[], object], read: Reader, name: str
) -> None:
    create()
    read(api)  # the first request imports and caches
    tracemalloc.start()
    response = read(api)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert response.status_code == 200, response.content
    document = response.json()
    items = document["jobs"] if "jobs" in document else document["items"]
    assert [(item[name], item["truncated"]) for item in items] == [(None, True)] * ROWS
    assert peak < READ_BYTES


def test_a_value_of_64_kib_is_shown_and_one_more_byte_is_not(api: ApiClient) -> None:
    spare = payload.MAX_VALUE_BYTES - len('{"text": ""}')  # as PostgreSQL and Django's encoder write it
    JobFactory.create(params={"text": "x" * spare})
    assert "truncated" not in api.get("/jobs").json()["items"][0]
    Job.objects.update(params={"text": "x" * (spare + 1)})
    (item,) = api.get("/jobs").json()["items"]
    assert (item["params"], item["truncated"]) == (None, True)
    assert api.get(f"/jobs/{item['id']}").json()["params"] == {"text": "x" * (spare + 1)}


def test_a_single_object_is_whole(api: ApiClient) -> None:
    job = job_in(Status.COMPLETED, params=LARGE, run__artifacts=LARGE)
    template, schedule = JobTemplateFactory.create(params=LARGE), ScheduleFactory.create(params=LARGE)
    documents = [api.get(f"/jobs/{job.pk}").json(), api.get(f"/job-templates/{template.pk}").json()]
    documents += [api.get(f"/schedules/{schedule.pk}").json()]
    assert [document["params"] for document in documents] == [LARGE] * 3
    run = api.get(f"/job-runs/{job.pk}").json()
    assert run["artifacts"] == documents[0]["run"]["artifacts"] == LARGE
    assert not any("truncated" in document for document in (*documents, run, documents[0]["run"]))


def test_large_artifacts_mark_the_run_and_the_job(api: ApiClient) -> None:
    create_runs()
    for item in api.get("/jobs").json()["items"]:
        assert (item["run"]["artifacts"], item["run"]["truncated"], item["truncated"]) == (None, True, True)
        assert item["params"] is not None


def test_a_worker_gets_a_large_payload_when_it_starts_the_job(remote_client: RemoteClient) -> None:
    job_id = remote_client.submit(payload={"text": "x" * 100_000})
    (offer,) = remote_client.poll()
    assert (offer["payload"], offer["truncated"]) == (None, True)
    assert remote_client.start(job_id)["payload"] == {"text": "x" * 100_000}


@pytest.fixture
def remote_client() -> RemoteClient:
    return RemoteClient()


@pytest.mark.parametrize("path", ["/jobs", "/jobs?order=queue", f"{QUEUE}/jobs", "/job-templates"])
def test_a_page_ends_before_its_payload_is_too_large_and_its_cursor_continues(api: ApiClient, path: str) -> None:
    count = payload.MAX_PAGE_BYTES // 60_000 + 10
    create = JobTemplateFactory if path == "/job-templates" else JobFactory
    ids = {str(row.pk) for row in create.create_batch(count, params=SMALL)}
    page = api.get(f"{path}{'&' if '?' in path else '?'}limit=500").json()
    sizes = [len(item["payload" if "job_id" in item else "params"]["text"]) for item in page["items"]]
    assert payload.MAX_PAGE_BYTES - 2 * 60_000 < sum(sizes) <= payload.MAX_PAGE_BYTES
    assert page["next_cursor"] is not None
    items = api.list_all(path, 500)
    assert sorted(item.get("job_id") or item["id"] for item in items) == sorted(ids)


def test_an_answer_without_a_cursor_leaves_out_what_is_beyond_its_bytes(
    api: ApiClient, remote_client: RemoteClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload, "MAX_PAGE_BYTES", 150_000)
    create_group()
    Job.objects.update(params=SMALL)
    members = get_group(api).json()["jobs"]
    assert [member["params"] is None for member in members] == [False] * 2 + [True] * (ROWS - 2)
    assert [member.get("truncated", False) for member in members] == [False] * 2 + [True] * (ROWS - 2)
    ids = [remote_client.submit(payload=SMALL) for _ in range(4)]
    offers = remote_client.poll()
    assert [offer["job_id"] for offer in offers] == [str(job_id) for job_id in ids]
    assert [offer["payload"] is None for offer in offers] == [False, False, True, True]


def test_a_page_whose_first_payload_fills_it_has_one_item(api: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "MAX_PAGE_BYTES", 1000)
    JobFactory.create_batch(3, params=SMALL)
    assert [len(api.get("/jobs").json()["items"]), len(api.list_all("/jobs", 50))] == [1, 3]


def test_a_reader_without_payloads_is_not_told_their_size() -> None:
    job_in(Status.COMPLETED, params=LARGE, run__artifacts=LARGE)
    client = log_in(create_reader("ann", "view_job"))
    (item,) = client.get("/api/jobs").json()["items"]
    assert (item["params"], item["run"]["artifacts"]) == (None, None)
    assert not {"truncated"} & {*item, *item["run"]}
