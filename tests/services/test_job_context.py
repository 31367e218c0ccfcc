"""The context of a job travels from the submission to its handler, where HANDLER_WRAPPER restores it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest
from django.test import override_settings

from jobs import NoRetry, Skip, direct, job
from jobs.errors import InvalidInput
from jobs.models import Job
from jobs.registry import registry
from jobs.services import jobs as job_services
from jobs.states import Status
from jobs.testing import drain
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet, get_job, wait_for_status

pytestmark = pytest.mark.django_db
tenant: ContextVar[str] = ContextVar("tenant", default="none")
seen: list[Any] = []


def get_tenant() -> dict[str, Any]:
    return {"tenant": tenant.get()} if tenant.get() != "none" else {}


def get_nothing() -> None:
    return None


def get_set() -> Any:
    return {"tenants": {1, 2}}


def get_much() -> dict[str, Any]:
    return {"text": "x" * 5000}


def raise_error() -> Any:
    raise LookupError("no tenant is active")


@contextmanager
def restore_tenant(ctx: Any) -> Iterator[None]:
    token = tenant.set(ctx.context.get("tenant", "none"))
    try:
        yield
    except Exception as error:
        seen.append(type(error).__name__)
        raise
    finally:
        tenant.reset(token)


@contextmanager
def suppress_everything(ctx: Any) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 — as a careless wrapper does
        seen.append(type(error).__name__)


def refuse(ctx: Any) -> Any:
    raise PermissionError("no connection to the tenant's database")


@pytest.fixture(autouse=True)
def _own_handlers() -> Iterator[None]:
    before = registry._handlers
    registry._handlers = dict(before)
    seen.clear()
    yield
    registry._handlers = before


def use(get_context: str | None = "get_tenant", wrapper: str | None = "restore_tenant") -> Any:
    paths = {"JOB_CONTEXT": get_context, "HANDLER_WRAPPER": wrapper}
    settings = {name: f"{__name__}.{path}" for name, path in paths.items() if path is not None}
    return override_settings(JOBSCHEDULER={"RETRY_BASE_SEC": 0, **settings})


@contextmanager
def acting_for(name: str) -> Iterator[None]:
    token = tenant.set(name)
    try:
        yield
    finally:
        tenant.reset(token)


def test_a_handler_runs_in_the_context_of_its_submission_also_when_it_is_retried_and_for_what_it_submits() -> None:
    @job("tests.inner")
    async def inner() -> None:
        seen.append(("inner", tenant.get()))

    @job("tests.outer", max_retries=1)
    def outer(ctx: Any) -> None:
        seen.append((ctx.attempt, tenant.get(), ctx.context))
        if ctx.attempt == 1:
            raise ConnectionError
        inner.enqueue()

    with use():
        with acting_for("acme"):
            outer.enqueue()
        drain()
        drain()
    acme = {"tenant": "acme"}
    assert seen == [(1, "acme", acme), "ConnectionError", (2, "acme", acme), ("inner", "acme")]
    assert tenant.get() == "none"


@pytest.mark.parametrize("own", [{"part": 1}, lambda: {"part": 1}])
def test_a_handler_adds_its_own_context(own: Any) -> None:
    @job("tests.part", context=own)
    def part(ctx: Any) -> None:
        seen.append(ctx.context)

    with use(wrapper=None), acting_for("acme"):
        part.enqueue()
        job_services.enqueue_many([{"job_type": "tests.part"}] * 2)
        drain()
    assert seen == [{"tenant": "acme", "part": 1}] * 3


def test_without_a_context_nothing_is_stored() -> None:
    with use(get_context="get_nothing"):
        job_services.enqueue("sample.noop")
    job_services.enqueue("sample.noop")
    assert list(Job.objects.values_list("context", flat=True)) == [None, None]


@pytest.mark.parametrize(("get_context", "text"), [("get_set", "context.tenants"), ("get_much", "context")])
def test_a_context_that_is_no_small_json_is_refused_by_name(get_context: str, text: str) -> None:
    with use(get_context=get_context), pytest.raises(InvalidInput, match=text):
        job_services.enqueue("sample.noop")
    assert not Job.objects.exists()


def test_an_error_of_the_site_s_function_reaches_the_caller() -> None:
    with use(get_context="raise_error"), pytest.raises(LookupError, match="no tenant is active"):
        job_services.enqueue("sample.noop")
    assert not Job.objects.exists()


@pytest.mark.parametrize("value", [5, "x", [1], {"a": {1}}])
def test_a_wrong_context_of_a_handler_is_refused_at_the_declaration(value: Any) -> None:
    with pytest.raises(InvalidInput, match="context"):
        job("tests.wrong", context=value)(lambda: None)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_wrapper_that_suppresses_exceptions_completes_no_failed_job(is_async: bool) -> None:
    def fail(kind: str) -> None:
        raise {"skip": Skip("nothing to do"), "fail": NoRetry("broken")}[kind]

    async def fail_async(kind: str) -> None:
        fail(kind)

    handler = job("tests.fail")(fail_async if is_async else fail)
    with use(wrapper="suppress_everything"):
        made = [handler.enqueue(kind=kind) for kind in ("skip", "fail")]
        drain()
    assert [get_job(item.pk).status for item in made] == [Status.SKIPPED, Status.FAILED]
    assert seen == ["Skip", "NoRetry"]


def test_a_wrapper_that_fails_fails_the_job_with_its_error() -> None:
    with use(wrapper="refuse"):
        made = job_services.enqueue("sample.noop", max_retries=0)
        drain()
    assert get_job(made.pk).status_reason == "PermissionError: no connection to the tenant's database"


def test_a_direct_call_runs_in_the_context_of_its_caller() -> None:
    @job("tests.direct")
    def call() -> str:
        return tenant.get()

    @job("tests.direct_failure")
    def fail() -> None:
        raise ConnectionError

    with use(), acting_for("acme"):
        assert direct.run("tests.direct") == "acme"
        with pytest.raises(ConnectionError):
            direct.run("tests.direct_failure")
    assert "ConnectionError" in seen


@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.django_db(transaction=True)
def test_a_worker_process_has_it_too(fleet: Fleet, executor: str) -> None:
    with override_settings(JOBSCHEDULER={"JOB_CONTEXT": "tests.sample_app.context.get_request_id"}):
        made = job_services.enqueue("sample.show_context")
    settings = {**LONG_LEASE_SETTINGS, "HANDLER_WRAPPER": "tests.sample_app.context.restore_request_id"}
    fleet.start(f"--executor={executor}", settings=settings)
    done = wait_for_status(made.pk, Status.COMPLETED, fleet=fleet)
    assert done.run.artifacts["result"] == "request 4711"
