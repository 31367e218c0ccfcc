"""Single objects have an ETag; a client that has the current version gets 304 without a body."""

from __future__ import annotations

import pytest

from jobs.services import jobs as job_services
from jobs.states import Status
from tests.factories import JobFactory, job_in
from tests.support.api_client import ApiClient

pytestmark = pytest.mark.django_db


@pytest.fixture
def api() -> ApiClient:
    return ApiClient("read")


@pytest.mark.parametrize("kind", ["jobs", "job-runs"])
def test_an_unchanged_object_is_304(api: ApiClient, kind: str) -> None:
    path = f"/{kind}/{job_in(Status.RUNNING).pk}"
    first = api.get(path)
    tag = first["ETag"]
    assert tag.startswith('W/"')
    assert first["Cache-Control"] == "private, no-cache"
    second = api.get(path, **{"If-None-Match": tag})
    assert (second.status_code, second.content, second["ETag"]) == (304, b"", tag)
    assert second["Cache-Control"] == "private, no-cache"


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("{tag}", 304),
        ("W/{bare}", 304),
        ("{bare}", 304),
        ('"other", {bare}', 304),
        ('W/"other" , {tag} ,W/"third"', 304),
        ("*", 304),
        ('"other"', 200),
        ("{unquoted}", 200),
        ("", 200),
        ('"', 200),
        ("W/", 200),
        ('W/"{unquoted}x"', 200),
    ],
)
def test_the_comparison_is_weak_and_takes_lists(api: ApiClient, header: str, status: int) -> None:
    path = f"/jobs/{JobFactory.create().pk}"
    tag = api.get(path)["ETag"]
    bare = tag.removeprefix("W/")
    value = header.format(tag=tag, bare=bare, unquoted=bare.strip('"'))
    assert api.get(path, **{"If-None-Match": value}).status_code == status


def test_any_change_makes_another_tag(api: ApiClient) -> None:
    job = JobFactory.create()
    path = f"/jobs/{job.pk}"
    tags = [api.get(path)["ETag"]]
    job_services.update(job.pk, {"tags": ["x"]})
    tags.append(api.get(path)["ETag"])
    job_services.cancel(job.pk)
    tags.append(api.get(path)["ETag"])
    assert len(set(tags)) == 3
    assert api.get(path, **{"If-None-Match": tags[0]}).status_code == 200


def test_a_tag_gives_no_access_to_another_tenants_job(api: ApiClient) -> None:
    job = JobFactory.create(tenant="acme")
    tag = ApiClient("read", tenant="acme").get(f"/jobs/{job.pk}")["ETag"]
    for header in (tag, "*"):
        assert api.get(f"/jobs/{job.pk}", **{"If-None-Match": header}).status_code == 404
