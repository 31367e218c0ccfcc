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
from tests.support.http_client import Caller
from tests.support.lossy_proxy import LossyProxy, first_answer_to
from tests.support.remote_workers import ADDON, SHELL_TOOLS, Crew, Program
from tests.support.worker_processes import SHORT, Fleet, await_all_ended, await_status, event, job, successor, until

needs_shell_tools = pytest.mark.skipif(
    not all(map(shutil.which, SHELL_TOOLS)), reason=f"the shell example needs {' and '.join(SHELL_TOOLS)}"
)
IN_SHELL = (needs_shell_tools, pytest.mark.once)  # the one in Python is tried on both databases
PYTHON_AND_SHELL = [Crew.python_worker, pytest.param(Crew.shell_worker, marks=IN_SHELL)]
each_example = pytest.mark.parametrize("worker", PYTHON_AND_SHELL, ids=["python", "shell"])

Start = Callable[..., Program]


@pytest.fixture
def crew(fleet: Fleet) -> Iterator[Crew]:
    with Crew(fleet) as made:
        yield made
        print(made.logs())


def submit(number: int = 0, *, job_type: str = "remote.work", **fields: Any) -> UUID:
    payload = {"number": number, **fields.pop("payload", {})}
    said = {"addon_id": ADDON, "job_type": job_type, "payload": payload, **fields}
    return remote.submit(said, actor=PYTHON)[0].pk


def started(crew: Crew, job_id: UUID) -> bool:
    return bool(crew.fleet.ledger.of(job_id, "start"))


@needs_shell_tools
def test_both_examples_and_a_local_worker_share_one_queue(fleet: Fleet, chance: random.Random) -> None:
    verdict = mixed.run(fleet, chance, jobs=60, lanes=8)
    print(verdict)
    assert not verdict.broken, str(verdict)


@each_example
def test_a_worker_does_its_jobs_with_no_local_worker_at_all(crew: Crew, worker: Start) -> None:
    ids = [submit(number, target="book-1") for number in range(3)]
    worker(crew, crew.serve())
    await_all_ended(60, crew.fleet)
    assert [(job(each).status, job(each).run.artifacts) for each in ids] == [
        (Status.COMPLETED, {"result": number}) for number in range(3)
    ]
    assert [UUID(each.job) for each in crew.fleet.ledger.stretches()] == ids


@each_example
def test_a_failure_is_reported_with_its_reason(crew: Crew, worker: Start) -> None:
    job_id = submit(payload={"number": "none"}, max_retries=0)
    worker(crew, crew.serve())
    failed = await_status(job_id, Status.FAILED, fleet=crew.fleet)
    assert "ValueError" in failed.run.error
    assert failed.run.exit_code == 1


@pytest.mark.parametrize(
    ("worker", "sweeper"),
    [
        (Crew.python_worker, "a local worker"),
        (Crew.python_worker, "another remote worker"),
        pytest.param(Crew.shell_worker, "another remote worker", marks=IN_SHELL),
    ],
    ids=["python, local sweeper", "python", "shell"],
)
def test_a_remote_worker_killed_mid_job_is_recovered_like_a_local_one(
    crew: Crew, tmp_path: Path, worker: Start, sweeper: str
) -> None:
    url = crew.serve()
    doomed = worker(crew, url, name="doomed")
    first = submit(payload={"gate": str(tmp_path / "never")})
    until(lambda: started(crew, first), what=crew.logs)
    doomed.kill()
    if sweeper == "a local worker":
        crew.fleet.start("--name=local")
    heir = worker(crew, url, name="heir")

    await_status(first, Status.FAILED, fleet=crew.fleet)
    second = successor(first)
    await_status(second.pk, Status.COMPLETED, fleet=crew.fleet)

    ended = event(first, EventKind.FAILED)
    assert (ended.data["cause"], ended.data["worker"]) == (Cause.LEASE_EXPIRED, "doomed")
    assert ended.data["pid"] == doomed.pid
    assert (job(first).run.status, job(first).run.error) == (Status.FAILED, "lease expired")
    assert f":{heir.name}#0" in job(second.pk).run.worker
    assert [each.attempt for each in crew.fleet.ledger.stretches()] == [1, 2]


def test_a_remote_worker_frozen_past_its_lease_changes_nothing(crew: Crew, tmp_path: Path) -> None:
    url, gate = crew.serve(), tmp_path / "gate"
    frozen = crew.python_worker(url, name="frozen")
    first = submit(payload={"gate": str(gate)})
    until(lambda: started(crew, first), what=crew.logs)
    frozen.signal(signal.SIGSTOP)
    crew.python_worker(url, name="heir")
    await_status(first, Status.FAILED, fleet=crew.fleet)
    await_status(successor(first).pk, Status.COMPLETED, fleet=crew.fleet)
    gate.touch()
    frozen.signal(signal.SIGCONT)
    until(
        lambda: "lease is lost" in frozen.output or "lease_lost" in frozen.output, what=crew.logs
    )  # a beat, or its end
    ends = JobEvent.objects.filter(kind__in=[EventKind.COMPLETED, EventKind.FAILED]).order_by("id")
    assert list(ends.values_list("kind", flat=True)) == [EventKind.FAILED, EventKind.COMPLETED]


