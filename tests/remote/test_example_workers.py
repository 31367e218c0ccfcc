"""The example workers, as they are shipped, against real servers: kills, freezes, lost answers, stops."""

from __future__ import annotations

import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from jobs.actors import PYTHON
from jobs.models import Job, JobEvent
from jobs.services import jobs as job_services
from jobs.services import remote
from jobs.states import Cause, EventKind, Status
from tests.chaos import remote as mixed
from tests.support.http_client import HttpClient
from tests.support.lossy_proxy import LossyProxy, lose_first_response_to
from tests.support.remote_workers import ADDON, SHELL_TOOLS, ChildProcess, RemoteWorkers
from tests.support.worker_processes import (
    FAST_SETTINGS,
    Fleet,
    get_event,
    get_job,
    get_retry,
    wait_for_status,
    wait_until,
    wait_until_all_ended,
)

needs_shell_tools = pytest.mark.skipif(
    not all(map(shutil.which, SHELL_TOOLS)), reason=f"the shell example needs {' and '.join(SHELL_TOOLS)}"
)
IN_SHELL = (needs_shell_tools, pytest.mark.once)  # the one in Python is tried on both databases
PYTHON_AND_SHELL = [RemoteWorkers.start_python_worker, pytest.param(RemoteWorkers.start_shell_worker, marks=IN_SHELL)]
each_example = pytest.mark.parametrize("worker", PYTHON_AND_SHELL, ids=["python", "shell"])

Start = Callable[..., ChildProcess]


@pytest.fixture
def crew(fleet: Fleet) -> Iterator[RemoteWorkers]:
    with RemoteWorkers(fleet) as made:
        yield made
        print(made.logs())


def submit(number: int = 0, *, job_type: str = "remote.work", **fields: Any) -> UUID:
    payload = {"number": number, **fields.pop("payload", {})}
    output = {"addon_id": ADDON, "job_type": job_type, "payload": payload, **fields}
    return remote.submit(output, actor=PYTHON)[0].pk


def has_started(crew: RemoteWorkers, job_id: UUID) -> bool:
    return bool(crew.fleet.ledger.read_job_lines(job_id, "start"))


@needs_shell_tools
def test_both_examples_and_a_local_worker_share_one_queue(fleet: Fleet, chance: random.Random) -> None:
    verdict = mixed.run(fleet, chance, jobs=60, lanes=8)
    print(verdict)
    assert not verdict.broken, str(verdict)


@each_example
def test_a_worker_does_its_jobs_with_no_local_worker_at_all(crew: RemoteWorkers, worker: Start) -> None:
    ids = [submit(number, target="book-1") for number in range(3)]
    worker(crew, crew.start_server())
    wait_until_all_ended(60, crew.fleet)
    assert [(get_job(job_id).status, get_job(job_id).run.artifacts) for job_id in ids] == [
        (Status.COMPLETED, {"result": number}) for number in range(3)
    ]
    assert [UUID(call.job) for call in crew.fleet.ledger.list_calls()] == ids


@each_example
def test_a_failure_is_reported_with_its_reason(crew: RemoteWorkers, worker: Start) -> None:
    job_id = submit(payload={"number": "none"}, max_retries=0)
    worker(crew, crew.start_server())
    failed = wait_for_status(job_id, Status.FAILED, fleet=crew.fleet)
    assert "ValueError" in failed.run.error
    assert failed.run.exit_code == 1


@pytest.mark.parametrize(
    ("worker", "sweeper"),
    [
        (RemoteWorkers.start_python_worker, "a local worker"),
        (RemoteWorkers.start_python_worker, "another remote worker"),
        pytest.param(RemoteWorkers.start_shell_worker, "another remote worker", marks=IN_SHELL),
    ],
    ids=["python, local sweeper", "python", "shell"],
)
def test_a_remote_worker_killed_mid_job_is_recovered_like_a_local_one(
    crew: RemoteWorkers, tmp_path: Path, worker: Start, sweeper: str
) -> None:
    url = crew.start_server()
    doomed = worker(crew, url, name="doomed")
    first = submit(payload={"gate": str(tmp_path / "never")})
    wait_until(lambda: has_started(crew, first), what=crew.logs)
    doomed.kill()
    if sweeper == "a local worker":
        crew.fleet.start("--name=local")
    heir = worker(crew, url, name="heir")

    wait_for_status(first, Status.FAILED, fleet=crew.fleet)
    second = get_retry(first)
    wait_for_status(second.pk, Status.COMPLETED, fleet=crew.fleet)

    ended = get_event(first, EventKind.FAILED)
    assert (ended.data["cause"], ended.data["worker"]) == (Cause.LEASE_EXPIRED, "doomed")
    assert ended.data["pid"] == doomed.pid
    assert (get_job(first).run.status, get_job(first).run.error) == (Status.FAILED, "lease expired")
    assert f":{heir.name}#0" in get_job(second.pk).run.worker
    assert [call.attempt for call in crew.fleet.ledger.list_calls()] == [1, 2]


