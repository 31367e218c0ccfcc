"""Targets over HTTP: read, paused, unpaused, and their jobs resumed."""

from __future__ import annotations

from urllib.parse import quote
from uuid import uuid4

import pytest

from jobs.engine import promoter
from jobs.models import Job, Target
from jobs.services import jobs as job_services
from jobs.services import targets
from jobs.states import Status
from tests.factories import JobFactory, TargetFactory
from tests.sample_app import job_types
from tests.support.api_client import ApiClient, read_error_locations

pytestmark = pytest.mark.django_db
NOTE = job_types.note.name


def submit(target: str, tenant: str = "default") -> Job:
    return job_services.enqueue(NOTE, {"text": "a"}, target=target, tenant=tenant)


def test_a_target_exists_from_its_first_use() -> None:
    api = ApiClient("read")
    assert api.get("/targets/book-1").status_code == 404
    submit("book-1")
    assert api.get("/targets/book-1").json()["queued"] == 1
    assert [target["key"] for target in api.get("/targets").json()["items"]] == ["book-1"]
    promoter.promote()
    assert api.get("/targets/book-1").json()["queued"] == 1


def test_a_target_whose_jobs_wait_for_their_time_exists_too() -> None:
    job_services.enqueue(NOTE, {"text": "a"}, target="later", not_before="2999-01-01T00:00:00Z")
    assert ApiClient("read").get("/targets/later").json()["queued"] == 0


def test_a_target_names_its_holder_and_its_blocking_job() -> None:
    running = JobFactory.create(running=True, target="busy")
    failed = JobFactory.create(failed=True, target="broken")
    first = JobFactory.create(target="busy")
    for key in ("busy", "broken"):
        TargetFactory(key=key)
    targets_by_key = {target["key"]: target for target in ApiClient("read").get("/targets").json()["items"]}

    assert (targets_by_key["busy"]["holder"], targets_by_key["busy"]["blocked_by"]) == (str(running.pk), None)
    assert targets_by_key["broken"]["holder"] == targets_by_key["broken"]["blocked_by"] == str(failed.pk)
    assert targets_by_key["busy"]["queued"] == 1
    assert targets_by_key["busy"]["oldest_queued_at"] == first.created_at.isoformat().replace("+00:00", "Z")
    assert targets_by_key["broken"]["oldest_queued_at"] is None


def test_pausing_and_unpausing() -> None:
    api = ApiClient("operate", "read")
    paused = api.post("/targets/new/pause", {"reason": "spilled ink"})
    assert paused.status_code == 200
    target = paused.json()
    assert (target["paused"], target["paused_by"], target["reason"]) == (True, api.actor_name, "spilled ink")
    assert target == api.get("/targets/new").json()
    assert api.post("/targets/new/pause").json() == target, "a repeated pause changes nothing"
    unpaused = api.post("/targets/new/unpause").json()
    assert (unpaused["paused"], unpaused["paused_at"], unpaused["reason"]) == (False, None, "")
    assert api.post("/targets/new/unpause").status_code == 200
    assert api.post("/targets/unheard-of/unpause").status_code == 404


def test_a_resume_continues_a_paused_job_and_retries_a_failed_one() -> None:
    api = ApiClient("operate")
    paused = JobFactory.create(paused=True, target="book-1")
    failed = JobFactory.create(failed=True, target="book-2")
    for slash in ("", "/"):
        job_services.pause(paused.pk) if slash else None
        response = api.post(f"/targets/book-1/jobs/{paused.pk}/resume{slash}", {"reason": "go on"})
        assert (response.status_code, response.json()["id"], response.json()["status"]) == (
            200,
            str(paused.pk),
            "QUEUED",
        )
    retried = api.post(f"/targets/book-2/jobs/{failed.pk}/resume/")
    assert (retried.status_code, retried.json()["retry_of"]) == (201, str(failed.pk))


