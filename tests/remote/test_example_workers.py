"""The example workers as shipped, against real servers: kills, freezes, lost responses, stops."""

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
SHELL_MARKS = (needs_shell_tools, pytest.mark.once)  # the Python example runs on both databases
PYTHON_AND_SHELL = [
    RemoteWorkers.start_python_worker,
    pytest.param(RemoteWorkers.start_shell_worker, marks=SHELL_MARKS),
]
with_each_example = pytest.mark.parametrize("start_worker", PYTHON_AND_SHELL, ids=["python", "shell"])

Start = Callable[..., ChildProcess]


@pytest.fixture
def workers(fleet: Fleet) -> Iterator[RemoteWorkers]:
    with RemoteWorkers(fleet) as workers:
        yield workers
        print(workers.logs())


def submit(number: int = 0, *, job_type: str = "remote.work", **fields: Any) -> UUID:
    payload = {"number": number, **fields.pop("payload", {})}
    request = {"addon_id": ADDON, "job_type": job_type, "payload": payload, **fields}
    return remote.submit(request, actor=PYTHON)[0].pk


def has_started(workers: RemoteWorkers, job_id: UUID) -> bool:
    return bool(workers.fleet.ledger.read_job_lines(job_id, "start"))


@needs_shell_tools
def test_both_examples_and_a_local_worker_share_one_queue(fleet: Fleet, chance: random.Random) -> None:
    verdict = mixed.run(fleet, chance, jobs=60, lanes=8)
    print(verdict)
    assert not verdict.broken, str(verdict)


@with_each_example
def test_a_remote_worker_runs_its_jobs_without_any_local_worker(workers: RemoteWorkers, start_worker: Start) -> None:
    ids = [submit(number, target="book-1") for number in range(3)]
    start_worker(workers, workers.start_server())
    wait_until_all_ended(60, workers.fleet)
    assert [(get_job(job_id).status, get_job(job_id).run.artifacts) for job_id in ids] == [
        (Status.COMPLETED, {"result": number}) for number in range(3)
    ]
    assert [UUID(call.job) for call in workers.fleet.ledger.list_calls()] == ids


@with_each_example
def test_a_failure_is_reported_with_its_reason(workers: RemoteWorkers, start_worker: Start) -> None:
    job_id = submit(payload={"number": "none"}, max_retries=0)
    start_worker(workers, workers.start_server())
    failed = wait_for_status(job_id, Status.FAILED, fleet=workers.fleet)
    assert "ValueError" in failed.run.error
    assert failed.run.exit_code == 1


@pytest.mark.parametrize(
    ("start_worker", "reaper"),
    [
        (RemoteWorkers.start_python_worker, "a local worker"),
        (RemoteWorkers.start_python_worker, "another remote worker"),
        pytest.param(RemoteWorkers.start_shell_worker, "another remote worker", marks=SHELL_MARKS),
    ],
    ids=["python, local reaper", "python", "shell"],
)
def test_a_remote_worker_killed_mid_job_is_recovered_like_a_local_one(
    workers: RemoteWorkers, tmp_path: Path, start_worker: Start, reaper: str
) -> None:
    url = workers.start_server()
    killed_worker = start_worker(workers, url, name="killed")
    first = submit(payload={"gate": str(tmp_path / "never")})
    wait_until(lambda: has_started(workers, first), what=workers.logs)
    killed_worker.kill()
    if reaper == "a local worker":
        workers.fleet.start("--name=local")
    next_worker = start_worker(workers, url, name="next")

    wait_for_status(first, Status.FAILED, fleet=workers.fleet)
    second = get_retry(first)
    wait_for_status(second.pk, Status.COMPLETED, fleet=workers.fleet)

    event = get_event(first, EventKind.FAILED)
    assert (event.data["cause"], event.data["worker"]) == (Cause.LEASE_EXPIRED, "killed")
    assert event.data["pid"] == killed_worker.pid
    assert (get_job(first).run.status, get_job(first).run.error) == (Status.FAILED, "lease expired")
    assert f":{next_worker.name}#0" in get_job(second.pk).run.worker
    assert [call.attempt for call in workers.fleet.ledger.list_calls()] == [1, 2]


def test_a_remote_worker_frozen_past_its_lease_changes_nothing(workers: RemoteWorkers, tmp_path: Path) -> None:
    url, gate = workers.start_server(), tmp_path / "gate"
    frozen_worker = workers.start_python_worker(url, name="frozen")
    first = submit(payload={"gate": str(gate)})
    wait_until(lambda: has_started(workers, first), what=workers.logs)
    frozen_worker.signal(signal.SIGSTOP)
    workers.start_python_worker(url, name="next")
    wait_for_status(first, Status.FAILED, fleet=workers.fleet)
    wait_for_status(get_retry(first).pk, Status.COMPLETED, fleet=workers.fleet)
    gate.touch()
    frozen_worker.signal(signal.SIGCONT)
    wait_until(
        lambda: "lease is lost" in frozen_worker.output or "lease_lost" in frozen_worker.output, what=workers.logs
    )  # the response to a heartbeat or to complete
    ends = JobEvent.objects.filter(kind__in=[EventKind.COMPLETED, EventKind.FAILED]).order_by("id")
    assert list(ends.values_list("kind", flat=True)) == [EventKind.FAILED, EventKind.COMPLETED]


