"""The job type `system.http`, where SYSTEM_JOB_TYPES is on: one request, under the rules that webhooks go by."""

from __future__ import annotations

import json
import re
import time
from typing import Annotated, Any, Literal

from django.utils.translation import gettext as _
from pydantic import AfterValidator, Field

from jobs import job
from jobs.conf import conf, configured, read
from jobs.errors import NoRetry
from jobs.version import __version__
from webhooks import http_client, url_guard

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
OURS = ("host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "accept-encoding")
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]{0,4000}")
WORTH_A_RETRY = (408, 425, 429)
LONGEST_SEC = 3600


class Unanswered(Exception):
    """No answer, or one that says: later."""


def _url(value: str) -> str:
    try:
        url_guard.destination(value)
    except url_guard.Refused as refusal:
        raise ValueError(str(refusal)) from None
    return value


def _headers(given: dict[str, str]) -> dict[str, str]:
    for name, value in given.items():
        if not TOKEN.fullmatch(name) or not VALUE.fullmatch(value):
            raise ValueError(_("has a header that HTTP does not allow"))
        if name.lower() in OURS:
            raise ValueError(_("has the header %s, which is not for a job to say") % name)
    return given


Url = Annotated[str, AfterValidator(_url)]
Headers = Annotated[dict[str, str], Field(max_length=50), AfterValidator(_headers)]
Seconds = Annotated[float, Field(gt=0, le=LONGEST_SEC)]


def call(
    ctx: Any,
    url: Url,
    method: Method = "POST",
    headers: Headers = {},  # noqa: B006
    body: Any = None,
    timeout_sec: Seconds | None = None,
) -> dict[str, Any]:
    """Makes one HTTP request; 2xx is success. Text is sent as it is, else as JSON. No redirects, no private hosts."""
    if not conf.SYSTEM_JOB_TYPES:
        raise NoRetry(_("SYSTEM_JOB_TYPES is off"))
    ours = {"User-Agent": f"jobscheduler/{__version__}", "Accept": "*/*"}
    content = b""
    if isinstance(body, str):
        content, ours["Content-Type"] = body.encode(), "text/plain; charset=utf-8"
    elif body is not None:
        content, ours["Content-Type"] = json.dumps(body, separators=(",", ":")).encode(), "application/json"
    given = {name.lower() for name in headers}
    sent = {**{name: value for name, value in ours.items() if name.lower() not in given}, **headers}
    deadline = time.monotonic() + (timeout_sec or conf.WEBHOOK_TIMEOUT_SEC)
    try:
        answer = http_client.request(url, sent, content, deadline=deadline, method=method)
    except (url_guard.Refused, http_client.NotAnswered) as error:
        raise Unanswered(f"{url}: {error}") from None
    try:
        answered = json.loads(answer.body)
    except ValueError:  # of the rest what can be read
        answered = answer.body.decode(errors="replace")
    ctx.artifact("response", {"status": answer.status, "body": answered})
    if 200 <= answer.status < 300:
        return {"status": answer.status}
    message = f"{url} answered {answer.status}"
    if answer.status in WORTH_A_RETRY or answer.status >= 500:
        raise Unanswered(message)
    raise NoRetry(message)


if read(configured())[0].SYSTEM_JOB_TYPES:
    job("system.http")(call)
