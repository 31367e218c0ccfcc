"""OpenTelemetry spans, where a site has set it up: one for each submission, and one for each run that links to it.

A link, not a parent: retries and schedules run long after the submitting request has ended. The names follow the
conventions for messaging, which are still in development; no other module has them.
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


def is_enabled() -> bool:
    """Return whether this process collects spans."""
    return trace is not None and not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


@contextmanager
def submission_span(resource: str, job_ids: Sequence[UUID]) -> Iterator[str | None]:
    """Open a span around a submission; tracing must be enabled. Yield the traceparent to store with its jobs."""
    attributes = {**_operation_attributes("send", resource), **_message_attributes(job_ids)}
    with _tracer().start_as_current_span(f"send {resource}", kind=trace.SpanKind.PRODUCER, attributes=attributes):
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
        yield carrier.get(HEADER)


class JobSpan:
    """The span of one run."""

    def __init__(self, resource: str, job_id: UUID, job_type: str, attempt: int, traceparent: str | None) -> None:
        attributes = {"messaging.message.id": str(job_id), "jobs.job_type": job_type, "jobs.attempt": attempt}
        self._span: AbstractContextManager[Any] = _tracer().start_as_current_span(
            f"process {resource}",
            context=TraceContext(),  # a new one: no span of this thread is its parent
            kind=trace.SpanKind.CONSUMER,
            attributes={**_operation_attributes("process", resource), **attributes},
            links=_build_links(traceparent),
        )

    def __enter__(self) -> JobSpan:
        self._current: Any = self._span.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._span.__exit__(*raised)

    def record_outcome(self, outcome: Outcome) -> Outcome:
        """Set the status and the attributes of the span; return the outcome."""
        match outcome:
            case Failed(error=error, reason=reason, cause=cause):
                self._current.set_status(trace.StatusCode.ERROR, reason)
                self._current.set_attribute("error.type", str(cause))
                self._current.add_event("exception", {"exception.message": reason, "exception.stacktrace": error})
            case Completed() | Skipped():
                self._current.set_status(trace.StatusCode.OK)
        self._current.set_attribute("jobs.outcome", type(outcome).__name__.upper())
        return outcome


def flush_spans() -> None:
    """Send collected spans now. To be called before a process ends that runs no exit handlers."""
    if is_enabled():
        getattr(trace.get_tracer_provider(), "force_flush", lambda: None)()


def _tracer() -> Any:
    return trace.get_tracer(NAME, __version__)


def _operation_attributes(operation: str, resource: str) -> dict[str, str]:
    return {
        "messaging.system": NAME,
        "messaging.destination.name": resource,
        "messaging.operation.type": operation,
        "messaging.operation.name": operation,
    }


def _message_attributes(job_ids: Sequence[UUID]) -> dict[str, Any]:
    if len(job_ids) == 1:
        return {"messaging.message.id": str(job_ids[0])}
    return {"messaging.batch.message_count": len(job_ids)}


def _build_links(traceparent: str | None) -> list[Any]:
    if not traceparent:
        return []
    sender = trace.get_current_span(TraceContextTextMapPropagator().extract({HEADER: traceparent})).get_span_context()
    return [trace.Link(sender)] if sender.is_valid else []
