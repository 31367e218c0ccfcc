"""SIGSTOP past the lease: a successor takes over, and what the stale worker says when it wakes changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.models import Job
from jobs.services import jobs as job_services
from jobs.states import Cause, EventKind, Status
from tests.support.snapshots import dump_tables
from tests.support.worker_processes import (
    Fleet,
    WorkerProcess,
    get_event,
    get_job,
    get_retry,
    wait_for_status,
    wait_until,
)

NO_FAULT, NO_LEASE_CHECK, NO_TOKENS = "", "ignore_lost_leases", "ignore_lost_leases,write_without_tokens"
KEPT = ("Job", "JobRun", "JobEvent", "JobLog", "JobMinute", "Target", "LaneMark")


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


@pytest.mark.parametrize("worker", [NO_FAULT, NO_LEASE_CHECK])
def test_a_stale_worker_changes_nothing_after_the_retry_has_completed(fleet: Fleet, gate: Path, worker: str) -> None:
    stale, first = frozen_at_work(fleet, gate, worker)
    finish_the_retry(fleet, gate, first)
    before = dump_job_rows()

    wake_and_be_refused(fleet, stale, first)

    assert changes(before) == []
    assert get_event(first.pk, EventKind.FAILED).data["cause"] == Cause.LEASE_EXPIRED
    assert (get_job(first.pk).run.status, get_job(first.pk).run.error) == (Status.FAILED, "lease expired")
    goes_on(fleet, stale)


def test_without_the_token_the_stale_worker_writes_into_a_recovered_job(fleet: Fleet, gate: Path) -> None:
    stale, first = frozen_at_work(fleet, gate, NO_TOKENS)
    finish_the_retry(fleet, gate, first)
    before = dump_job_rows()

    wake(fleet, stale, first)

    wait_until(lambda: changes(before), what="the sabotage shows")
    print(*changes(before), sep="\n")


def test_a_stale_worker_cannot_end_the_stretch_of_its_successor(fleet: Fleet, gate: Path) -> None:
    stale, first = frozen_at_work(fleet, gate, NO_LEASE_CHECK)
    resume_elsewhere(fleet, first)
    before = dump_job_rows()

    wake_and_be_refused(fleet, stale, first)

    assert changes(before) == []
    goes_on(fleet, stale)
    open_gate(gate, 2)
    done = wait_for_status(first.pk, Status.COMPLETED, fleet=fleet)
    assert done.run.artifacts == {"result": "claim 2"}
    assert done.checkpoint == {"said by": "claim 2"}
    assert [line.message for line in done.logs.all()] == ["said by claim 2"]
    assert done.tokens_used == 2


def test_without_the_token_the_stale_worker_ends_the_stretch_of_its_successor(fleet: Fleet, gate: Path) -> None:
    stale, first = frozen_at_work(fleet, gate, NO_TOKENS)
    resume_elsewhere(fleet, first)

    wake(fleet, stale, first)

    done = wait_for_status(first.pk, Status.COMPLETED, fleet=fleet)
    assert done.run.artifacts == {"result": "claim 1"}, "the successor is still at work"


def frozen_at_work(fleet: Fleet, gate: Path, sabotage: str) -> tuple[WorkerProcess, Job]:
    """A worker that is stopped in the middle of a job, and an heir that waits."""
    stale = fleet.start("--name=stale", "--no-housekeeping", sabotage=sabotage)
    first = job_services.enqueue("sample.late", {"gate": str(gate)})
    wait_until(lambda: fleet.ledger.read_job_lines(first.pk, "start"))
    stale.freeze()
    open_gate(gate, 1)
    fleet.start("--name=heir")
    return stale, first


def finish_the_retry(fleet: Fleet, gate: Path, first: Job) -> None:
    wait_for_status(first.pk, Status.FAILED, fleet=fleet)
    open_gate(gate, 2)
    wait_for_status(get_retry(first.pk).pk, Status.COMPLETED, fleet=fleet)


def resume_elsewhere(fleet: Fleet, first: Job) -> None:
    """A pause that its holder never heard survives the lease; the same job, the same run, then has another holder."""
    job_services.pause(first.pk)
    wait_for_status(first.pk, Status.PAUSED, fleet=fleet)
    job_services.resume(first.pk)
    wait_until(lambda: len(fleet.ledger.read_job_lines(first.pk, "start")) == 2, what=fleet.logs)


def wake(fleet: Fleet, stale: WorkerProcess, first: Job) -> None:
    """Its handler goes on where it stood, and says all that a handler can say."""
    stale.unfreeze()
    wait_until(
        lambda: any(line["fence"] == 1 for line in fleet.ledger.read_job_lines(first.pk, "written")), what=fleet.logs
    )


def wake_and_be_refused(fleet: Fleet, stale: WorkerProcess, first: Job) -> None:
    wake(fleet, stale, first)
    wait_until(lambda: "not recorded" in stale.output, what=fleet.logs)


def goes_on(fleet: Fleet, stale: WorkerProcess) -> None:
    """The slot of a lost job is free again: of two jobs at once, the same process takes one."""
    naps = [job_services.enqueue("sample.sleepy", {"seconds": 1}).pk for _ in range(2)]
    for nap in naps:
        wait_for_status(nap, Status.COMPLETED, fleet=fleet)
    assert stale.pid in {line["pid"] for nap in naps for line in fleet.ledger.read_job_lines(nap, "start")}


def open_gate(gate: Path, fence: int) -> None:
    Path(f"{gate}.{fence}").touch()


def dump_job_rows() -> dict[str, dict[object, dict[str, object]]]:
    """All rows that belong to jobs, without what a live holder's heartbeat changes all the time."""
    beats = ("lease_expires_at", "heartbeat_at", "beat_clock")
    return {
        name: {
            row.get("id", row.get("job_id")): {key: value for key, value in row.items() if key not in beats}
            for row in rows
        }
        for name, rows in dump_tables().items()
        if name in KEPT
    }


def changes(before: dict[str, dict[object, dict[str, object]]]) -> list[str]:
    now = dump_job_rows()
    found = []
    for name, rows in before.items():
        for key in rows.keys() | now[name].keys():
            one, two = rows.get(key, {}), now[name].get(key, {})
            found += [
                f"{name} {key}.{field}: {one.get(field)} → {two.get(field)}"
                for field in one.keys() | two.keys()
                if one.get(field) != two.get(field)
            ]
    return found
