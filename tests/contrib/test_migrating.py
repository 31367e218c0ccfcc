"""docs/migrating.md is true: the code of each row of its tables runs, and each recipe does what it says.

Handlers and functions are those of the page's own blocks. Tests take code from the page instead of repeating it.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import User
from django.core.management import load_command_class
from django.test import override_settings
from django.utils import timezone

import jobs.services
import jobs.testing
import schedules.services
from jobs.conf import read_settings
from jobs.errors import Superseded
from jobs.models import Job, JobGroup
from jobs.policies.retry import ExponentialBackoff, RetryFacts
from jobs.registry import Handler, registry
from jobs.signals import job_failed
from jobs.states import Cause
from jobs.testing import assert_enqueued, drain, time_travel
from jobs.validation.retry_policy import merge_retry_options
from schedules import declared
from schedules.models import Schedule
from tests.contrib.test_system_types import register_types
from tests.packaging.doc_examples import DOCS, blocks
from tests.support.commands import call

PAGE = "migrating.md"
TEXT = (DOCS / PAGE).read_text()
SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.M | re.S)
ROW = re.compile(r"^\| (?!-)(.+?) \| (.+) \|$", re.M)
CODE, LINK, HEADING = re.compile(r"`([^`]+)`"), re.compile(r"\]\(#([\w-]+)\)"), re.compile(r"^#+ (.+)$", re.M)
# Code that a row only names.
WORDS = {"@job", "ctx", "jobs.py", "timestamp", "idempotency_key", "--dry-run", "/metrics"}
MANAGE = "python manage.py "
A_DAY = timedelta(days=1)


@dataclass
class Row:
    section: str
    there: str
    here: str
    code: list[str] = field(init=False)
    links: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.code = [code for code in CODE.findall(self.here) if code not in WORDS]
        self.links = LINK.findall(self.here)


def list_rows() -> Iterator[Row]:
    for section, text in SECTION.findall(TEXT):
        headings = (section, section.partition(" ")[0])
        yield from (Row(section, *cells) for cells in ROW.findall(text) if cells[0] not in headings)


def list_code(start: str, part: str = "") -> list[str]:
    return sorted({code for row in list_rows() for code in row.code if code.startswith(start) and part in code})


@pytest.fixture(scope="module")
def page(django_db_setup: None) -> Iterator[dict[str, Any]]:
    """Return the names that the blocks of the page define, and those that its rows use.

    The database exists by then: its migration would write the schedule that the page declares, for all other tests.
    """
    before = registry._handlers
    names: dict[str, Any] = {"__name__": "shop.jobs", "jobs": jobs, "schedules": schedules}
    names |= {"sync_to_async": sync_to_async, "functools": functools, "tomorrow": timezone.now() + A_DAY}
    for language, text in blocks(PAGE):
        if language == "python" and not text.startswith("# settings.py"):
            exec(compile(text, PAGE, "exec"), names)
    with register_types():
        yield names
    job_failed.disconnect(names["alert"])
    registry._handlers = before


@pytest.fixture
def shop(page: dict[str, Any], db: None) -> Iterator[dict[str, Any]]:
    """Return the same, as they were before the test."""
    names, handlers = dict(page), registry._handlers
    functions = {handler: handler.__wrapped__ for handler in names.values() if isinstance(handler, Handler)}
    yield page
    page.clear()
    page.update(names)
    registry._handlers = handlers
    for handler, function in functions.items():
        handler.__wrapped__ = function


class Recorder:
    """Stands for a function or a handler of the page, and keeps the keyword arguments of the call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.keywords: dict[str, Any] = {}

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        self.keywords = keywords
        return self.function(*args, **keywords)


# rows


def test_the_page_has_tables_and_its_links_lead_somewhere() -> None:
    sections = {"Celery", "django-q2", "Oban", "procrastinate", "RQ and django-rq", "Sidekiq"}
    assert {row.section for row in list_rows()} == sections
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(TEXT)}
    assert set(LINK.findall(TEXT)) <= anchors


