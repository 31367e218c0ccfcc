"""HTTP responses: compact JSON, and an ETag for single objects."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseNotModified

JSON = "application/json"
CACHE_CONTROL = "private, no-cache"  # a client may store a response but must revalidate it before each use
_ETAG = re.compile(r'(?:W/)?"([\x21\x23-\x7e\x80-\xff]*)"')

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def encode_json(document: Any) -> bytes:
    """Return compact JSON in UTF-8."""
    return _encode(document).encode()


def json_response(document: Any, status: int = 200, *, has_secret: bool = False) -> HttpResponse:
    headers = {"Cache-Control": "no-store" if has_secret else CACHE_CONTROL}
    return HttpResponse(encode_json(document), status=status, content_type=JSON, headers=headers)


def empty_response() -> HttpResponse:
    """Return 204 without content."""
    response = HttpResponse(status=204)
    del response["Content-Type"]
    return response


def etag_response(request: HttpRequest, document: Any) -> HttpResponse:
    """Return a single object with its ETag, or 304 if If-None-Match names this version."""
    content = encode_json(document)
    etag = hashlib.sha256(content).hexdigest()[:32]
    header = request.headers.get("If-None-Match", "")
    is_unchanged = header.strip() == "*" or etag in _ETAG.findall(header)  # If-None-Match compares weakly
    response = HttpResponseNotModified() if is_unchanged else HttpResponse(content, content_type=JSON)
    response["ETag"] = f'W/"{etag}"'
    response["Cache-Control"] = CACHE_CONTROL
    return response
