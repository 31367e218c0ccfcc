"""Spans of OpenTelemetry, where a site has set it up: one for each submission, and one for each run that links to it.

A link, not a parent: retries and schedules run long after whoever asked for them has gone. The names follow the
conventions for messaging, which are still in development; nobody else spells them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from uuid import UUID

from jobs.outcomes import Completed, Failed, Outcome, Skipped
from jobs.version import __version__

try:
    from opentelemetry import trace
    from opentelemetry.context import Context as TraceContext
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    trace = None  # type: ignore[assignment]

NAME = "jobs"
HEADER = "traceparent"


def is_on() -> bool:
    """Whether anybody collects spans in this process."""
    return trace is not None and not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


@contextmanager
def sending(resource: str, job_ids: Sequence[UUID]) -> Iterator[str | None]:
    """Around a submission, if tracing is on. Gives the traceparent that its jobs shall keep."""
    attributes = {**_place("send", resource), **_which(job_ids)}
    with _tracer().start_as_current_span(f"send {resource}", kind=trace.SpanKind.PRODUCER, attributes=attributes):
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
        yield carrier.get(HEADER)


class JobSpan:
    """The span of one run."""

    def __init__(self, resource: str, job_id: UUID, job_type: str, attempt: int, sent_by: str | None) -> None:
        which = {"messaging.message.id": str(job_id), "jobs.job_type": job_type, "jobs.attempt": attempt}
        self._span: AbstractContextManager[Any] = _tracer().start_as_current_span(
            f"process {resource}",
            context=TraceContext(),  # of its own, whatever this thread has been doing
            kind=trace.SpanKind.CONSUMER,
            attributes={**_place("process", resource), **which},
            links=_links(sent_by),
        )

    def __enter__(self) -> JobSpan:
        self._now: Any = self._span.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._span.__exit__(*raised)

    def record_outcome(self, outcome: Outcome) -> Outcome:
        match outcome:
            case Failed(error=error, reason=reason, cause=cause):
                self._now.set_status(trace.StatusCode.ERROR, reason)
                self._now.set_attribute("error.type", str(cause))
                self._now.add_event("exception", {"exception.message": reason, "exception.stacktrace": error})
            case Completed() | Skipped():
                self._now.set_status(trace.StatusCode.OK)
        self._now.set_attribute("jobs.outcome", type(outcome).__name__.upper())
        return outcome


def flush() -> None:
    """Before a process ends that runs no exit handlers."""
    if is_on():
        getattr(trace.get_tracer_provider(), "force_flush", lambda: None)()


def _tracer() -> Any:
    return trace.get_tracer(NAME, __version__)


def _place(operation: str, resource: str) -> dict[str, str]:
    return {
        "messaging.system": NAME,
        "messaging.destination.name": resource,
        "messaging.operation.type": operation,
        "messaging.operation.name": operation,
    }


def _which(job_ids: Sequence[UUID]) -> dict[str, Any]:
    if len(job_ids) == 1:
        return {"messaging.message.id": str(job_ids[0])}
    return {"messaging.batch.message_count": len(job_ids)}


def _links(sent_by: str | None) -> list[Any]:
    if not sent_by:
        return []
    sender = trace.get_current_span(TraceContextTextMapPropagator().extract({HEADER: sent_by})).get_span_context()
    return [trace.Link(sender)] if sender.is_valid else []
