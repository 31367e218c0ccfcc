"""The job type `system.http`, registered if SYSTEM_JOB_TYPES is on: one request under the rules of webhooks."""

from __future__ import annotations

import json
import re
import time
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from django.utils.translation import gettext as _
from pydantic import AfterValidator, Field

from jobs import job
from jobs.conf import conf, get_raw_settings, read_settings
from jobs.errors import NoRetry
from jobs.version import __version__
from webhooks import http_client, url_guard

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
RESERVED_HEADERS = (
    *("host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer"),
    "accept-encoding",
)
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]{0,4000}")
RETRYABLE_STATUSES = (408, 425, 429)
MAX_TIMEOUT_SEC = 3600


class RequestFailed(Exception):
    """Raised without a response, or with one that asks to try later. The job may be retried."""


def _require_allowed_url(value: str) -> str:
    try:
        url_guard.parse_destination(value)
    except url_guard.RejectedUrl as error:
        raise ValueError(str(error)) from None
    return value


def _require_allowed_headers(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not HEADER_NAME.fullmatch(name) or not HEADER_VALUE.fullmatch(value):
            raise ValueError(_("has a header that HTTP does not allow"))
        if name.lower() in RESERVED_HEADERS:
            raise ValueError(_("has the header %s, which a job cannot set") % name)
    return headers


Url = Annotated[str, AfterValidator(_require_allowed_url)]
Headers = Annotated[dict[str, str], Field(max_length=50), AfterValidator(_require_allowed_headers)]
Seconds = Annotated[float, Field(gt=0, le=MAX_TIMEOUT_SEC)]


def send_request(
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
    defaults = {"User-Agent": f"jobscheduler/{__version__}", "Accept": "*/*"}
    content = b""
    if isinstance(body, str):
        content, defaults["Content-Type"] = body.encode(), "text/plain; charset=utf-8"
    elif body is not None:
        content, defaults["Content-Type"] = json.dumps(body, separators=(",", ":")).encode(), "application/json"
    given_names = {name.lower() for name in headers}
    all_headers = {**{name: value for name, value in defaults.items() if name.lower() not in given_names}, **headers}
    address = _format_address(url)
    deadline = time.monotonic() + (timeout_sec or conf.WEBHOOK_TIMEOUT_SEC)
    try:
        response = http_client.request(url, all_headers, content, deadline=deadline, method=method)
    except (url_guard.RejectedUrl, http_client.NoResponse) as error:
        raise RequestFailed(f"{address}: {error}") from None
    try:
        response_body = json.loads(response.body)
    except ValueError:  # not JSON: stored as text
        response_body = response.body.decode(errors="replace")
    ctx.artifact("response", {"status": response.status, "body": response_body})
    if 200 <= response.status < 300:
        return {"status": response.status}
    message = f"{address} answered {response.status}"
    if response.status in RETRYABLE_STATUSES or response.status >= 500:
        raise RequestFailed(message)
    raise NoRetry(message)


def _format_address(url: str) -> str:
    """Return scheme and host of a URL for texts: its path and query may be secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


if read_settings(get_raw_settings()).conf.SYSTEM_JOB_TYPES:
    job("system.http")(send_request)
