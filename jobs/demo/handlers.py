"""Job types of the demo's past: some do well, some do not. A process knows them once it has asked to."""

from __future__ import annotations

import logging
from typing import Any

from jobs.errors import Skip
from jobs.registry import job

logger = logging.getLogger("demo")


class PrinterOnFire(Exception):
    """What nobody expects of a printer."""


def report(ctx: Any, month: str, pages: int = 4) -> dict[str, int]:
    """Writes a report page by page."""
    for page in range(1, pages + 1):
        ctx.check_cancelled()
        ctx.progress(page, pages, f"page {page} of {pages}")
        logger.info("page %d of %s is written", page, month)
    ctx.artifact("report", {"month": month, "pages": pages})
    return {"pages": pages}


def mail(ctx: Any, to: str, token: str = "") -> dict[str, bool]:
    """Sends a mail, unless the post office is closed on that street."""
    if to.endswith("@closed.example"):
        raise ConnectionRefusedError(f"the post office of {to.partition('@')[2]} is closed")
    logger.info("a mail is on its way")
    return {"sent": True}


def bring_in(path: str, rows: int = 0) -> dict[str, int]:
    """Reads a file; an empty one is skipped."""
    if not rows:
        raise Skip(f"{path} has nothing new")
    return {"rows": rows}


def print_out(copies: int = 1, burns: bool = False) -> dict[str, int]:
    """Prints, and is tried again if it burns."""
    if burns:
        raise PrinterOnFire("lp0 on fire")
    return {"copies": copies}


TYPES: tuple[tuple[str, Any, dict[str, Any]], ...] = (
    ("demo.report", report, {"resource": "demo-cpu", "max_retries": 0}),
    ("demo.mail", mail, {"resource": "demo-mail", "max_retries": 0}),
    ("demo.import", bring_in, {"resource": "demo-cpu"}),
    ("demo.print", print_out, {"resource": "demo-printer"}),
)


def make_known() -> None:
    for name, function, options in TYPES:
        job(name, **options)(function)