def test_a_resume_finds_only_jobs_of_that_target() -> None:
    api = ApiClient("operate")
    job = JobFactory.create(paused=True, target="book-1")
    foreign = JobFactory.create(paused=True, target="book-1", tenant="theirs")
    for path in (
        f"/targets/book-2/jobs/{job.pk}/resume/",
        f"/targets/book-1/jobs/{foreign.pk}/resume/",
        f"/targets/book-1/jobs/{uuid4()}/resume/",
        "/targets/book-1/jobs/nonsense/resume/",
    ):
        assert api.post(path).status_code == 404, path
    done = JobFactory.create(completed=True, target="book-3")
    refused = api.post(f"/targets/book-3/jobs/{done.pk}/resume/")
    assert (refused.status_code, refused.json()["code"]) == (409, "wrong_state")
    assert set(Job.objects.filter(target="book-1").values_list("status", flat=True)) == {Status.PAUSED}


def test_every_tenant_has_targets_of_its_own() -> None:
    submit("shared", "one")
    submit("shared", "two")
    targets.pause("shared", tenant="one")
    all_tenants, one = ApiClient("read", "operate", tenant=None), ApiClient("read", "operate", tenant="one")

    assert [target["tenant"] for target in all_tenants.get("/targets").json()["items"]] == ["one", "two"]
    assert [target["tenant"] for target in all_tenants.get("/targets?tenant=two").json()["items"]] == ["two"]
    assert [target["tenant"] for target in one.get("/targets").json()["items"]] == ["one"]
    assert one.get("/targets?tenant=two").json()["items"] == []
    assert all_tenants.get("/targets/shared?tenant=two").json()["paused"] is False
    assert all_tenants.get("/targets/shared").status_code == 404, "no job of tenant default uses it"
    assert one.get("/targets/shared").json()["paused"] is True
    assert one.get("/targets/shared?tenant=two").status_code == 404
    assert one.post("/targets/shared/pause?tenant=two").status_code == 404
    assert not Target.objects.get(tenant="two").paused


def test_scopes() -> None:
    submit("book-1")
    for scope in ("submit", "work", "operate"):
        assert ApiClient(scope).get("/targets").status_code == 403
        assert ApiClient(scope).get("/targets/book-1").status_code == 403
    for verb in ("pause", "unpause", f"jobs/{uuid4()}/resume/"):
        for scope in ("read", "submit", "work"):
            assert ApiClient(scope).post(f"/targets/book-1/{verb}").status_code == 403


@pytest.mark.parametrize("key", ["a b", "ünïcode ✓", "100%", "a?b", "x" * 200, "..", "a+b", "a&b=c"])
def test_any_key_can_be_read(key: str) -> None:
    submit(key)
    assert ApiClient("read").get(f"/targets/{quote(key, safe='')}").json()["key"] == key
    assert ApiClient("operate").post(f"/targets/{quote(key, safe='')}/pause").json()["key"] == key


@pytest.mark.parametrize("key", ["x" * 201, "%00", "a%0Ab", "%20"])
def test_an_invalid_key_is_no_target(key: str) -> None:
    assert ApiClient("read").get(f"/targets/{key}").status_code == 404
    assert ApiClient("operate").post(f"/targets/{key}/pause").status_code in (404, 422)
    job = JobFactory.create(paused=True, target="book-1")
    assert ApiClient("operate").post(f"/targets/{key}/jobs/{job.pk}/resume").status_code == 404
    assert not Target.objects.exists()


def test_a_wrong_reason_is_refused() -> None:
    api = ApiClient("operate")
    assert read_error_locations(api.post("/targets/book-1/pause", {"reason": "x" * 2001})) == [["body", "reason"]]
    assert read_error_locations(api.post("/targets/book-1/pause", {"until": "noon"})) == [["body", "until"]]
    assert not Target.objects.exists()


def test_the_list_pages_through_in_the_order_of_names() -> None:
    keys = sorted(TargetFactory.create().key for _ in range(7))
    assert [target["key"] for target in ApiClient("read").list_all("/targets", 3)] == keys


def test_an_unchanged_target_need_not_be_sent_again() -> None:
    api = ApiClient("read", "operate")
    submit("book-1")
    tag = api.get("/targets/book-1")["ETag"]
    assert api.get("/targets/book-1", **{"If-None-Match": tag}).status_code == 304
    submit("book-1")
    assert api.get("/targets/book-1", **{"If-None-Match": tag}).status_code == 200
