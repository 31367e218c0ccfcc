"""What a handler, or a host's policy, says of an end is never too odd to be written down."""

from __future__ import annotations

import sys
from collections.abc import Callable
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.conf import conf
from jobs.engine import finish
from jobs.engine.claim import Claimer, ServedJobs
from jobs.engine.executors import process, run
from jobs.engine.executors.run import Context
from jobs.engine.finish import FinishStatus, JobResult
from jobs.engine.worker.running_jobs import RunningJob
from jobs.models import Job
from jobs.outcomes import Completed, Failed
from jobs.states import Cause
from tests.factories import SAMPLE_TYPE, JobFactory
from tests.support.executor import WORKER

pytestmark = pytest.mark.django_db


def record(outcome: Completed | Failed, alone: bool) -> list[Job]:
    """One end and several are different statements."""
    jobs = JobFactory.create_batch(1 if alone else 2, running=True)
    ends = [JobResult(job.pk, job.lease_token, outcome) for job in jobs if job.lease_token is not None]
    verdicts = finish.finish(ends, actor=WORKER)
    assert set(verdicts.values()) == {FinishStatus.DONE}
    return [Job.objects.select_related("run", "retried_by").get(pk=job.pk) for job in jobs]


def exits(code: object) -> BaseException:
    try:
        sys.exit(code)  # type: ignore[arg-type]
    except SystemExit as error:
        return error


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(
    ("code", "kept"),
    [
        (3, 3),
        (-9, -9),
        (0, 1),
        (None, 1),
        ("text", 1),
        (True, 1),
        (False, 1),
        (2**31, 1),
        (-(2**31), -(2**31)),
        (10**30, 1),
    ],
    ids=str,
)
def test_whatever_a_handler_exits_with_is_a_failure_with_an_exit_code(code: object, kept: int, alone: bool) -> None:
    failed = run.build_failure(JobFactory.build(max_retries=0), exits(code), Cause.ERROR, {})
    assert {job.run.exit_code for job in record(failed, alone)} == {kept}


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(("code", "kept"), [(7, 7), (True, 1), (None, 0), ("7", 0), (2**63, 0)], ids=str)
def test_whatever_a_handler_leaves_as_its_exit_code_is_an_end(code: Any, kept: int, alone: bool) -> None:
    ctx = SimpleNamespace(artifacts={}, is_over_token_limit=False, exit_code=code)
    completed = run._build_outcome(None, ctx)  # type: ignore[arg-type]
    assert isinstance(completed, Completed)
    assert {job.run.exit_code for job in record(completed, alone)} == {kept}


def _raises(_: Any) -> float:
    raise ZeroDivisionError


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(
    ("decide", "is_retried"),
    [
        (lambda _: Decimal("1.5"), True),
        (lambda _: True, True),
        (lambda _: -1, True),
        (lambda _: 1e300, True),
        (lambda _: float("inf"), True),
        (lambda _: float("nan"), False),
        (lambda _: "soon", False),
        (_raises, False),
    ],
    ids=["decimal", "bool", "past", "huge", "infinite", "nan", "text", "raises"],
)
def test_whatever_a_retry_policy_says_the_job_ends(
    decide: Callable[[Any], Any], is_retried: bool, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(conf), "policy", lambda *_: SimpleNamespace(decide=decide))
    for job in record(run.build_failure(JobFactory.build(max_retries=3), RuntimeError("boom"), Cause.ERROR, {}), alone):
        assert (job.status, hasattr(job, "retried_by")) == ("FAILED", is_retried)


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (35, "signal 35")])
def test_whatever_signal_ends_a_handlers_process_the_job_ends(number: int, name: str) -> None:
    JobFactory.create(queued=True)
    [claim] = Claimer("one", ServedJobs((SAMPLE_TYPE,))).claim([0], lease_sec=30)
    job = RunningJob(claim, Context(job_id=claim.id, params={}), deadline=0.0)
    ended = process._explain_exit(job, -number)
    assert isinstance(ended, Failed)
    assert (ended.reason, ended.exit_code) == (f"the handler's process was ended by {name}", 128 + number)
