"""The job types of the demo. The standalone site registers them for all its workers, the command `demo` for its own."""

from __future__ import annotations

import logging
from typing import Any

from jobs.errors import Skip
from jobs.registry import job, registry

logger = logging.getLogger("demo")


class PrinterOnFire(Exception):
    """The demo's printer has failed."""


def write_report(ctx: Any, month: str, pages: int = 4) -> dict[str, int]:
    """Write a report page by page."""
    for page in range(1, pages + 1):
        ctx.check_cancelled()
        ctx.progress(page, pages, f"page {page} of {pages}")
        logger.info("page %d of %s is written", page, month)
    ctx.artifact("report", {"month": month, "pages": pages})
    return {"pages": pages}


def send_mail(ctx: Any, to: str, token: str = "") -> dict[str, bool]:
    """Send a mail, unless the address is of a closed post office."""
    if to.endswith("@closed.example"):
        raise ConnectionRefusedError(f"the post office of {to.partition('@')[2]} is closed")
    logger.info("a mail is on its way")
    return {"sent": True}


def import_file(path: str, rows: int = 0) -> dict[str, int]:
    """Read a file; an empty one is skipped."""
    if not rows:
        raise Skip(f"{path} has nothing new")
    return {"rows": rows}


def print_copies(copies: int = 1, burns: bool = False) -> dict[str, int]:
    """Print; raise if the printer is on fire, which is retried."""
    if burns:
        raise PrinterOnFire("lp0 on fire")
    return {"copies": copies}


def send_fax() -> None:
    """Send a fax; no worker has a modem."""


TYPES: tuple[tuple[str, Any, dict[str, Any]], ...] = (
    ("demo.report", write_report, {"resource": "demo-cpu", "max_retries": 0}),
    ("demo.mail", send_mail, {"resource": "demo-mail", "max_retries": 0}),
    ("demo.import", import_file, {"resource": "demo-cpu"}),
    ("demo.print", print_copies, {"resource": "demo-printer"}),
)


def register_handlers() -> None:
    """Register the job types of the demo, once."""
    for name, function, options in TYPES:
        if name not in registry.names():
            job(name, **options)(function)
