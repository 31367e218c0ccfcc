"""Spans of the real OpenTelemetry SDK: who submitted is linked from whatever runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from jobs import job, tracing
from jobs.actors import make_worker_actor
from jobs.engine.claim import Claim, Claimer, ServedJobs
from jobs.engine.executors.run import Context, run, run_async
from jobs.engine.finish import JobResult, finish
from jobs.models import Job
from jobs.outcomes import Outcome
from jobs.registry import registry
from jobs.services import jobs as job_services
from tests.sample_app import job_types

pytestmark = pytest.mark.django_db
NOTE = job_types.note.name


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Spans that have ended. A site sets its provider once and for all; a test must take it back."""
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


@pytest.fixture
def handlers() -> Iterator[None]:
    before = dict(registry._handlers)

    @job("trace.fail", max_retries=1)
    def fail() -> None:
        raise ValueError("no paper")

    @job("trace.async")
    async def later() -> str:
        await asyncio.sleep(0)
        return "done"

    yield
    registry._handlers = before


def work_off() -> list[tuple[Claim, Outcome]]:
    """What a worker does, without its threads."""
    claims = Claimer("tracer", ServedJobs(tuple(registry.local_names()))).claim(range(10), lease_sec=30)
    ended = [(claim, _execute(claim)) for claim in claims]
    results = [JobResult(claim.id, claim.lease_token, outcome) for claim, outcome in ended]  # type: ignore[arg-type]
    finish(results, actor=make_worker_actor("tracer"))
    return ended


def _execute(claim: Claim) -> Outcome:
    ctx = Context(
        job_id=claim.id,
        params=claim.params,
        attempt=claim.attempt,
        resource=claim.resource,
        traceparent=claim.traceparent,
    )
    claim = claim._replace(retry_policy={"base_sec": 0})
    if registry.get(claim.job_type).is_async:
        return asyncio.run(run_async(claim, ctx))
    return run(claim, ctx)


def of_kind(spans: InMemorySpanExporter, kind: trace.SpanKind) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.kind == kind]


def traceparent(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"


def list_links(span: ReadableSpan) -> list[str]:
    """The spans that it links to, as their jobs keep them."""
    contexts = [link.context for link in span.links]
    return [f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}" for context in contexts]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_submission_is_a_producer_span_that_its_job_keeps(spans: InMemorySpanExporter) -> None:
    made = job_services.enqueue(NOTE, {"text": "a"}, resource="printer")
    (sent,) = spans.get_finished_spans()

    assert (sent.name, sent.kind) == ("send printer", trace.SpanKind.PRODUCER)
    assert attributes(sent) == {
        "messaging.system": "jobs",
        "messaging.destination.name": "printer",
        "messaging.operation.type": "send",
        "messaging.operation.name": "send",
        "messaging.message.id": str(made.pk),
    }
    assert Job.objects.get().traceparent == made.traceparent == traceparent(sent)


def test_many_jobs_are_one_submission(spans: InMemorySpanExporter) -> None:
    job_services.enqueue_many([{"job_type": NOTE, "params": {"text": "a"}}] * 3)
    (sent,) = spans.get_finished_spans()
    assert attributes(sent)["messaging.batch.message_count"] == 3
    assert set(Job.objects.values_list("traceparent", flat=True)) == {traceparent(sent)}


def test_a_submission_is_part_of_what_the_caller_is_doing(spans: InMemorySpanExporter) -> None:
    with trace.get_tracer("site").start_as_current_span("checkout") as outer:
        job_services.enqueue(NOTE, {"text": "a"})
    (sent,) = of_kind(spans, trace.SpanKind.PRODUCER)
    assert sent.parent is not None
    assert sent.parent.span_id == outer.get_span_context().span_id


def test_a_run_is_a_consumer_span_that_links_to_who_submitted_it(spans: InMemorySpanExporter) -> None:
    made = job_services.enqueue(NOTE, {"text": "a"})
    work_off()
    (sent,), (ran,) = (of_kind(spans, kind) for kind in (trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER))

    assert ran.name == "process default"
    assert list_links(ran) == [traceparent(sent)]
    assert ran.parent is None
    assert ran.context is not None
    assert sent.context is not None
    assert ran.context.trace_id != sent.context.trace_id
    assert ran.status.status_code == trace.StatusCode.OK
    assert attributes(ran)["messaging.message.id"] == str(made.pk)
    assert (attributes(ran)["jobs.job_type"], attributes(ran)["jobs.outcome"]) == (NOTE, "COMPLETED")


def test_a_retry_links_to_the_same_submission(spans: InMemorySpanExporter, handlers: None) -> None:
    job_services.enqueue("trace.fail")
    work_off()
    Job.objects.filter(status="QUEUED").update(gate=3, not_before=None)
    work_off()
    (sent,), ran = (of_kind(spans, kind) for kind in (trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER))

    assert [attributes(call)["jobs.attempt"] for call in ran] == [1, 2]
    assert [list_links(call) for call in ran] == [[traceparent(sent)]] * 2
    for call in ran:
        assert (call.status.status_code, call.status.description) == (trace.StatusCode.ERROR, "ValueError: no paper")
        assert attributes(call)["error.type"] == "ERROR"
        (event,) = call.events
        assert "no paper" in str((event.attributes or {})["exception.stacktrace"])


def test_a_retry_that_a_person_asked_for_is_a_submission_of_its_own(
    spans: InMemorySpanExporter, handlers: None
) -> None:
    made = job_services.enqueue("trace.fail", max_retries=0)
    work_off()
    again = job_services.retry(made.pk)
    first, second = of_kind(spans, trace.SpanKind.PRODUCER)
    assert Job.objects.get(pk=made.pk).traceparent == traceparent(first)
    assert Job.objects.get(pk=again.pk).traceparent == traceparent(second)


def test_an_async_handler_is_followed_too(spans: InMemorySpanExporter, handlers: None) -> None:
    job_services.enqueue("trace.async")
    work_off()
    (ran,) = of_kind(spans, trace.SpanKind.CONSUMER)
    assert attributes(ran)["jobs.outcome"] == "COMPLETED"
    assert len(ran.links) == 1


@pytest.mark.parametrize("kept", [None, "", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_a_job_that_nobody_traced_runs_without_a_link(spans: InMemorySpanExporter, kept: str | None) -> None:
    with tracing.JobSpan("default", Job().pk, NOTE, 1, kept):
        pass
    (ran,) = spans.get_finished_spans()
    assert list(ran.links) == []


def test_where_nobody_collects_spans_nothing_is_kept_and_nothing_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(tracing, "JobSpan")
    assert not tracing.is_enabled()
    job_services.enqueue(NOTE, {"text": "a"})
    assert Job.objects.get().traceparent is None
    (ended,) = work_off()
    assert type(ended[1]).__name__ == "Completed"


def test_it_need_not_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "trace", None)
    assert not tracing.is_enabled()
    job_services.enqueue(NOTE, {"text": "a"})
    assert len(work_off()) == 1
    tracing.flush_spans()
