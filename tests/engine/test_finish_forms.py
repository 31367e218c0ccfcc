"""Results are recorded one by one, together, or in one pipeline with a claim. All write the same rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from jobs.engine import finish as ending
from jobs.engine.claim import Claimer, ServedJobs
from jobs.engine.finish import FinishStatus, JobResult
from jobs.engine.sql.rollup import KEY_COLUMNS, SUM_COLUMNS
from jobs.engine.worker import turn
from jobs.models import ConcurrencyLimit, Job, JobMinute
from jobs.outcomes import Completed, Failed, Skipped
from jobs.states import Cause, StopMode
from tests.factories import SAMPLE_TYPE, JobFactory, JobGroupFactory
from tests.support.executor import WORKER
from tests.support.snapshots import dump_tables, list_event_kinds
from webhooks import services as webhooks

pytestmark = [pytest.mark.django_db, pytest.mark.pg_only]

ODD = "'; -- %s %(id)s %% \\ \\u0000 \\n \" $1 ::uuid {} \u2028 \U0001f600 e\u0301 \ufffd\n\t"
OUTCOMES: list[Completed | Skipped | Failed] = [
    Completed(),
    Completed({"result": ODD, ODD: [1e308, -1e-300, 2**63, None, {"": ODD}]}, exit_code=-(2**31)),
    Completed({}, exit_code=2**31 - 1),
    Skipped(),
    Skipped(ODD, {"why": ODD}),
    Failed(error="", reason=""),
    Failed(error=ODD * 100, reason=ODD, exit_code=-9, artifacts={"left": ODD}),
    Failed(error="boom", reason="boom", cause=Cause.TIMEOUT, retry_in=0.0),
    Failed(error=ODD, reason=ODD, retry_in=1e-07),
    Failed(error="boom", reason="", cause=Cause.LEASE_EXPIRED, retry_in=10),
]
NEVER = datetime(2020, 1, 1, tzinfo=UTC)
Form = Callable[[Sequence[JobResult]], dict[UUID, FinishStatus]]
Written = tuple[dict[UUID, FinishStatus], dict[str, list[str]]]  # its answer, and every row after it


@pytest.fixture(autouse=True)
def _no_limits() -> None:
    ConcurrencyLimit.objects.all().delete()


def one_by_one(ends: Sequence[JobResult]) -> dict[UUID, FinishStatus]:
    return {job: verdict for end in ends for job, verdict in ending.finish([end], actor=WORKER).items()}


def together(ends: Sequence[JobResult]) -> dict[UUID, FinishStatus]:
    return ending.finish(ends, actor=WORKER)


def then_a_claim(finish: Form) -> Form:
    def form(ends: Sequence[JobResult]) -> dict[UUID, FinishStatus]:
        verdicts = finish(ends)
        assert len(claimer().claim(range(len(ends)), lease_sec=30)) == len(ends)
        return verdicts

    return form


def in_one_turn(ends: Sequence[JobResult]) -> dict[UUID, FinishStatus]:
    return _turn(ends, range(len(ends)))


def in_turns_of_one(ends: Sequence[JobResult]) -> dict[UUID, FinishStatus]:
    return {job: verdict for slot, end in enumerate(ends) for job, verdict in _turn([end], [slot]).items()}


def _turn(ends: Sequence[JobResult], slots: Sequence[int]) -> dict[UUID, FinishStatus]:
    """As a worker does: what was not claimed by the way is claimed afterwards."""
    taker = claimer()
    verdicts, claims = turn.take_plain_turn(taker, ends, slots, actor=WORKER, lease_sec=30)
    claims = claims or taker.claim(slots, lease_sec=30)
    assert len(claims) == len(slots)
    return verdicts


def claimer() -> Claimer:
    found = Claimer("taker", ServedJobs((SAMPLE_TYPE,)), process_key="taker@1")
    found._has_limits = False
    return found


@contextmanager
def undone() -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def write_and_read(form: Form, ends: Sequence[JobResult]) -> Written:
    """What a form answers, and every row there is after it, but for what chance and the clock decide."""
    with undone():
        verdicts = form(ends)
        kept = (
            {end.token for end in ends} | {end.job_id for end in ends} | set(Job.objects.values_list("pk", flat=True))
        )
        inserted = {
            pk: f"retry of {of}" for pk, of in Job.objects.exclude(retry_of=None).values_list("pk", "retry_of_id")
        }
        rows = dump_tables()
    rows["JobMinute"] = _added_up(rows["JobMinute"])
    return verdicts, {
        table: sorted(
            repr({name: _plain(table, name, value, inserted, kept) for name, value in row.items()}) for row in all_of
        )
        for table, all_of in rows.items()
    }


def _added_up(minutes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Whichever minutes it took."""
    sums: dict[tuple[Any, ...], Counter[str]] = {}
    for row in minutes:
        key = tuple((name, row[name]) for name in KEY_COLUMNS if name != "minute")
        sums.setdefault(key, Counter()).update({name: row[name] for name in SUM_COLUMNS if name != "run_sec"})
    return [dict(key) | dict(added) for key, added in sums.items()]


