"""Responses: compact JSON, and an ETag for single objects."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseNotModified

JSON = "application/json"
OURS_ALONE = "private, no-cache"  # may be kept by the caller, who must ask before using it again
_TAG = re.compile(r'(?:W/)?"([\x21\x23-\x7e\x80-\xff]*)"')

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def dump(document: Any) -> bytes:
    return _encode(document).encode()


def answer(document: Any, status: int = 200, **headers: str) -> HttpResponse:
    """Header names are written with underscores: `answer(job, 201, Location="/…")`."""
    response = HttpResponse(dump(document), status=status, content_type=JSON)
    response["Cache-Control"] = OURS_ALONE
    for name, value in headers.items():
        response[name.replace("_", "-")] = value
    return response


def nothing() -> HttpResponse:
    response = HttpResponse(status=204)
    del response["Content-Type"]
    return response


def tagged(request: HttpRequest, document: Any) -> HttpResponse:
    """A single object: 304 if the caller says that it has this version."""
    content = dump(document)
    tag = hashlib.sha256(content).hexdigest()[:32]
    header = request.headers.get("If-None-Match", "")
    unchanged = header.strip() == "*" or tag in _TAG.findall(header)  # the weak comparison that the header calls for
    response = HttpResponseNotModified() if unchanged else HttpResponse(content, content_type=JSON)
    response["ETag"] = f'W/"{tag}"'
    response["Cache-Control"] = OURS_ALONE
    return response
