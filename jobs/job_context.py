"""The context of a job: facts of the submitting code that the handler needs, such as a site or a request id."""

from __future__ import annotations

from typing import Any

from jobs.conf import conf
from jobs.registry import Handler
from jobs.validation.fields import parse_json_object

MAX_BYTES, MAX_DEPTH = 4096, 8


def capture_context(handler: Handler[..., Any]) -> dict[str, Any]:
    """Return the context of a job that is submitted now: that of the setting JOB_CONTEXT, then that of the handler.

    Raise InvalidInput if it is no small JSON object. An exception of the site's function reaches the caller.
    """
    get_context, own = conf.function("JOB_CONTEXT"), handler.options.context
    if get_context is None and own is None:
        return {}
    context = dict(get_context() or {}) if get_context is not None else {}
    context |= (own() if callable(own) else own) or {}
    return parse_json_object(context, "context", max_depth=MAX_DEPTH, max_bytes=MAX_BYTES)