def _plain(table: str, name: str, value: Any, inserted: dict[UUID, str], known: set[UUID]) -> Any:
    if name in ("id", "event_id") and table in ("JobEvent", "WebhookMessage", "LaneMark"):
        return None
    if isinstance(value, UUID):
        return inserted.get(value, value if value in known or "token" not in name else "new")
    if isinstance(value, datetime):
        return "earlier" if value.year < 2021 else "now"
    if isinstance(value, str):
        for pk, text in inserted.items():
            value = value.replace(str(pk), text)
        value = re.sub(r'(?<="lease_id": ")[0-9a-f-]{36}', "new", value)
    return value


def an_end(job: Job, outcome: Completed | Skipped | Failed) -> JobResult:
    assert job.lease_token is not None
    return JobResult(job.pk, job.lease_token, outcome)


def a_scene(*, lanes: bool) -> list[JobResult]:
    """Jobs that run, with all kinds of ends; and as many that wait."""
    ends = []
    for place, outcome in enumerate((*OUTCOMES, *OUTCOMES[-4:])):
        job = JobFactory.create(
            running=True,
            tenant="default" if place % 3 else "other",
            checkpoint={"at": ODD},
            created_at=NEVER,
            dispatched_at=NEVER,
            fence=1,
            **({"target": f"lane-{place}"} if lanes and place % 4 == 0 else {}),
            **({"cancel_requested": True, "cancel_mode": StopMode.CANCEL} if place >= len(OUTCOMES) else {}),
        )
        ends.append(an_end(job, outcome))
    stale, output = (JobFactory.create(running=True, created_at=NEVER, dispatched_at=NEVER) for _ in range(2))
    ends.append(JobResult(stale.pk, uuid4(), Completed({"forged": True})))
    before = an_end(output, Failed(error=ODD, reason=ODD, retry_in=5))
    assert ending.finish([before], actor=WORKER) == {output.pk: FinishStatus.DONE}
    ends.append(before)
    group = JobGroupFactory.create()
    for place in range(len(ends)):
        fields = {"group": group, "group_index": place} if place % 5 == 0 else {}
        JobFactory.create(queued=True, priority=40 + place % 3, created_at=NEVER, **fields)
    return ends


def assert_same(found: Written, expected: Written) -> None:
    assert found[0] == expected[0]
    for table in expected[1]:
        a, b = Counter(found[1][table]), Counter(expected[1][table])
        assert (a - b, b - a) == (Counter(), Counter()), table