@pytest.mark.parametrize("row", list(list_rows()), ids=lambda row: f"{row.section}: {row.there}"[:60])
def test_the_code_of_each_row_runs(row: Row, shop: dict[str, Any]) -> None:
    assert row.code or row.links or "nothing to set" in row.here, "a row without code"
    for code in row.code:
        run_code(code, shop)
    require_same(row, r'resource="(\w+)"', r"--resources (\w+)")
    require_same(row, r'"global": (\d+)', r"--concurrency (\d+)")
    if "max_runtime_sec" in row.here and "soft_time_limit" not in row.there:
        assert "worker --executor process" in row.here


def require_same(row: Row, pattern: str, command_pattern: str) -> None:
    """Assert that a worker's option in this row names the same as the rest of the row."""
    options = re.findall(command_pattern, row.here)
    if options:
        assert options == re.findall(pattern, row.here) or not re.search(pattern, row.here)


def run_code(code: str, shop: dict[str, Any]) -> None:
    match code.split("(")[0].split(" ")[0]:
        case "@job":
            check_declaration(code, shop)
        case "python":
            check_command(code.removeprefix(MANAGE), shop)
        case "JOBSCHEDULER":
            check_settings(code)
        case (
            "raise"
            | "ctx.job_id"
            | "ctx.attempt"
            | "ctx.cancelled"
            | "ctx.check_cancelled"
            | "ctx.progress"
            | "ctx.artifact"
        ):
            check_statement(code, shop)
        case "with":
            exec(f"{code}\n    job = print_receipt.enqueue(order=7)", shop)
            assert shop.pop("job").status == "COMPLETED"
        case "await":
            exec(f"async def call():\n    return {code}", shop)
            assert async_to_sync(shop["call"])().params == {"order": 7}
        case "mail_job":
            exec(code, shop)
            assert shop["mail_job"]("shop.letter")(lambda: None).options.resource == "mail"
        case "jobs.result" | "jobs.wait" | "job.latest":
            check_result(code, shop)
        case "jobs.services.cancel" | "jobs.services.resolve":
            check_action(code, shop)
        case "jobs.testing.drain":
            shop["print_receipt"].enqueue(order=7)
            assert [job.status for job in eval(code, shop)] == ["COMPLETED"]
        case "schedules.services.create":
            check_schedule(eval(code, shop))
        case _:
            check_submission(code, shop)


def check_declaration(code: str, shop: dict[str, Any]) -> None:
    """A handler that is declared so fails as often as it says, and its jobs have its options."""
    decorate, runs = Recorder(jobs.job), []

    def scan(ctx: Any) -> None:
        runs.append(ctx.job_id)
        raise ConnectionError

    handler: Handler[..., Any] = eval(code.removeprefix("@"), {**shop, "job": decorate})(scan)
    options = decorate.keywords
    job = handler.enqueue()
    declared_options = {**options, "cron": (options["cron"],)} if "cron" in options else options
    assert {name: getattr(handler.options, name) for name in options} == declared_options
    assert (job.resource, job.max_runtime_sec) == (handler.options.resource, handler.options.max_runtime_sec)
    with time_travel() as clock:
        for _ in range(7):
            drain()
            clock.advance(hours=1)
    own = Job.objects.filter(pk__in=runs, schedule=None)  # at night, a schedule fires meanwhile, too
    assert own.count() == job.max_retries + 1
    if "retry_on" in options:
        other = jobs.job("shop.other", **options)(lambda: {}["no"])
        other.enqueue()
        drain()
        assert Job.objects.filter(job_type="shop.other").count() == 1
    if "cron" in options:
        declared.sync()
        check_schedule(Schedule.objects.get(source="code:shop.scan"), status="FAILED")


def check_command(line: str, shop: dict[str, Any]) -> None:
    name, *words = shlex.split(line)
    if name == "worker":
        command = load_command_class("jobs", name)
        command._parse_options(vars(command.create_parser("manage.py", name).parse_args(words)))
        return
    allowed = {"SYSTEM_JOB_TYPES": True, "COMMAND_ALLOW": ["clearsessions"]}
    with override_settings(JOBSCHEDULER=allowed):
        result = call(name, *words)
        assert result.code == 0, result.err
        if name == "schedules":
            check_schedule(Schedule.objects.get(name=words[1]))