@pytest.mark.parametrize(
    ("worker", "verb", "ended"),
    [
        (Crew.python_worker, job_services.cancel, Status.CANCELLED),
        (Crew.python_worker, job_services.pause, Status.PAUSED),
        pytest.param(Crew.shell_worker, job_services.cancel, Status.CANCELLED, marks=IN_SHELL),
    ],
    ids=["python, cancel", "python, pause", "shell"],
)
def test_a_stop_request_reaches_the_program(
    crew: Crew, tmp_path: Path, worker: Start, verb: Callable[..., Any], ended: Status
) -> None:
    job_id = submit(payload={"gate": str(tmp_path / "never")})
    worker(crew, crew.serve())
    until(lambda: started(crew, job_id), what=crew.logs)
    verb(job_id)
    await_status(job_id, ended, fleet=crew.fleet)


@each_example
def test_a_worker_that_is_cut_off_stops_by_itself(crew: Crew, tmp_path: Path, worker: Start) -> None:
    job_id = submit(payload={"gate": str(tmp_path / "never")})
    there = worker(crew, crew.serve())
    until(lambda: started(crew, job_id), what=crew.logs)
    crew.programs[0].kill()
    until(lambda: "the lease is lost" in there.output, what=crew.logs)
    assert job(job_id).status == Status.RUNNING  # nobody was there to recover it


@each_example
def test_a_worker_that_is_told_to_leave_hands_its_job_back(crew: Crew, tmp_path: Path, worker: Start) -> None:
    gate = tmp_path / "gate"
    job_id = submit(payload={"gate": str(gate)})
    url = crew.serve()
    leaving = worker(crew, url, name="leaving")
    until(lambda: started(crew, job_id), what=crew.logs)
    leaving.signal(signal.SIGTERM)
    assert leaving.ended() == 0
    event(job_id, EventKind.HANDED_BACK)
    gate.touch()
    worker(crew, url, name="next")
    assert await_status(job_id, Status.COMPLETED, fleet=crew.fleet).attempt == 1


@each_example
def test_answers_that_get_lost_are_asked_for_again_and_every_job_runs_once(crew: Crew, worker: Start) -> None:
    ids = [submit(number) for number in range(5)]
    with LossyProxy(crew.serve(), first_answer_to("/start", "/complete")) as proxy:
        worker(crew, proxy.url)
        await_all_ended(60, crew.fleet)
        until(lambda: (proxy.lost["start"], proxy.lost["complete"]) == (5, 5), what=lambda: str(proxy.lost))
    assert Counter(each.job for each in crew.fleet.ledger.stretches()) == Counter(map(str, ids))
    assert set(Job.objects.values_list("status", flat=True)) == {Status.COMPLETED}
    assert JobEvent.objects.filter(kind=EventKind.RUNNING).count() == 5


def test_where_a_repeated_call_is_not_known_as_one_s_own_a_lost_answer_costs_the_job(crew: Crew) -> None:
    """The same with a server that forgets who started what: the job is given up, and runs again."""
    job_id = submit(max_retries=5)
    with LossyProxy(crew.serve(sabotage="forgetful"), first_answer_to("/start")) as proxy:
        crew.python_worker(proxy.url)
        await_status(job_id, Status.FAILED, fleet=crew.fleet)
    assert event(job_id, EventKind.FAILED).data["cause"] == Cause.LEASE_EXPIRED


def test_the_same_call_again_gets_the_same_answer_to_the_letter(crew: Crew) -> None:
    job_id = submit()
    with LossyProxy(crew.serve(), first_answer_to("/start", "/complete")) as proxy:
        caller = Caller(proxy.url, crew.token)
        caller.get(f"/queue/dispatchable?addon_id={ADDON}")
        who = {"worker_id": "by-hand"}
        assert caller.post(f"/queue/jobs/{job_id}/start", who) is None
        lease = caller.post(f"/queue/jobs/{job_id}/start", who)
        assert caller.post(f"/queue/jobs/{job_id}/start", who) == lease
        end = {"lease_id": caller.read(lease)["lease_id"], "state": "DONE"}
        assert caller.post(f"/queue/jobs/{job_id}/complete", end) is None
        told = caller.post(f"/queue/jobs/{job_id}/complete", end)
        assert caller.post(f"/queue/jobs/{job_id}/complete", end) == told
    assert caller.read(told)["state"] == "DONE"
    assert JobEvent.objects.filter(job_id=job_id, kind=EventKind.COMPLETED).count() == 1


assert SHORT["LEASE_SEC"] < 5  # the stories above wait for leases to run out
