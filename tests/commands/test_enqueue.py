"""`manage.py enqueue` parses params and options, and prints the id of the job."""

from __future__ import annotations

import getpass
from uuid import UUID

import pytest

from jobs.models import Job
from jobs.states import Status
from tests.support.commands import call, run_process
from tests.support.snapshots import list_events

pytestmark = pytest.mark.django_db


def test_the_id_is_alone_on_stdout_and_params_are_parsed_by_the_signature() -> None:
    result = call("enqueue", "sample.add", "a=1", "b=-2")

    job = Job.objects.get()
    assert (result.code, result.out, result.err) == (0, f"{job.pk}\n", "")
    assert job.params == {"a": 1, "b": -2}
    assert job.status == Status.QUEUED


def test_options_and_params_may_come_in_any_order() -> None:
    call("enqueue", "--priority", "high", "sample.add", "--target", "book-1", "a=1", "--tag", "x", "b=2", "--tag=y")

    job = Job.objects.get()
    assert (job.params, job.priority, job.target, job.tags) == ({"a": 1, "b": 2}, 75, "book-1", ["x", "y"])


def test_single_params_win_over_a_json_object() -> None:
    call("enqueue", "sample.add", '--json={"a": 1, "b": 1}', "b=5")

    assert Job.objects.get().params == {"a": 1, "b": 5}


def test_every_option_reaches_the_job() -> None:
    arguments = [
        "--tenant=acme",
        "--resource=gpu",
        "--max-retries=0",
        "--max-runtime=1m30s",
        "--hold",
        "--reason=because",
    ]
    call("enqueue", "sample.noop", *arguments, "--priority=7", "--at=2030-01-31T12:00:00+01:00")

    job = Job.objects.get()
    assert (job.tenant, job.resource, job.max_retries, job.max_runtime_sec) == ("acme", "gpu", 0, 90)
    assert (job.priority, job.status, job.hold) == (7, Status.PENDING, True)
    assert job.not_before is not None
    assert job.not_before.isoformat() == "2030-01-31T11:00:00+00:00"
    event = list_events(job)[0]
    assert (event.reason, event.actor_kind, event.actor_name) == ("because", "cli", getpass.getuser())


def test_retry_options_apply_to_this_job() -> None:
    arguments = ["--retry-delay=1m", "--retry-backoff=1.5", "--retry-max-delay=1h", "--retry-jitter=0.1"]
    call("enqueue", "sample.noop", *arguments)

    policy = {"base_sec": 60.0, "backoff": 1.5, "max_sec": 3600.0, "jitter": 0.1}
    assert Job.objects.get().retry_policy == policy


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["sample.add", "a=one", "b=2"], "params.a"),
        (["sample.add", "a=1"], "params.b"),
        (["sample.add", "a=1", "b=2", "c=3"], "params.c"),
        (["sample.add", "a"], "key=value"),
        (["sample.add", "=1"], "key=value"),
        (["sample.add", "a=1", "a=2"], "twice"),
        (["sample.add", "--json", "[1]"], "--json"),
        (["sample.add", "--json", "{"], "--json"),
        (["sample.ad"], "sample.add"),
        (["sample.noop", "--priority=huge"], "priority"),
        (["sample.noop", "--priority=101"], "priority"),
        (["sample.noop", "--at=tomorrow"], "--at"),
        (["sample.noop", "--at=2030-01-31T12:00:00"], "--at"),
        (["sample.noop", "--at=+soon"], "--at"),
        (["sample.noop", "--deadline=+soon"], "--deadline"),
        (["sample.noop", "--target=a/b"], "target"),
        (["sample.noop", "--tenant=a b"], "tenant"),
        (["sample.noop", "--max-retries=many"], "--max-retries"),
        (["sample.noop", "--max-runtime=60"], "--max-runtime"),
        (["sample.noop", "--retry-delay=60"], "--retry-delay"),
        (["sample.noop", "--retry-delay=400d"], "retry_delay"),
        (["sample.noop", "--retry-backoff=often"], "--retry-backoff"),
        (["sample.noop", "--retry-backoff=0.5"], "retry_backoff"),
        (["sample.noop", "--retry-max-delay=long"], "--retry-max-delay"),
        (["sample.noop", "--retry-jitter=nan"], "--retry-jitter"),
        (["sample.noop", "--retry-jitter=2"], "retry_jitter"),
    ],
)
def test_bad_input_is_one_line_exit_code_2_and_no_job(arguments: list[str], field: str) -> None:
    result = call("enqueue", *arguments)

    assert (result.code, result.out) == (2, "")
    assert field in result.err
    assert result.err.count("\n") == 1
    assert not Job.objects.exists()


def test_the_same_key_and_params_give_the_same_job_and_others_are_refused() -> None:
    first = call("enqueue", "sample.add", "a=1", "b=2", "--idempotency-key=k")

    assert call("enqueue", "sample.add", "a=1", "b=2", "--idempotency-key=k") == first
    refused = call("enqueue", "sample.add", "a=1", "b=3", "--idempotency-key=k")
    assert (refused.code, refused.out) == (1, "")
    assert Job.objects.count() == 1


@pytest.mark.once
def test_as_a_process_it_prints_the_id_alone_or_one_line_on_stderr(process_env: dict[str, str]) -> None:
    result = run_process(process_env, "enqueue", "sample.add", "a=1", "--priority", "LOW", "b=2")
    assert (result.code, result.err) == (0, "")
    assert Job.objects.get().pk == UUID(result.out.strip())

    refused = run_process(process_env, "enqueue", "sample.add", "a=1", "b=\x1b[31m")
    assert refused.code == 2
    assert refused.err.count("\n") == 1
    assert "\x1b" not in refused.err


def test_a_database_that_refuses_is_one_line_and_exit_code_1(process_env: dict[str, str], tmp_path: object) -> None:
    result = run_process(
        {**process_env, "DATABASE_URL": f"sqlite:///{tmp_path}/empty.sqlite3"}, "enqueue", "sample.noop"
    )

    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("CommandError: Database error: ")
    assert result.err.count("\n") == 1