def test_a_remote_worker_frozen_past_its_lease_changes_nothing(crew: RemoteWorkers, tmp_path: Path) -> None:
    url, gate = crew.start_server(), tmp_path / "gate"
    frozen = crew.start_python_worker(url, name="frozen")
    first = submit(payload={"gate": str(gate)})
    wait_until(lambda: has_started(crew, first), what=crew.logs)
    frozen.signal(signal.SIGSTOP)
    crew.start_python_worker(url, name="heir")
    wait_for_status(first, Status.FAILED, fleet=crew.fleet)
    wait_for_status(get_retry(first).pk, Status.COMPLETED, fleet=crew.fleet)
    gate.touch()
    frozen.signal(signal.SIGCONT)
    wait_until(
        lambda: "lease is lost" in frozen.output or "lease_lost" in frozen.output, what=crew.logs
    )  # a beat, or its end
    ends = JobEvent.objects.filter(kind__in=[EventKind.COMPLETED, EventKind.FAILED]).order_by("id")
    assert list(ends.values_list("kind", flat=True)) == [EventKind.FAILED, EventKind.COMPLETED]


@pytest.mark.parametrize(
    ("worker", "verb", "ended"),
    [
        (RemoteWorkers.start_python_worker, job_services.cancel, Status.CANCELLED),
        (RemoteWorkers.start_python_worker, job_services.pause, Status.PAUSED),
        pytest.param(RemoteWorkers.start_shell_worker, job_services.cancel, Status.CANCELLED, marks=IN_SHELL),
    ],
    ids=["python, cancel", "python, pause", "shell"],
)
def test_a_stop_request_reaches_the_program(
    crew: RemoteWorkers, tmp_path: Path, worker: Start, verb: Callable[..., Any], ended: Status
) -> None:
    job_id = submit(payload={"gate": str(tmp_path / "never")})
    worker(crew, crew.start_server())
    wait_until(lambda: has_started(crew, job_id), what=crew.logs)
    verb(job_id)
    wait_for_status(job_id, ended, fleet=crew.fleet)


@each_example
def test_a_worker_that_is_cut_off_stops_by_itself(crew: RemoteWorkers, tmp_path: Path, worker: Start) -> None:
    job_id = submit(payload={"gate": str(tmp_path / "never")})
    there = worker(crew, crew.start_server())
    wait_until(lambda: has_started(crew, job_id), what=crew.logs)
    crew.programs[0].kill()
    wait_until(lambda: "the lease is lost" in there.output, what=crew.logs)
    assert get_job(job_id).status == Status.RUNNING  # no worker was there to recover it


@each_example
def test_a_worker_that_is_told_to_leave_hands_its_job_back(crew: RemoteWorkers, tmp_path: Path, worker: Start) -> None:
    gate = tmp_path / "gate"
    job_id = submit(payload={"gate": str(gate)})
    url = crew.start_server()
    leaving = worker(crew, url, name="leaving")
    wait_until(lambda: has_started(crew, job_id), what=crew.logs)
    leaving.signal(signal.SIGTERM)
    assert leaving.wait_for_end() == 0
    get_event(job_id, EventKind.HANDED_BACK)
    gate.touch()
    worker(crew, url, name="next")
    assert wait_for_status(job_id, Status.COMPLETED, fleet=crew.fleet).attempt == 1


@each_example
def test_answers_that_get_lost_are_asked_for_again_and_every_job_runs_once(crew: RemoteWorkers, worker: Start) -> None:
    ids = [submit(number) for number in range(5)]
    with LossyProxy(crew.start_server(), lose_first_response_to("/start", "/complete")) as proxy:
        worker(crew, proxy.url)
        wait_until_all_ended(60, crew.fleet)
        wait_until(lambda: (proxy.lost["start"], proxy.lost["complete"]) == (5, 5), what=lambda: str(proxy.lost))
    assert Counter(call.job for call in crew.fleet.ledger.list_calls()) == Counter(map(str, ids))
    assert set(Job.objects.values_list("status", flat=True)) == {Status.COMPLETED}
    assert JobEvent.objects.filter(kind=EventKind.RUNNING).count() == 5


def test_where_a_repeated_call_is_not_known_as_one_s_own_a_lost_answer_costs_the_job(crew: RemoteWorkers) -> None:
    """The same with a server that forgets who started what: the job is given up, and runs again."""
    job_id = submit(max_retries=5)
    with LossyProxy(crew.start_server(sabotage="forget_repeated_starts"), lose_first_response_to("/start")) as proxy:
        crew.start_python_worker(proxy.url)
        wait_for_status(job_id, Status.FAILED, fleet=crew.fleet)
    assert get_event(job_id, EventKind.FAILED).data["cause"] == Cause.LEASE_EXPIRED


def test_the_same_call_again_gets_the_same_answer_to_the_letter(crew: RemoteWorkers) -> None:
    job_id = submit()
    with LossyProxy(crew.start_server(), lose_first_response_to("/start", "/complete")) as proxy:
        caller = HttpClient(proxy.url, crew.token)
        caller.get(f"/queue/dispatchable?addon_id={ADDON}")
        who = {"worker_id": "by-hand"}
        assert caller.post(f"/queue/jobs/{job_id}/start", who) is None
        lease = caller.post(f"/queue/jobs/{job_id}/start", who)
        assert caller.post(f"/queue/jobs/{job_id}/start", who) == lease
        end = {"lease_id": caller.parse(lease)["lease_id"], "state": "DONE"}
        assert caller.post(f"/queue/jobs/{job_id}/complete", end) is None
        response = caller.post(f"/queue/jobs/{job_id}/complete", end)
        assert caller.post(f"/queue/jobs/{job_id}/complete", end) == response
    assert caller.parse(response)["state"] == "DONE"
    assert JobEvent.objects.filter(job_id=job_id, kind=EventKind.COMPLETED).count() == 1


assert FAST_SETTINGS["LEASE_SEC"] < 5  # the stories above wait for leases to run out
