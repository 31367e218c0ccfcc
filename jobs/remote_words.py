"""The words of remote workers, and how what they say becomes what we keep.

As with handlers, what is odd or too long in a result is made storable: no end gets lost over it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from django.utils.translation import gettext as _

from jobs import parsing
from jobs.engine.execution import ERROR_LENGTH
from jobs.engine.remote import Beat, Line, Word
from jobs.errors import InvalidInput
from jobs.json_tree import INT_MAX
from jobs.outcomes import Completed, Failed, Skipped, Stopped
from jobs.salvage import salvage_json, salvage_text
from jobs.services import REASON_LENGTH
from jobs.states import Status, StopMode

STATES = {
    Status.PENDING: "QUEUED",
    Status.QUEUED: "QUEUED",
    Status.DISPATCHING: "DISPATCHING",
    Status.RUNNING: "RUNNING",
    Status.PAUSED: "PAUSED",
    Status.COMPLETED: "DONE",
    Status.FAILED: "FAILED",
    Status.SKIPPED: "SKIPPED",
    Status.CANCELLED: "CANCELED",
}
ENDS = ("DONE", "FAILED", "SKIPPED", "CANCELED", "PAUSED")
WANTED = {"CANCELED": StopMode.CANCEL, "PAUSED": StopMode.PAUSE}
MOST_LINES = 1000
LINE_LENGTH, MESSAGE_LENGTH, LEVEL_LENGTH = 10_000, 500, 16
INT32 = 2**31
LONG = partial(parsing.text, max_length=INT_MAX, allow_empty=True)  # the body has a limit of its own


def optional(said: Mapping[str, Any], name: str, gate: Callable[..., Any]) -> Any:
    """A field through its gate; null is as good as not said."""
    value = said.get(name)
    return None if value is None else gate(value, name)


def beat(said: Mapping[str, Any]) -> Beat:
    message = optional(said, "message", LONG)
    return Beat(
        progress=optional(said, "progress", partial(parsing.number, minimum=0, maximum=1)),
        message=None if message is None else salvage_text(message, MESSAGE_LENGTH),
        tokens_used=optional(said, "tokens_used", partial(parsing.integer, minimum=0)),
        checkpoint=optional(said, "checkpoint", parsing.json_value),
        lines=optional(said, "logs", _lines) or (),
    )


def _lines(value: Any, field: str) -> list[Line]:
    if not isinstance(value, list):
        raise InvalidInput(field, _("must be a list"), "list_type")
    if len(value) > MOST_LINES:
        raise InvalidInput(field, _("has more than %d entries") % MOST_LINES, "too_long")
    lines: list[Line] = []
    try:
        for each in value:
            if not isinstance(each, dict):
                raise InvalidInput([], _("must be an object"), "dict_type")
            for name in each:
                if name not in ("level", "message", "at"):
                    raise InvalidInput(salvage_text(name, 100), _("is not a field here"), "extra_forbidden")
            level = optional(each, "level", partial(parsing.text, max_length=LEVEL_LENGTH, single_line=True)) or "INFO"
            message = LONG(each.get("message"), "message")
            lines.append((level, salvage_text(message, LINE_LENGTH), optional(each, "at", parsing.moment)))
    except InvalidInput as error:
        raise error.under(field, len(lines)) from None
    return lines


def word(state: str, said: Mapping[str, Any]) -> Word:
    written = optional(said, "error", LONG) or ""
    error = salvage_text(written, ERROR_LENGTH)
    exit_code = optional(said, "exit_code", partial(parsing.integer, minimum=-INT32, maximum=INT32 - 1))
    artifacts = salvage_json(optional(said, "artifacts", _object) or {})
    if state == "DONE":
        return Completed(artifacts, exit_code or 0)
    if state == "SKIPPED":
        return Skipped(salvage_text(error, REASON_LENGTH), artifacts)
    if state == "FAILED":
        reason = next(iter(error.strip().splitlines()), "") or "failed"
        code = 1 if exit_code is None else exit_code
        return Failed(error or reason, salvage_text(reason, MESSAGE_LENGTH), exit_code=code, artifacts=artifacts)
    return Stopped(artifacts)


def _object(value: Any, field: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(field, _("must be an object"), "dict_type")
    return value