@pytest.mark.parametrize(
    ("start_worker", "verb", "status"),
    [
        (RemoteWorkers.start_python_worker, job_services.cancel, Status.CANCELLED),
        (RemoteWorkers.start_python_worker, job_services.pause, Status.PAUSED),
        pytest.param(RemoteWorkers.start_shell_worker, job_services.cancel, Status.CANCELLED, marks=SHELL_MARKS),
    ],
    ids=["python, cancel", "python, pause", "shell"],
)
def test_a_stop_request_reaches_the_program(
    workers: RemoteWorkers, tmp_path: Path, start_worker: Start, verb: Callable[..., Any], status: Status
) -> None:
    job_id = submit(payload={"gate": str(tmp_path / "never")})
    start_worker(workers, workers.start_server())
    wait_until(lambda: has_started(workers, job_id), what=workers.logs)
    verb(job_id)
    wait_for_status(job_id, status, fleet=workers.fleet)


@with_each_example
def test_a_worker_that_is_cut_off_stops_by_itself(workers: RemoteWorkers, tmp_path: Path, start_worker: Start) -> None:
    job_id = submit(payload={"gate": str(tmp_path / "never")})
    process = start_worker(workers, workers.start_server())
    wait_until(lambda: has_started(workers, job_id), what=workers.logs)
    workers.programs[0].kill()
    wait_until(lambda: "the lease is lost" in process.output, what=workers.logs)
    assert get_job(job_id).status == Status.RUNNING  # no worker was running to recover it


@with_each_example
def test_a_worker_that_is_stopped_hands_its_job_back(
    workers: RemoteWorkers, tmp_path: Path, start_worker: Start
) -> None:
    gate = tmp_path / "gate"
    job_id = submit(payload={"gate": str(gate)})
    url = workers.start_server()
    process = start_worker(workers, url, name="leaving")
    wait_until(lambda: has_started(workers, job_id), what=workers.logs)
    process.signal(signal.SIGTERM)
    assert process.wait_for_end() == 0
    get_event(job_id, EventKind.HANDED_BACK)
    gate.touch()
    start_worker(workers, url, name="next")
    assert wait_for_status(job_id, Status.COMPLETED, fleet=workers.fleet).attempt == 1


@with_each_example
def test_lost_responses_are_requested_again_and_every_job_runs_once(
    workers: RemoteWorkers, start_worker: Start
) -> None:
    ids = [submit(number) for number in range(5)]
    with LossyProxy(workers.start_server(), lose_first_response_to("/start", "/complete")) as proxy:
        start_worker(workers, proxy.url)
        wait_until_all_ended(60, workers.fleet)
        wait_until(lambda: (proxy.lost["start"], proxy.lost["complete"]) == (5, 5), what=lambda: str(proxy.lost))
    assert Counter(call.job for call in workers.fleet.ledger.list_calls()) == Counter(map(str, ids))
    assert set(Job.objects.values_list("status", flat=True)) == {Status.COMPLETED}
    assert JobEvent.objects.filter(kind=EventKind.RUNNING).count() == 5


def test_without_recognizing_repeated_calls_a_lost_response_costs_the_job(workers: RemoteWorkers) -> None:
    """With a server that does not recognize the repeated start, the job is abandoned and retried."""
    job_id = submit(max_retries=5)
    with LossyProxy(workers.start_server(sabotage="forget_repeated_starts"), lose_first_response_to("/start")) as proxy:
        workers.start_python_worker(proxy.url)
        wait_for_status(job_id, Status.FAILED, fleet=workers.fleet)
    assert get_event(job_id, EventKind.FAILED).data["cause"] == Cause.LEASE_EXPIRED


def test_a_repeated_call_gets_the_identical_response(workers: RemoteWorkers) -> None:
    job_id = submit()
    with LossyProxy(workers.start_server(), lose_first_response_to("/start", "/complete")) as proxy:
        caller = HttpClient(proxy.url, workers.token)
        caller.get(f"/queue/dispatchable?addon_id={ADDON}")
        body = {"worker_id": "by-hand"}
        assert caller.post(f"/queue/jobs/{job_id}/start", body) is None
        lease = caller.post(f"/queue/jobs/{job_id}/start", body)
        assert caller.post(f"/queue/jobs/{job_id}/start", body) == lease
        result = {"lease_id": caller.parse(lease)["lease_id"], "state": "DONE"}
        assert caller.post(f"/queue/jobs/{job_id}/complete", result) is None
        response = caller.post(f"/queue/jobs/{job_id}/complete", result)
        assert caller.post(f"/queue/jobs/{job_id}/complete", result) == response
    assert caller.parse(response)["state"] == "DONE"
    assert JobEvent.objects.filter(job_id=job_id, kind=EventKind.COMPLETED).count() == 1


assert FAST_SETTINGS["LEASE_SEC"] < 5  # the tests above wait for leases to expire