def check_schedule(schedule: Schedule, *, status: str = "COMPLETED") -> None:
    if schedule.job_type == "system.command":  # it would run in a process, on another database
        assert schedule.params == {"command": "clearsessions"}
        return
    with time_travel() as clock:
        clock.advance(A_DAY)
        drain()
    assert [job.status for job in schedule.jobs.filter(attempt=1)] == [status]


def check_settings(code: str) -> None:
    values: dict[str, Any] = {}
    exec(code, values)
    assert read_settings(values["JOBSCHEDULER"]).problems == []


def check_statement(code: str, shop: dict[str, Any]) -> None:
    values: list[Any] = []

    @jobs.job("shop.stated")
    def run_statement(ctx: Any) -> None:
        exec(code, {**shop, "ctx": ctx}) if code.startswith("raise") else values.append(eval(code, {"ctx": ctx}))

    enqueued = run_statement.enqueue()
    (job,) = (job for job in drain() if job.pk == enqueued.pk)  # a job of a declared schedule may be due
    ends = {"raise NoRetry": "FAILED", "raise Skip": "SKIPPED", "raise Retry": "FAILED", "raise Snooze": "QUEUED"}
    assert job.status == ends.get(code.partition("(")[0], "COMPLETED")
    retry = Job.objects.filter(retry_of=job).first()
    assert (retry is not None) == code.startswith("raise Retry")
    waiting = retry or job
    delay = None if waiting.not_before is None else round((waiting.not_before - timezone.now()).total_seconds(), -1)
    assert delay == (30 if code.startswith(("raise Retry", "raise Snooze")) else None)
    results = {"ctx.job_id": job.pk, "ctx.attempt - 1": 0, "ctx.cancelled": False}
    assert code not in results or values == [results[code]]


def check_action(code: str, shop: dict[str, Any]) -> None:
    """It is applied to the retry that waits; for the first attempt it would be refused."""
    names = {**shop, "job": fail_once(shop, resolve="resolve" in code)}
    with pytest.raises(Superseded):
        eval(code.replace("job.latest.pk", "job.pk"), names)
    done = eval(code, names)
    assert done.status == ("FAILED" if "resolve" in code else "CANCELLED")


def check_result(code: str, shop: dict[str, Any]) -> None:
    """It says what became of a job that failed at first, and needed its retry."""

    @jobs.job("shop.flaky")
    def run_flaky(ctx: Any) -> int:
        if ctx.attempt == 1:
            raise ConnectionError("no route")
        return 7

    names = {**shop, "job": run_flaky.enqueue()}
    with time_travel() as clock:
        drain()
        clock.advance(minutes=1)
        drain()
    latest = Job.objects.get(retry_of=names["job"])
    assert eval(code, names) in (7, "COMPLETED", latest)


def fail_once(shop: dict[str, Any], *, resolve: bool = False) -> Job:
    """Return a job that failed; its retry waits, or with `resolve` has failed for good and blocks its target."""

    @jobs.job("shop.failing", max_retries=1)
    def fail() -> None:
        raise ConnectionError

    job: Job = fail.using(target="order-7").enqueue()
    drain()
    if resolve:
        with time_travel() as clock:
            clock.advance(minutes=1)
            drain()
    return job


def check_submission(code: str, shop: dict[str, Any]) -> None:
    """What is enqueued has the fields of the call, waits for its time, and runs."""
    handler = shop["print_receipt"]
    handler.using = using = Recorder(functools.partial(Handler.using, handler))
    submitted = eval(code, shop)
    del handler.using
    count = 1
    if isinstance(submitted, Job):
        fixed = {name: value for name, value in using.keywords.items() if not isinstance(value, timedelta)}
        fields = merge_retry_options(fixed)
        policy = fields.pop("retry_policy", {})
        fields.pop("on_conflict", None)  # no field of the job
        (job,) = jobs.testing.enqueued(handler, {"order": 7}, **fields)
        assert job.retry_policy == policy
    else:
        count = submitted.jobs.count() if isinstance(submitted, JobGroup) else len(submitted)
    if "not_before" in code:
        assert drain() == []
        with time_travel() as clock:
            clock.to(submitted.not_before)
            drain()
    else:
        drain()
    ran = Job.objects.filter(job_type="shop.receipt").select_related("run").order_by("run__started_at", "pk")
    assert [job.status for job in ran] == ["COMPLETED"] * count
    if "sequential" in code or "then" in code:
        assert [job.group_index for job in ran] == list(range(count))
        assert ran[count - 2].run.finished_at <= ran[count - 1].run.started_at


