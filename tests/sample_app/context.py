"""A request id that travels with jobs: JOB_CONTEXT and HANDLER_WRAPPER of a site."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

request_id: ContextVar[str] = ContextVar("request_id", default="")


def get_request_id() -> dict[str, Any]:
    return {"request_id": request_id.get() or "request 4711"}


@contextmanager
def restore_request_id(ctx: Any) -> Iterator[None]:
    token = request_id.set(ctx.context["request_id"])
    try:
        yield
    finally:
        request_id.reset(token)
