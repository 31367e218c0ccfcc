"""Cancel and pause reach a running handler; what was asked is never forgotten, whatever happens to the worker."""

from __future__ import annotations

import pytest

from jobs.models import Job, JobRun
from jobs.services import jobs as job_services
from jobs.states import EventKind, Status
from tests.support.snapshots import list_event_kinds
from tests.support.worker_processes import (
    FAST_SETTINGS,
    LONG_LEASE_SETTINGS,
    Fleet,
    get_database_time,
    get_event,
    get_job,
    wait_for_status,
    wait_until,
)

HEARD_SEC = 1.0  # beyond one heartbeat: for the handler to stop and the end to be written


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_cancel_reaches_a_running_handler_within_a_heartbeat(fleet: Fleet, executor: str) -> None:
    fleet.start("--concurrency=2", f"--executor={executor}", settings=LONG_LEASE_SETTINGS)
    for kind in ("sample.sleepy", "sample.nap"):
        running = at_work(fleet, kind, seconds=600)
        job_services.cancel(running.pk, reason="not wanted")

        done = wait_for_status(running.pk, Status.CANCELLED, fleet=fleet)

        heard = get_event(running.pk, EventKind.CANCELLED).at - get_event(running.pk, EventKind.CANCEL_REQUESTED).at
        print(f"{kind} in a {executor}: stopped after {heard.total_seconds():.2f} s")
        assert heard.total_seconds() <= LONG_LEASE_SETTINGS["HEARTBEAT_SEC"] + HEARD_SEC
        assert (done.status_reason, done.run.status) == ("not wanted", Status.CANCELLED)
        assert not Job.objects.filter(retry_of=done).exists()


def test_a_paused_job_continues_on_another_worker_in_the_same_run(fleet: Fleet) -> None:
    one = fleet.start("--name=one", settings=LONG_LEASE_SETTINGS)
    counted = job_services.enqueue("sample.count", {"upto": 60, "pace": 0.02}, target="book-1")
    wait_until(lambda: len(fleet.ledger.read_job_lines(counted.pk, "step")) >= 5)
    job_services.pause(counted.pk)
    paused = wait_for_status(counted.pk, Status.PAUSED, fleet=fleet)
    assert paused.checkpoint >= 5
    assert (paused.run.status, paused.blocks_target, paused.cancel_requested) == (Status.RUNNING, True, False)
    one.terminate()
    assert one.wait_for_end() == 0

    fleet.start("--name=two", settings=LONG_LEASE_SETTINGS)
    job_services.resume(counted.pk)
    done = wait_for_status(counted.pk, Status.COMPLETED, fleet=fleet)

    steps = [line["number"] for line in fleet.ledger.read_job_lines(counted.pk, "step")]
    assert steps == list(range(1, 61)), "it went on exactly where it stopped"
    assert len({line["pid"] for line in fleet.ledger.read_job_lines(counted.pk, "start")}) == 2
    assert JobRun.objects.filter(job=done).count() == 1
    assert (done.run.worker, done.run.artifacts, done.attempt) == ("one", {"result": 60}, 1)
    assert list_event_kinds(done) == [
        "SUBMITTED",
        "RUNNING",
        "PAUSE_REQUESTED",
        "PAUSED",
        "RESUMED",
        "RUNNING",
        "COMPLETED",
    ]


def test_stop_requests_survive_the_loss_of_the_lease(fleet: Fleet) -> None:
    doomed = fleet.start("--name=doomed", "--concurrency=2", "--no-housekeeping")
    held = {wanted: at_work(fleet, "sample.sleepy", seconds=600) for wanted in (Status.CANCELLED, Status.PAUSED)}
    doomed.freeze()
    ask(held)
    doomed.kill()
    fleet.start("--name=heir")

    for wanted, item in held.items():
        wait_for_status(item.pk, wanted, fleet=fleet)

    follow_nothing(fleet, *held.values())


def test_stop_requests_survive_the_hand_back(fleet: Fleet) -> None:
    """Asked while their worker is stopped in its tracks, and told to shut down: both arrive at once."""
    settings = {**LONG_LEASE_SETTINGS, "SHUTDOWN_GRACE_SEC": 0, "HEARTBEAT_SEC": 5}
    leaving = fleet.start("--name=leaving", "--concurrency=2", settings=settings)
    held = {wanted: at_work(fleet, "sample.sleepy", seconds=600) for wanted in (Status.CANCELLED, Status.PAUSED)}
    leaving.freeze()
    ask(held)
    leaving.terminate()
    leaving.unfreeze()
    assert leaving.wait_for_end() == 0, leaving.output

    assert {wanted: get_job(item.pk).status for wanted, item in held.items()} == {lease: lease for lease in held}
    fleet.start("--name=heir", settings=LONG_LEASE_SETTINGS)
    follow_nothing(fleet, *held.values())


def test_a_handler_that_fails_after_a_cancel_is_not_retried(fleet: Fleet) -> None:
    fleet.start(settings={**FAST_SETTINGS, "LEASE_SEC": 20, "HEARTBEAT_SEC": 5})
    held = job_services.enqueue("sample.fail_at_gate", {"gate": str(fleet.home / "gate")})
    wait_until(lambda: fleet.ledger.read_job_lines(held.pk, "start"))
    job_services.cancel(held.pk)
    (fleet.home / "gate").touch()

    wait_for_status(held.pk, Status.FAILED, fleet=fleet)

    assert not Job.objects.filter(retry_of=held).exists()


def test_a_job_that_completes_before_it_notices_a_stop_stays_completed(fleet: Fleet) -> None:
    fleet.start(settings=LONG_LEASE_SETTINGS)
    held = job_services.enqueue("sample.deaf", {"gate": str(fleet.home / "gate")})
    wait_until(lambda: fleet.ledger.read_job_lines(held.pk, "start"))
    job_services.cancel(held.pk)
    asked_at = get_database_time()
    wait_until(lambda: "stop requested" in fleet.workers[0].output)
    (fleet.home / "gate").touch()

    done = wait_for_status(held.pk, Status.COMPLETED, fleet=fleet)

    assert done.run.finished_at > asked_at


def at_work(fleet: Fleet, kind: str, **params: object) -> Job:
    made = job_services.enqueue(kind, params)
    wait_until(lambda: fleet.ledger.read_job_lines(made.pk, "start"), what=fleet.logs)
    return made


def ask(held: dict[Status, Job]) -> None:
    job_services.cancel(held[Status.CANCELLED].pk)
    job_services.pause(held[Status.PAUSED].pk)


def follow_nothing(fleet: Fleet, *held: Job) -> None:
    """Neither a retry nor another start: a job that comes after them is done first."""
    last = job_services.enqueue("sample.noop")
    wait_for_status(last.pk, Status.COMPLETED, fleet=fleet)
    for lease in held:
        assert not Job.objects.filter(retry_of=lease).exists()
        assert len(fleet.ledger.read_job_lines(lease.pk, "start")) == 1
        assert get_job(lease.pk).attempt == 1
        assert EventKind.HANDED_BACK not in list_event_kinds(lease)
