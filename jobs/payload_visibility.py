"""Texts of handlers in reasons, errors and outcomes, and how much of them is shown without `view_payload`.

A handler may quote its params in exceptions, skips and progress messages. Without the permission
only the class of an exception and its place in the code are shown. The scheduler's own reasons and those that people
give stay. docs/decisions/0017-secrets-and-texts-of-handlers.md says why they are distinguished in this way.
"""

from __future__ import annotations

import re
from typing import Any

from jobs.actors import ActorKind
from jobs.models import Job, JobEvent, JobRun, Lease
from jobs.process_identity import is_remote
from jobs.states import (
    CRASH_RECOVERY_REASON,
    DEADLINE_PASSED_REASON,
    LEASE_EXPIRED_REASON,
    PREDECESSOR_REASONS,
    REJECTED_RESULT_REASON,
    SNOOZE_LIMIT_REASON,
    TIMEOUT_REASON,
    TOKEN_LIMIT_REASON,
    EventKind,
    Status,
)

# Reasons of FAILED and SKIPPED jobs that no handler wrote. All other reasons of these two statuses may be a handler's.
OWN_REASONS = frozenset(
    {
        *(TIMEOUT_REASON, TOKEN_LIMIT_REASON, LEASE_EXPIRED_REASON, CRASH_RECOVERY_REASON, REJECTED_RESULT_REASON),
        *(SNOOZE_LIMIT_REASON, DEADLINE_PASSED_REASON, *PREDECESSOR_REASONS.values()),
        "failed",  # of a remote worker that gave no error
    }
)
HANDLER_STATUSES = (Status.FAILED, Status.SKIPPED)
HANDLER_EVENTS = (EventKind.FAILED, EventKind.SKIPPED, EventKind.SNOOZED)
TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+), in ')
_CLASS = re.compile(r"[\w.<>]+")


def hide_in_job(job: Job) -> None:
    """Hide the texts of the handler in a row that is only shown, never saved; also in its run, if that is loaded."""
    job.status_reason, job.progress_message = get_public_reason(job), ""
    if (run := job._state.fields_cache.get("run")) is not None:
        hide_in_run(run)


def hide_in_run(run: JobRun) -> None:
    if "error" in run.__dict__:  # a list may have deferred it
        run.error = get_public_error(run)


def hide_in_event(event: JobEvent) -> None:
    event.reason = get_public_event_reason(event)
    if "data" in event.__dict__:
        event.data = get_public_event_data(event.data)


def hide_lease_id(event: JobEvent) -> None:
    """Hide the lease in the event of a start; only workers and operators see it."""
    data = event.__dict__.get("data")
    if isinstance(data, dict):
        event.data = {name: value for name, value in data.items() if name != "lease_id"} or None


def hide_in_lease(lease: Lease) -> None:
    lease.outcome = get_public_outcome(lease.outcome)


def get_public_reason(job: Job) -> str:
    """Return the reason of the job's status, of a handler's exception its class alone."""
    reason = job.status_reason
    if job.status == Status.QUEUED and job.snooze_count:
        return ""
    if job.status not in HANDLER_STATUSES or reason in OWN_REASONS:
        return reason
    if job.status == Status.FAILED:
        return "" if job.remote else cut_message(reason)  # a remote worker writes the whole of it
    return reason if job.dispatched_at is None else ""  # no handler skipped a job that was never started


def get_public_error(run: JobRun) -> str:
    """Return the error of a run, of a traceback the class of its first exception and the place that raised it."""
    if run.status not in HANDLER_STATUSES or run.error in OWN_REASONS:
        return run.error
    if is_remote(run.worker):
        return ""
    error_class, place = summarize_traceback(run.error)
    return f"{error_class} ({place})" if place else error_class


def get_public_event_reason(event: JobEvent) -> str:
    is_of_handler = event.kind in HANDLER_EVENTS and event.actor_kind == ActorKind.WORKER
    return "" if is_of_handler and event.reason not in OWN_REASONS else event.reason


def get_public_event_data(data: Any) -> Any:
    """Return the data of an event without old and new params."""
    if not isinstance(data, dict):
        return data
    sides = {
        side: {name: value for name, value in data[side].items() if name != "params"}
        for side in ("old", "new")
        if isinstance(data.get(side), dict)
    }
    return {**data, **sides}


def get_public_outcome(outcome: str) -> str:
    """Return how a direct call ended, without the words of its handler."""
    if outcome.startswith("ended by "):  # the reason of an operator
        return outcome
    kind, colon, text = outcome.partition(": ")
    return f"{kind}: {cut_message(text)}" if colon and kind == "failed" else kind


def summarize_traceback(text: str) -> tuple[str, str]:
    """Return the class of the first exception of a traceback and the place that raised it: `handlers.py:12`.

    All that precedes the first line without indentation is written by Python; what follows may quote anything.
    """
    if not text.startswith(TRACEBACK):
        return cut_message(text), ""
    place = ""
    for line in text.splitlines()[1:]:
        if not line.startswith(" "):
            error_class = _CLASS.match(line)
            return (error_class[0] if error_class else ""), place
        if (frame := _FRAME.match(line)) is not None:
            place = f"{frame['file'].rpartition('/')[2]}:{frame['line']}"
    return "", ""


def cut_message(text: str) -> str:
    """Return the first line up to the first colon: the class of an exception, or a text of the executor."""
    return next(iter(text.splitlines()), "").partition(": ")[0].strip(" :")
