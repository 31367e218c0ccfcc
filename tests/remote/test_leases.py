"""Foreign, stale and guessed leases get 404 or 409 and change nothing; repeated calls get the same response."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from django.db.models.functions import Now

from jobs.engine.maintenance.recovery import LeaseReaper
from jobs.models import Job, JobEvent, JobLog
from jobs.services import jobs as job_services
from jobs.states import Status
from tests.support.api_client import ApiClient
from tests.support.remote_client import LEASE, QUEUE, RemoteClient, get_job
from tests.support.snapshots import dump_all_but_tokens

pytestmark = pytest.mark.django_db

Lease = dict[str, Any]
TRIES = 31  # of the attack by hand that these tests repeat


# ---------------------------------------------------------------------- foreign and stale leases


def guess_lease(remote: RemoteClient) -> tuple[RemoteClient, Lease]:
    return remote, {**remote.start_new_job(), "lease_id": str(uuid4())}


def malform_lease(remote: RemoteClient) -> tuple[RemoteClient, Lease]:
    return remote, {**remote.start_new_job(), "lease_id": "not-a-lease"}


def start_with_another_token(remote: RemoteClient) -> tuple[RemoteClient, Lease]:
    return RemoteClient(ApiClient("work"), worker=remote.worker), remote.start_new_job()


def start_in_another_tenant(remote: RemoteClient) -> tuple[RemoteClient, Lease]:
    return RemoteClient(ApiClient("work", tenant="acme"), worker=remote.worker), remote.start_new_job()


def start_for_all_tenants(remote: RemoteClient) -> tuple[RemoteClient, Lease]:
    return RemoteClient(ApiClient("admin", tenant=None), worker=remote.worker), remote.start_new_job()


def start_on_a_local_worker(remote: RemoteClient) -> tuple[RemoteClient, Lease]:
    """Return the lease token of a job that runs on a local worker."""
    lease = remote.start_new_job()
    token = uuid4()
    Job.objects.filter(pk=lease["job_id"]).update(lease_token=token, lease_owner="worker@host:b:n:1:2#0")
    return remote, {**lease, "lease_id": str(token)}


def recover_lease(remote: RemoteClient) -> tuple[RemoteClient, Lease]:
    lease = remote.start_new_job()
    long_ago = Now() - timedelta(days=1)
    Job.objects.filter(pk=lease["job_id"]).update(lease_expires_at=long_ago, beat_clock=None)
    reaper = LeaseReaper()
    reaper._is_surely_expired = lambda *_: True  # type: ignore[method-assign]
    assert reaper.run_round() == 1
    return remote, lease


def hand_over_lease(remote: RemoteClient) -> tuple[RemoteClient, Lease]:
    """Return a lease whose job was handed back and started by another worker."""
    lease = remote.start_new_job()
    remote.release(lease, hand_back=True)
    other = RemoteClient(remote.api, worker="indexer-2")
    other.start(other.poll_ids()[0])
    return remote, lease


def end_lease(remote: RemoteClient) -> tuple[RemoteClient, Lease]:
    lease = remote.start_new_job()
    remote.complete(lease, "SKIPPED")
    return remote, lease


def pause_lease(remote: RemoteClient) -> tuple[RemoteClient, Lease]:
    lease = remote.start_new_job()
    job_services.pause(lease["job_id"])
    remote.complete(lease, "PAUSED")
    return remote, lease


FOREIGN = (
    guess_lease,
    malform_lease,
    start_with_another_token,
    start_in_another_tenant,
    start_for_all_tenants,
    start_on_a_local_worker,
)
STALE = (recover_lease, hand_over_lease, end_lease, pause_lease)
REPEATED_RELEASES = ((hand_over_lease, "hand back"), (pause_lease, "hand back"))  # the lease was released already
CALLS: dict[str, Callable[[RemoteClient, Lease], Any]] = {
    "heartbeat": lambda caller, lease: caller.send_heartbeat(
        lease, progress=0.9, tokens_used=9, logs=[{"message": "x"}]
    ),
    "complete": lambda caller, lease: caller.complete(lease, "DONE", artifacts={"stolen": True}),
    "fail": lambda caller, lease: caller.complete(lease, "FAILED", error="no"),
    "hand back": lambda caller, lease: caller.release(lease, hand_back=True),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("create_lease", FOREIGN, ids=lambda function: function.__name__)
def test_a_foreign_lease_is_404_and_changes_nothing(remote: RemoteClient, create_lease: Any, call: str) -> None:
    caller, lease = create_lease(remote)
    before = dump_all_but_tokens()
    refused = CALLS[call](caller, lease)
    assert (refused.status_code, refused.json()["code"]) == (404, "not_found")
    assert dump_all_but_tokens() == before


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("create_lease", STALE, ids=lambda function: function.__name__)
def test_a_stale_lease_is_409_and_changes_nothing(remote: RemoteClient, create_lease: Any, call: str) -> None:
    caller, lease = create_lease(remote)
    before = dump_all_but_tokens()
    refused = CALLS[call](caller, lease)
    expected = (200, None) if (create_lease, call) in REPEATED_RELEASES else (409, "lease_lost")
    assert (refused.status_code, refused.json().get("code")) == expected
    assert dump_all_but_tokens() == before


def test_a_job_that_was_not_started_cannot_be_completed(remote: RemoteClient) -> None:
    for lease_id in (str(uuid4()), "nonsense"):
        for polls in (0, 1):
            job_id = remote.submit()
            for _ in range(polls):
                remote.poll()
            before = dump_all_but_tokens()
            refused = remote.complete({"job_id": job_id, "lease_id": lease_id})
            assert (refused.status_code, refused.json()["code"]) == (409, "wrong_state")
            assert dump_all_but_tokens() == before


def test_a_lease_is_valid_for_its_own_job_only(remote: RemoteClient) -> None:
    own, other = remote.start_new_job(slot=0), remote.start_new_job(slot=1)
    before = dump_all_but_tokens()
    assert remote.complete({"job_id": other["job_id"], "lease_id": own["lease_id"]}).status_code == 404
    assert dump_all_but_tokens() == before


# The two usual forms of an id, in capitals and without dashes, are the same lease; others are none.
SAME_LEASE: tuple[Callable[[str], str], ...] = (str.upper, lambda lease_id: lease_id.replace("-", ""))
SPELLINGS: dict[str, Callable[[str], str]] = {
    "in braces": "{{{}}}".format,
    "as a URN": "urn:uuid:{}".format,
    "with a space": "{} ".format,
    "with a line break": "{}\n".format,
    "cut off": lambda lease_id: lease_id[:-1],
    "too long": "{}0".format,
    "in full-width digits": lambda lease_id: lease_id.translate(
        {ord("0") + digit: 0xFF10 + digit for digit in range(10)}
    ),
}


@pytest.mark.parametrize("spell", SPELLINGS.values(), ids=SPELLINGS)
def test_a_lease_in_another_spelling_is_404_and_changes_nothing(
    remote: RemoteClient, spell: Callable[[str], str]
) -> None:
    lease = remote.start_new_job()
    respelled = {**lease, "lease_id": quote(spell(lease["lease_id"]))}
    before = dump_all_but_tokens()
    for call in CALLS.values():
        refused = call(remote, respelled)
        assert (refused.status_code, refused.json()["code"]) == (404, "not_found")
    assert dump_all_but_tokens() == before


def test_a_lease_is_the_same_in_capitals_and_without_dashes(remote: RemoteClient) -> None:
    lease = remote.start_new_job()
    for spell in SAME_LEASE:
        assert remote.send_heartbeat({"lease_id": spell(lease["lease_id"])}).status_code == 200
    assert remote.complete({**lease, "lease_id": lease["lease_id"].upper()}).status_code == 200


ODD_NUMBERS = {
    "heartbeat": [
        *({"progress": number} for number in ("NaN", "Infinity", "1e400", "-1", "9223372036854775808")),
        *({"tokens_used": number} for number in ("NaN", "-1", "9223372036854775808", "1e400", "0.5")),
    ],
    "complete": [
        *({"exit_code": number} for number in ("NaN", "-9223372036854775809", "9223372036854775808", "1.5")),
        *({"delay_sec": number} for number in ("NaN", "-1", "9223372036854775808", "1e400")),
    ],
}


def test_numbers_that_are_none_or_too_large_change_nothing(remote: RemoteClient) -> None:
    lease = remote.start_new_job()
    urls = {
        "heartbeat": f"/api{LEASE}/{lease['lease_id']}/heartbeat",
        "complete": f"/api{QUEUE}/jobs/{lease['job_id']}/complete",
    }
    own_fields = {"heartbeat": "", "complete": f'"lease_id": "{lease["lease_id"]}", "state": "FAILED", '}
    before = dump_all_but_tokens()
    for call, bodies in ODD_NUMBERS.items():
        for body in bodies:
            ((name, number),) = body.items()
            content = f'{{{own_fields[call]}"{name}": {number}}}'
            refused = remote.api.client.post(
                urls[call], content, content_type="application/json", headers=remote.api.headers
            )
            assert refused.status_code in (400, 422), content
    assert dump_all_but_tokens() == before


def test_of_a_flood_of_log_lines_a_thousand_are_kept(remote: RemoteClient) -> None:
    lease = remote.start_new_job()
    for _ in range(5):
        assert remote.send_heartbeat(lease, logs=[{"message": "x"}] * 1000).status_code == 200
    assert remote.send_heartbeat(lease, logs=[{"message": "x"}] * 1001).status_code == 422
    assert JobLog.objects.filter(message="x").count() == 1000
    assert JobLog.objects.count() == 1001  # and a line that says so


def test_there_are_as_many_tries_as_in_the_attack() -> None:
    numbers = sum(map(len, ODD_NUMBERS.values()))
    assert (len(FOREIGN) + len(STALE) + len(SPELLINGS)) * len(CALLS) + numbers >= TRIES


# ---------------------------------------------------------------------- starting


def test_a_repeated_start_gets_the_same_response(remote: RemoteClient) -> None:
    job_id = remote.submit()
    remote.poll()
    first = remote.try_start(job_id, pid=1)
    before = dump_all_but_tokens()
    second = remote.try_start(job_id, pid=1)
    assert (second.status_code, second.content) == (200, first.content)
    assert dump_all_but_tokens() == before


@pytest.mark.parametrize(
    ("other", "slot"),
    [
        (lambda api: RemoteClient(api, worker="indexer-2"), 0),
        (lambda api: RemoteClient(api), 1),
        (lambda api: RemoteClient(ApiClient("work")), 0),
    ],
    ids=["another worker", "another slot", "another token"],
)
def test_a_start_by_another_worker_slot_or_token_is_refused(remote: RemoteClient, other: Any, slot: int) -> None:
    lease = remote.start_new_job()
    before = dump_all_but_tokens()
    refused = other(remote.api).try_start(lease["job_id"], slot)
    assert (refused.status_code, refused.json()["code"]) == (409, "wrong_state")
    assert dump_all_but_tokens() == before


def test_a_slot_has_one_job_at_a_time(remote: RemoteClient) -> None:
    lease = remote.start_new_job()
    other = remote.submit()
    assert other in remote.poll_ids()
    before = dump_all_but_tokens()
    refused = remote.try_start(other)
    assert (refused.status_code, refused.json()["code"]) == (409, "slot_busy")
    assert dump_all_but_tokens() == before
    remote.complete(lease)
    remote.start(other)


@pytest.mark.parametrize("status", [status for status in Status if status not in (Status.DISPATCHING, Status.RUNNING)])
def test_only_an_offered_job_can_be_started(remote: RemoteClient, status: Status) -> None:
    from tests.factories import job_in

    job = job_in(status, remote=True)
    before = dump_all_but_tokens()
    refused = remote.try_start(job.pk)
    assert (refused.status_code, refused.json()["state"]) == (409, status)
    assert dump_all_but_tokens() == before


def test_another_tenant_s_job_cannot_be_started(remote: RemoteClient) -> None:
    job_id = remote.submit()
    remote.poll()
    assert RemoteClient(ApiClient("work", tenant="acme")).try_start(job_id).status_code == 404
    assert get_job(job_id).status == Status.DISPATCHING


# ---------------------------------------------------------------------- repeated calls


@pytest.mark.parametrize("state", ["DONE", "SKIPPED", "FAILED", "CANCELED", "PAUSED"])
def test_a_repeated_complete_gets_the_same_response(remote: RemoteClient, state: str) -> None:
    lease = remote.start_new_job(max_retries=2)
    if state in ("CANCELED", "PAUSED"):
        {"CANCELED": job_services.cancel, "PAUSED": job_services.pause}[state](lease["job_id"])
    first = remote.complete(lease, state, artifacts={"x": 1})
    before = dump_all_but_tokens()
    second = remote.complete(lease, state, artifacts={"x": 1})
    assert (first.status_code, second.status_code, second.content) == (200, 200, first.content)
    assert dump_all_but_tokens() == before
    assert JobEvent.objects.filter(job_id=lease["job_id"], token=lease["lease_id"]).count() == 2


def test_another_state_after_the_end_is_refused(remote: RemoteClient) -> None:
    lease = remote.start_new_job()
    remote.complete(lease, "DONE")
    refused = remote.complete(lease, "FAILED")
    assert (refused.status_code, refused.json()["code"]) == (409, "lease_lost")
    assert get_job(lease).status == Status.COMPLETED


def test_completing_a_recovered_job_is_refused(remote: RemoteClient) -> None:
    caller, lease = recover_lease(remote)
    assert caller.complete(lease, "FAILED", error="lease expired").status_code == 409
