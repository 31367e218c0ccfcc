"""`enqueue --wait` with real workers waits for the end of the retry chain and exits with the code of the job."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from uuid import UUID

import pytest

from jobs.models import Job
from jobs.services import jobs as job_services
from jobs.states import Status
from tests.support.commands import PATIENCE_SEC, CommandResult, call, start_process
from tests.support.worker_processes import Fleet, list_attempts, wait_for_status

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (["sample.add", "a=1", "b=2"], Status.COMPLETED, 0),
        (["sample.nothing_to_do"], Status.SKIPPED, 0),
        (["sample.hopeless"], Status.FAILED, 1),
        (["sample.exit", "code=7", "--max-retries=0"], Status.FAILED, 7),
        (["sample.exit", "code=-9", "--max-retries=0"], Status.FAILED, 1),
        (["sample.exit", "code=512", "--max-retries=0"], Status.FAILED, 255),
    ],
    ids=["completed", "skipped", "failed", "exit code", "killed", "beyond a byte"],
)
def test_it_exits_with_the_code_of_the_job(fleet: Fleet, arguments: list[str], status: Status, code: int) -> None:
    fleet.start()

    result = call("enqueue", *arguments, "--wait")

    job = Job.objects.get()
    assert (job.status, result.code) == (status, code)
    assert result.out == f"{job.pk}\n"
    assert "\r" not in result.err
    assert "\x1b" not in result.err


def test_a_failure_that_is_retried_is_not_the_end(fleet: Fleet) -> None:
    fleet.start()

    result = call("enqueue", "sample.fail", "times=2", "--wait")

    first = UUID(result.out.strip())
    assert [job.status for job in list_attempts(first)] == [Status.FAILED, Status.FAILED, Status.COMPLETED]
    assert result.code == 0


def test_the_last_failure_of_the_chain_is_the_end(fleet: Fleet) -> None:
    fleet.start()

    result = call("enqueue", "sample.fail", "--max-retries=1", "--wait")

    assert [job.attempt for job in list_attempts(UUID(result.out.strip()))] == [1, 2]
    assert result.code == 1
    assert "attempt 2 failed" in result.err.splitlines()[-1]


@pytest.mark.once
def test_a_cancelled_job_exits_130(fleet: Fleet) -> None:
    fleet.start()
    process = start_process(fleet.env, "enqueue", "sample.sleepy", "seconds=600", "--wait")
    job = wait_for_status(read_job_id(process), Status.RUNNING, fleet=fleet)

    job_services.cancel(job.pk)

    out, err = process.communicate(timeout=PATIENCE_SEC)
    assert (process.returncode, out) == (130, "")
    assert f"CommandError: Job {job.pk} is CANCELLED" in err


@pytest.mark.once
def test_ctrl_c_leaves_the_job_and_exits_130(fleet: Fleet) -> None:
    fleet.start()
    process = start_process(fleet.env, "enqueue", "sample.sleepy", "seconds=600", "--wait")
    job = wait_for_status(read_job_id(process), Status.RUNNING, fleet=fleet)

    process.send_signal(signal.SIGINT)

    _, err = process.communicate(timeout=PATIENCE_SEC)
    assert process.returncode == 130
    assert f"job {job.pk} continues" in err
    assert "Traceback" not in err
    job.refresh_from_db()
    assert (job.status, job.cancel_requested) == (Status.RUNNING, False)


@pytest.mark.once
def test_a_terminal_gets_a_progress_bar_on_stderr_and_the_id_alone_on_stdout(fleet: Fleet) -> None:
    fleet.start()

    result = run_at_terminal(fleet.env, "enqueue", "sample.count", "upto=20", "pace=0.02", "--wait")

    assert (result.code, UUID(result.out.strip())) == (0, Job.objects.get().pk)
    assert "\r[" in result.err
    assert "[####################] COMPLETED" in result.err


def test_without_a_worker_it_says_so(process_env: dict[str, str]) -> None:
    process = start_process(process_env, "enqueue", "sample.noop", "--wait")
    job_id = read_job_id(process)
    assert process.stderr is not None
    assert [process.stderr.readline() for _ in range(2)] == [
        "QUEUED\n",
        "No worker is running; the job waits for one.\n",
    ]

    job_services.cancel(job_id)

    process.communicate(timeout=PATIENCE_SEC)
    assert process.returncode == 130


def read_job_id(process: subprocess.Popen[str]) -> UUID:
    """Read the id, which is printed as soon as the job is committed."""
    assert process.stdout is not None
    return UUID(process.stdout.readline().strip())


def run_at_terminal(env: dict[str, str], *arguments: object) -> CommandResult:
    """Run a command whose stderr is a terminal."""
    reader, terminal_end = pty.openpty()
    process = start_process(env, *arguments, stderr=terminal_end)
    os.close(terminal_end)
    output = b"".join(iter(lambda: _read_terminal(reader), b""))
    out, _ = process.communicate(timeout=PATIENCE_SEC)
    os.close(reader)
    return CommandResult(process.returncode, out, output.decode())


def _read_terminal(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux raises it when the last writer has closed
        return b""