@pytest.mark.parametrize("code", list_code("print_receipt", "deadline_at"))
def test_what_has_expired_is_not_started(shop: dict[str, Any], code: str) -> None:
    job = eval(code, shop)
    with time_travel() as clock:
        clock.advance(2 * A_DAY)
        drain()
    assert call("tick").code == 0  # a worker's housekeeping
    job.refresh_from_db()
    assert job.status == "SKIPPED"


@pytest.mark.parametrize("code", list_code("print_receipt", "priority"))
def test_a_higher_priority_starts_first(shop: dict[str, Any], code: str) -> None:
    shop["print_receipt"].enqueue(order=1)
    eval(code, shop)
    assert [job.params["order"] for job in drain()] == [7, 1]


def test_a_job_that_must_not_run_again_does_not_when_its_worker_vanishes(shop: dict[str, Any]) -> None:
    decide = ExponentialBackoff().decide
    assert decide(RetryFacts(attempt=1, max_retries=0, cause=Cause.LEASE_EXPIRED)) is None
    assert decide(RetryFacts(attempt=1, max_retries=3, cause=Cause.LEASE_EXPIRED)) is not None


def test_a_target_is_a_lane_that_a_failed_job_blocks_until_it_is_resolved(shop: dict[str, Any]) -> None:
    (code,) = list_code("print_receipt", "target")
    job = fail_once(shop, resolve=True)
    eval(code, shop)
    assert drain() == []
    (resolve,) = list_code("jobs.services.resolve")
    eval(resolve, {**shop, "job": job})
    assert [job.status for job in drain()] == ["COMPLETED"]


# recipes


def test_what_became_of_a_job_is_what_its_handler_returned_or_the_error(shop: dict[str, Any]) -> None:
    with jobs.testing.inline():
        assert shop["total_of"](7) == {"charged": 7}
        shop["charge"].__wrapped__ = raise_no_retry
        assert shop["total_of"](7) == {"failed": "NoRetry: no such card"}


def test_what_follows_a_job_is_enqueued_once_for_all_its_attempts(shop: dict[str, Any]) -> None:
    for count in (1, 2):
        job = shop["charge"].enqueue(order=7)
        drain()
        jobs.services.retry(job.pk)  # as after a worker that vanished before it recorded the end
        drain()
        assert_enqueued("shop.receipt", {"order": 7}, count=count)


@pytest.mark.parametrize("ended", ["COMPLETED", "FAILED"])
def test_what_follows_a_group_member_knows_how_that_ended(shop: dict[str, Any], ended: str) -> None:
    if ended == "FAILED":
        shop["charge"].__wrapped__ = raise_no_retry
    shop["charge_and_report"](7)
    reports = [job for job in drain() if job.job_type == "shop.report"]
    assert [job.run.artifacts["result"] for job in reports] == [{"order": 7, "ended": ended}]


def raise_no_retry(ctx: Any, **params: Any) -> None:
    raise jobs.NoRetry("no such card")


def test_a_group_member_reads_the_result_of_the_one_before(shop: dict[str, Any]) -> None:
    (code,) = re.findall(r"`(ctx\.group\.results[^`]+)`", TEXT)
    shop["report"].__wrapped__ = lambda ctx, order: eval(code, {**shop, "ctx": ctx})
    shop["charge_and_report"](7)
    drain()
    assert Job.objects.get(job_type="shop.report").run.artifacts["result"] == {"charged": 7}