@pytest.mark.parametrize("subscribed", [(), ("*",), ("job.completed", "job.failed"), ("job.started",)], ids=str)
def test_results_and_claims_write_the_same_rows_in_every_form(subscribed: tuple[str, ...]) -> None:
    """Record results under any subscriptions."""
    ends = a_scene(lanes=False)
    for tenant in ("default", "other") if subscribed else ():
        webhooks.create("https://example.com/hook", list(subscribed), tenant=tenant)
    expected = write_and_read(then_a_claim(one_by_one), ends)
    verdicts, rows = expected
    assert list(verdicts.values()).count(FinishStatus.DONE) == len(ends) - 2
    assert len([row for row in rows["Job"] if "taker@1#" in row]) == len(ends)
    assert bool(rows["WebhookMessage"]) == bool(subscribed)
    for form in (then_a_claim(together), in_one_turn, in_turns_of_one):
        assert_same(write_and_read(form, ends), expected)


def test_results_of_jobs_with_a_target_write_the_same_rows_one_by_one_and_together() -> None:
    ends = a_scene(lanes=True)
    expected = write_and_read(one_by_one, ends)
    assert expected[1]["LaneMark"]
    assert_same(write_and_read(together, ends), expected)


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param([("global", "", 100, False)], id="room for any job"),
        pytest.param([("global", "", 100, False), ("job_type", "another", None, True)], id="chosen among candidates"),
    ],
)
def test_a_claim_under_limits_with_room_writes_the_rows_of_a_plain_claim(
    limits: list[tuple[str, str, int | None, bool]],
) -> None:
    a_scene(lanes=False)

    def claim(_: Sequence[JobResult]) -> dict[UUID, FinishStatus]:
        assert len(claimer().claim(range(12), lease_sec=30)) == 12
        return {}

    def claim_under_limits(_: Sequence[JobResult]) -> dict[UUID, FinishStatus]:
        for scope, key, maximum, paused in limits:
            ConcurrencyLimit.objects.create(scope=scope, key=key, max=maximum, paused=paused)
        return claim(())

    expected, found = write_and_read(claim, ()), write_and_read(claim_under_limits, ())
    assert len(found[1].pop("ConcurrencyLimit")) == len(limits)
    del expected[1]["ConcurrencyLimit"]
    assert_same(found, expected)


def test_a_logged_statement_writes_the_same_rows() -> None:
    """Where the host logs its queries, they are not prepared, and the driver puts in the values."""
    ends = a_scene(lanes=False)
    expected = write_and_read(in_turns_of_one, ends)
    for form in (in_one_turn, in_turns_of_one):
        with CaptureQueriesContext(connection):
            found = write_and_read(form, ends)
        assert_same(found, expected)


@pytest.mark.parametrize("others", [0, 2])
def test_a_job_that_waits_again_is_claimed_in_the_turn_that_brings_its_stale_result(others: int) -> None:
    """Its lease was lost, and it is next in the queue: the end is refused, the new lease is ours."""
    lost = JobFactory.create(queued=True, priority=99, dispatched_at=NEVER)
    extra = [an_end(job, Completed()) for job in JobFactory.create_batch(others, running=True)]
    taker = claimer()
    stale = JobResult(lost.pk, uuid4(), Failed(error="late", reason="late", retry_in=1))
    verdicts, claims = turn.take_plain_turn(taker, [stale, *extra], [0], actor=WORKER, lease_sec=30)
    assert verdicts == {lost.pk: FinishStatus.LOST} | {end.job_id: FinishStatus.DONE for end in extra}
    assert [claim.id for claim in claims] == [lost.pk]
    assert list_event_kinds(lost) == ["RUNNING"]
    assert not Job.objects.filter(retry_of=lost.pk).exists()


@pytest.mark.parametrize("finish", [together, in_one_turn], ids=lambda form: form.__name__)
def test_a_job_whose_end_is_said_twice_ends_once(finish: Form) -> None:
    job = JobFactory.create(running=True)
    JobFactory.create_batch(2, queued=True)
    end = an_end(job, Failed(error="boom", reason="boom", retry_in=1))
    assert finish([end, end]) == {job.pk: FinishStatus.DONE}
    assert list_event_kinds(job) == ["FAILED", "RETRY_CREATED"]
    assert sum(JobMinute.objects.values_list("jobs", flat=True)) == 1
