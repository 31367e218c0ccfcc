"""Bodies are JSON, and no larger than the limit, with and without Content-Length, under WSGI and ASGI."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from asgiref.testing import ApplicationCommunicator
from django.core.asgi import get_asgi_application
from django.core.signals import request_finished
from django.db import connections
from django.test import Client, override_settings

from jobs.models import Job
from tests.factories import SAMPLE_TYPE, JobFactory
from tests.sample_app import job_types
from tests.support.api_client import ApiClient

assert job_types.note.name == SAMPLE_TYPE  # the import registers its job types

NOTE = {"job_type": "tests.note", "params": {"text": "x"}}
SMALL_LIMITS = override_settings(JOBSCHEDULER={"MAX_BODY_BYTES": 1024, "BULK_BODY_BYTES": 2048})


def build_body(size: int) -> bytes:
    overhead = len(json.dumps({**NOTE, "params": {"text": ""}}))
    return json.dumps({**NOTE, "params": {"text": "x" * (size - overhead)}}).encode()


def post(api: ApiClient, content: bytes, path: str = "/jobs", **environ: Any) -> Any:
    return api.client.generic("POST", f"/api{path}", content, "application/json", headers=api.headers, **environ)


@SMALL_LIMITS
@pytest.mark.django_db
def test_a_body_may_be_as_large_as_the_limit_and_no_larger() -> None:
    api = ApiClient("submit", "read")
    assert post(api, build_body(1024)).status_code == 201
    refused = post(api, build_body(1025))
    assert (refused.status_code, refused.json()["code"]) == (413, "body_too_large")
    assert post(api, b'{"jobs": [' + build_body(1500) + b"]}", "/jobs/bulk").status_code == 422  # params too large
    assert post(api, b'{"jobs": [' + b",".join([build_body(300)] * 6) + b"]}", "/jobs/bulk").status_code == 201
    assert post(api, b'{"jobs": [' + b",".join([build_body(300)] * 7) + b"]}", "/jobs/bulk").status_code == 413


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("path", "start", "end", "megabytes"),
    [
        ("/jobs/bulk", b'{"jobs":[', b"]}", 4),
        ("/job-groups", b'{"jobs":[', b"]}", 4),
        ("/jobs", b'{"job_type":"tests.note","params":{"x":[', b"]}}", 0.9),
        ("/system/scheduler/queue/jobs/submit", b'{"addon_id":"a","job_type":"b","payload":{"x":[', b"]}}", 0.9),
    ],
)
def test_a_body_of_countless_objects_is_refused_before_it_is_decoded(
    path: str, start: bytes, end: bytes, megabytes: float
) -> None:
    api, content = ApiClient("submit"), start + b",".join([b"{}"] * int(megabytes * 2**20 / 3)) + end
    post(api, start + end, path)  # the first request imports and caches
    tracemalloc.start()
    refused = post(api, content, path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (refused.status_code, refused.json()["errors"][0]["type"]) == (422, "too_large")
    assert "objects and lists" in refused.json()["errors"][0]["msg"]
    assert peak < 8 * len(content)  # decoded it takes more than twenty times its size


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/jobs", "/jobs/bulk"])
def test_brackets_within_a_text_are_no_objects(path: str) -> None:
    note = b'{"job_type":"tests.note","params":{"text":"' + b"[{" * 400_000 + b'"}}'
    content = note if path == "/jobs" else b'{"jobs":[' + note + b"]}"
    assert post(ApiClient("submit", "read"), content, path).status_code == 201


@pytest.mark.django_db
@override_settings(JOBSCHEDULER={"API_BULK_LIMIT": 2})
def test_entries_are_counted_before_any_is_looked_at() -> None:
    entries = [{**NOTE, "tenant": "another"}] * 3
    refused = ApiClient("submit").post("/jobs/bulk", {"jobs": entries})
    assert (refused.status_code, refused.json()["errors"][0]["type"]) == (422, "too_long")


@pytest.mark.django_db
@override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=10)
def test_djangos_own_limit_does_not_matter() -> None:
    assert post(ApiClient("submit", "read"), build_body(5000)).status_code == 201


@SMALL_LIMITS
@pytest.mark.django_db
def test_a_body_without_a_length_is_read_to_its_end_and_no_further_than_the_limit() -> None:
    api = ApiClient("submit", "read")

    def post_chunked(content: bytes) -> Any:
        stream = {"wsgi.input": BytesIO(content), "wsgi.input_terminated": True}
        return post(
            api, b"", CONTENT_LENGTH="", HTTP_TRANSFER_ENCODING="chunked", CONTENT_TYPE="application/json", **stream
        )

    assert post_chunked(build_body(1024)).status_code == 201
    assert post_chunked(build_body(1025)).status_code == 413
    assert post_chunked(b"").status_code == 400


@pytest.mark.django_db
@pytest.mark.parametrize("length", ["-1", "x", "", "99999999999999999999"])
def test_a_wrong_content_length_is_refused(length: str) -> None:
    response = post(ApiClient("submit"), json.dumps(NOTE).encode(), CONTENT_LENGTH=length)
    assert response.status_code in (400, 413)
    assert not Job.objects.exists()


@SMALL_LIMITS
@pytest.mark.parametrize("path", ["/jobs", "/jobs/bulk", "/docs"])
def test_a_body_announced_as_too_large_is_refused_before_it_is_read_and_before_its_caller_is_known(path: str) -> None:
    class Unreadable(BytesIO):
        def read(self, *args: Any) -> bytes:
            raise AssertionError("the body was read")

    environ = {"CONTENT_LENGTH": "2049", "wsgi.input": Unreadable()}
    response = Client().generic("POST", f"/api{path}", b"", "application/json", **environ)
    assert (response.status_code, response.json()["code"]) == (413, "body_too_large")


@pytest.mark.django_db
def test_a_body_that_breaks_off_is_400() -> None:
    class Broken(BytesIO):
        def read(self, *args: Any) -> bytes:
            raise OSError("gone")

    headers = {"CONTENT_TYPE": "application/json", "CONTENT_LENGTH": "100"}
    response = post(ApiClient("submit"), b"", **headers, **{"wsgi.input": Broken()})
    assert (response.status_code, response.json()["code"]) == (400, "malformed_json")


@pytest.mark.django_db
@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", "application/json;charset=UTF-8"]
)
def test_json_is_accepted_under_each_of_its_media_types(kind: str) -> None:
    api = ApiClient("submit", "read")
    assert api.client.post("/api/jobs", json.dumps(NOTE), content_type=kind, headers=api.headers).status_code == 201


@pytest.mark.django_db
def test_an_empty_form_is_no_body() -> None:
    api = ApiClient("operate", "read")
    job = JobFactory.create()
    url = f"/api/jobs/{job.pk}/cancel"
    form = {"content_type": "application/x-www-form-urlencoded"}
    assert api.client.post(url, headers=api.headers).status_code == 200
    assert api.client.post(url, b"", headers=api.headers, **form).status_code == 409
    assert api.client.post(url, b"reason=x", headers=api.headers, **form).status_code == 415
    assert api.client.post(url, {"reason": "x"}, headers=api.headers).status_code == 415


@pytest.fixture
def close_connections() -> Iterator[None]:
    """Close connections after each request: under ASGI each has its own thread, which is not reused."""

    def close(**_: Any) -> None:
        connections.close_all()

    request_finished.connect(close)
    yield
    request_finished.disconnect(close)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("has_length", [True, False])
def test_the_same_holds_under_asgi(has_length: bool, close_connections: None) -> None:
    api = ApiClient("submit", "read")

    async def post_asgi(content: bytes) -> tuple[int, Any]:
        headers = [(name.lower().encode(), value.encode()) for name, value in api.headers.items()]
        headers += [(b"content-type", b"application/json"), (b"host", b"testserver")]
        headers += [(b"content-length", str(len(content)).encode())] if has_length else []
        scope = {"type": "http", "method": "POST", "path": "/api/jobs", "query_string": b"", "headers": headers}
        communicator = ApplicationCommunicator(get_asgi_application(), {**scope, "http_version": "1.1", "asgi": {}})
        half = len(content) // 2
        await communicator.send_input({"type": "http.request", "body": content[:half], "more_body": True})
        await communicator.send_input({"type": "http.request", "body": content[half:], "more_body": False})
        start, body = await communicator.receive_output(10), await communicator.receive_output(10)
        await communicator.wait(10)
        return start["status"], json.loads(body["body"])

    assert async_to_sync(post_asgi)(json.dumps(NOTE).encode())[0] == 201
    assert async_to_sync(post_asgi)(b"")[0] == 400
    with SMALL_LIMITS:
        assert async_to_sync(post_asgi)(build_body(1025))[0] == 413
    assert Job.objects.count() == 1