def test_all_parts_run_in_parallel_then_the_sum_whatever_they_need(shop: dict[str, Any]) -> None:
    """A part has to be retried."""
    price = shop["price"].__wrapped__

    def price_late(ctx: Any, item: int) -> int:
        if item == 2 and ctx.attempt == 1:
            raise ConnectionError
        return int(price(ctx, item))

    shop["price"].__wrapped__ = price_late
    assert shop["price_all"]([1, 2, 3]).mode == "parallel"
    with time_travel() as clock:
        assert [job.status for job in drain()] == ["COMPLETED", "FAILED", "COMPLETED"]
        clock.advance(minutes=1)
        assert [job.job_type for job in drain()] == ["shop.price", "shop.total"]
    assert Job.objects.get(job_type="shop.total").run.artifacts["result"] == 60


def test_there_is_no_sum_of_parts_that_failed(shop: dict[str, Any]) -> None:
    shop["price"].__wrapped__ = raise_no_retry
    shop["price_all"]([1, 2])
    drain()
    total = Job.objects.get(job_type="shop.total")
    assert (total.status, total.status_reason) == ("CANCELLED", "predecessor failed")


def test_one_job_waits_at_most_and_none_is_lost(shop: dict[str, Any]) -> None:
    user = User.objects.create(username="ada")
    other = User.objects.create(username="bob")
    sync_soon, during = shop["sync_soon"], []
    shop["sync_user"].__wrapped__ = lambda ctx, user: None if during else during.append(sync_soon(user).pk)
    first = sync_soon(user.pk)
    assert (sync_soon(user.pk), sync_soon(other.pk) != first) == (first, True)
    ran = drain()
    assert during == [job.pk for job in ran if job.params == {"user": user.pk}][1:], "queued while the first ran"
    assert sync_soon(user.pk).pk not in [job.pk for job in ran], "queued again after both"


def test_so_many_a_minute_start_and_take_no_slot_while_they_wait(shop: dict[str, Any]) -> None:
    values: dict[str, Any] = {}
    (settings,) = [text for language, text in blocks(PAGE) if text.startswith("# settings.py")]
    exec(settings, values)
    with override_settings(JOBSCHEDULER=values["JOBSCHEDULER"]), time_travel() as clock:
        for order in (7, 8):
            shop["look_up"].enqueue(order=order)
        assert len(drain()) == 1
        assert drain() == []
        clock.advance(seconds=6)
        assert len(drain()) == 1


def test_a_handler_may_come_back_when_it_is_told_to_as_often_as_it_is_needed(shop: dict[str, Any]) -> None:
    answers = iter([(60, None), (30, None), (0, {"order": 7})])
    shop["call_provider"] = lambda order: next(answers)
    job = shop["fetch"].enqueue(order=7)
    with time_travel() as clock:
        for seconds in (61, 31):
            assert [job.status for job in drain()] == ["QUEUED"]
            assert drain() == []
            clock.advance(seconds=seconds)
        assert [job.run.artifacts["result"] for job in drain()] == [{"order": 7}]
    job.refresh_from_db()
    assert (job.attempt, job.snooze_count) == (1, 2)


def test_receivers_are_told_of_failures_and_decorators_run_around_handlers(
    shop: dict[str, Any], django_capture_on_commit_callbacks: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        job = fail_once(shop, resolve=True)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "failed for good" in line]
    assert line.startswith(f"shop.failing {job.latest.pk} failed for good: ConnectionError")
    shop["traced_receipt"].enqueue(order=7)
    with pytest.raises(jobs.errors.InvalidParams):
        shop["traced_receipt"].enqueue(order="seven")
    assert [job.run.artifacts["result"] for job in drain()] == [{"printed": 7}]


def test_a_periodic_job_knows_its_due_time(shop: dict[str, Any]) -> None:
    declared.sync()
    (line,) = [text for language, text in blocks(PAGE) if not language]
    assert call(*shlex.split(line.removeprefix(MANAGE))).code == 0
    with time_travel() as clock:
        clock.advance(A_DAY)
        results = [
            job.run.artifacts["result"]["day"] for job in drain() if job.job_type in ("shop.nightly", "shop.daily")
        ]
    due = Schedule.objects.get(name="daily").jobs.get().fire_time
    assert results == [due.date().isoformat()] * 2
