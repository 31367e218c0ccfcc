"""Mask secrets in JSON and in texts; the admin, the API, webhooks and the executors all use these functions.

A value is secret by its key (see `is_secret_key`), as a header of a request, or as the credentials within a URL.
`restore` puts the secrets back into an edited document, so that a document with masks can be saved.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from django.utils.translation import gettext as _

from jobs.conf import conf
from jobs.errors import InvalidInput
from jobs.validation.sanitize import sanitize_text

MASK = "••••••"
MIN_SECRET_LENGTH = 4  # shorter values are not removed from texts: they are parts of ordinary words
SCRUBBED_LENGTH = 1_000_000  # of a longer text only the beginning is searched for secrets and kept
DESTINATION_MARKS = ("://", ";", "@", "\\")  # a secret that contains one may be a URL or a connection string
MAX_SECRETS = 2000  # in all quotings; each is looked for in each text
MIN_SUFFIX_LENGTH = 5  # of a name that is also found at the end of a word: “dbpassword”, but not “shipping” for “ping”
KEY_LENGTH = 200  # of a longer key only the end is read
# The last word of a key says what its value is: a token limit is a number, an authorization URL is an address.
HARMLESS_ENDINGS = frozenset(
    (
        *("limit", "limits", "count", "counts", "budget", "usage", "used", "length", "size", "max", "min"),
        *("type", "name", "hint", "url", "uri", "endpoint", "host", "domain", "path", "file", "version", "provider"),
        *("policy", "required", "enabled", "expired", "expires", "expiry", "expiration", "ttl", "age", "at", "sec"),
    )
)
HARMLESS_HEADERS = frozenset(
    (
        *("accept", "accept-charset", "accept-encoding", "accept-language", "cache-control", "content-encoding"),
        *("content-language", "content-length", "content-type", "date", "expect", "if-match", "if-modified-since"),
        *("if-none-match", "if-unmodified-since", "prefer", "range", "traceparent", "user-agent", "x-request-id"),
    )
)
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SEPARATORS = re.compile(r"[\W_]+")
_USER_INFO = re.compile(r"(?<=://)[^/?#\s]{1,1000}@")
_QUERY_PARAM = re.compile(r"(?<=[?&])([^=&#\s]{1,100})=([^&#\s]+)")
_MASKED_URL = re.compile(f"://{MASK}@|[?&][^=&#\\s]{{1,100}}={MASK}")
_CREDENTIALS = re.compile(r"(?:bearer|basic|token|apikey)\s+(\S+)", re.IGNORECASE)
_MISSING = object()
Path = tuple[str | int, ...]


def redact(value: Any) -> Any:
    """Return a copy in which MASK replaces each secret."""
    return _mask(value, _get_names())


def is_secret_key(key: Any) -> bool:
    """Return whether REDACT_KEYS names this key, or a part of it.

    A key is read as words (`X-Gitlab-Token`, `db_password`, `apiKey`). It is secret if it contains the words of a name
    side by side, unless its last word is harmless (`token_limit`); or if one of its words ends with a long name.
    """
    return _is_secret(key, _get_names())


def has_secret(value: Any) -> bool:
    """Return whether a document contains a secret that is not empty."""
    return next(_find_secrets(value, _get_names()), None) is not None


def find_secrets(value: Any) -> tuple[str, ...]:
    """Return the secrets of a document as they may appear in texts, the longest first: numbers and texts of at least
    MIN_SECRET_LENGTH characters, also quoted for Python, JSON and URLs."""
    texts: set[str] = set()
    for secret in _find_secrets(value, _get_names()):
        text = secret if isinstance(secret, str) else json.dumps(secret)
        credentials = _CREDENTIALS.fullmatch(text)
        for form in (text, credentials[1] if credentials else ""):
            texts |= {form, form.strip(), repr(form)[1:-1], quote(form, safe="")}
            texts |= {json.dumps(form)[1:-1], json.dumps(form, ensure_ascii=False)[1:-1]}
    return tuple(sorted((text for text in texts if len(text) >= MIN_SECRET_LENGTH), key=len, reverse=True))


def scrub(text: str, secrets: tuple[str, ...]) -> str:
    """Return a text with MASK in place of these secrets; of the whole text if they are too many to look for."""
    if len(secrets) > MAX_SECRETS:
        return MASK if text else ""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text


def clean_text(text: object, secrets: tuple[str, ...], max_length: int) -> str:
    """Return a text as it may be stored: MASK in place of these secrets, then cut."""
    if not secrets:
        return sanitize_text(text, max_length)
    return sanitize_text(scrub(sanitize_text(text, SCRUBBED_LENGTH), secrets), max_length)


def restore(edited: Any, original: Any, field: str) -> Any:
    """Return the edited document with each MASK replaced by the original value.

    A secret is not put back beside values that were changed: they may name where it is sent. Another secret may be
    replaced, unless it may name a destination, too. Else, and for a mask without an original value, raise InvalidInput:
    the secret must be written again.
    """
    if edited == redact(original):
        return original
    masks: list[Path] = []
    restored = _put_back(edited, original, (field,), masks)
    names = _get_names()
    if masks and _mask(restored, names, by_key_only=True) != _mask(original, names, by_key_only=True):
        message = _("is hidden here, and a value beside it has changed: write its value in again")
        raise InvalidInput(masks[0], message, "hidden")
    return restored


@lru_cache(maxsize=8)
def _join_names(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset("".join(_split(name)) for name in names)


def _get_names() -> frozenset[str]:
    return _join_names(conf.REDACT_KEYS)


def _split(key: str) -> list[str]:
    """Return the words of a key in lower case, without the numbers that follow them."""
    words = _SEPARATORS.split(_WORD_START.sub("_", key).casefold())
    return [word.rstrip("0123456789") or word for word in words if word]


def _is_secret(key: Any, names: frozenset[str]) -> bool:
    return isinstance(key, str) and _match(key[-KEY_LENGTH:], names)


@lru_cache(maxsize=4096)
def _match(key: str, names: frozenset[str]) -> bool:
    words = _split(key)
    if "".join(words) in names:
        return True
    if not words or words[-1] in HARMLESS_ENDINGS:
        return False
    starts = range(len(words))
    if any("".join(words[start:end]) in names for start in starts for end in (start + 1, start + 2, start + 3)):
        return True
    return any(len(name) >= MIN_SUFFIX_LENGTH and word.endswith(name) for name in names for word in words)


def _is_hidden(key: Any, headers: bool, names: frozenset[str]) -> bool:
    """Return whether the value of this key is masked; of headers, all values are but a few."""
    return _is_secret(key, names) or (headers and isinstance(key, str) and key.casefold() not in HARMLESS_HEADERS)


def _are_headers(key: Any, value: Any) -> bool:
    is_container = isinstance(value, Mapping | list | tuple)
    return is_container and isinstance(key, str) and key.casefold().endswith("headers")


def _read_header(item: Any) -> Mapping[str, Any] | None:
    """Return an item of a list of headers as an object. It is a pair, an object with `name` and `value`, or a line."""
    if isinstance(item, Mapping):
        return {item["name"]: item["value"]} if _is_named_header(item) else item
    if isinstance(item, list | tuple):
        return {item[0]: item[1]} if len(item) == 2 and isinstance(item[0], str) else None
    if isinstance(item, str) and ":" in item:
        name, _colon, value = item.partition(":")
        return {name: value.strip()}
    return None


def _write_header(item: Any, header: Mapping[str, Any]) -> Any:
    """Return a copy of the item with the values of `header`, which `_read_header` made of it."""
    if isinstance(item, Mapping):
        return {**item, "value": header[item["name"]]} if _is_named_header(item) else header
    ((name, value),) = header.items()
    return f"{name}: {value}" if isinstance(item, str) else [name, value]


def _is_named_header(item: Mapping[str, Any]) -> bool:
    return isinstance(item.get("name"), str) and "value" in item


def _mask(value: Any, names: frozenset[str], *, headers: bool = False, by_key_only: bool = False) -> Any:
    if isinstance(value, Mapping):
        return {
            key: (item if by_key_only and _may_name_destination(item) else MASK)
            if _is_hidden(key, headers and not by_key_only, names)
            else _mask(item, names, headers=_are_headers(key, item), by_key_only=by_key_only)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        if headers:
            return [_mask_header(item, names, by_key_only) for item in value]
        return [_mask(item, names, by_key_only=by_key_only) for item in value]
    if not isinstance(value, str) or "://" not in value or (by_key_only and "\\" in value):
        return value  # parsers of URLs disagree about a backslash: to compare documents, such a URL stands for itself
    return _mask_url(value, names)


def _mask_header(item: Any, names: frozenset[str], by_key_only: bool) -> Any:
    header = _read_header(item)
    if header is None:
        return _mask(item, names, by_key_only=by_key_only)
    return _write_header(item, _mask(header, names, headers=True, by_key_only=by_key_only))


def _may_name_destination(secret: Any) -> bool:
    """Return whether a secret may say where others are sent, such as a connection string."""
    if isinstance(secret, Mapping | list | tuple):
        return True
    return isinstance(secret, str) and any(mark in secret for mark in DESTINATION_MARKS)


def _mask_url(text: str, names: frozenset[str]) -> str:
    def mask_param(match: re.Match[str]) -> str:
        return f"{match[1]}={MASK}" if _is_secret(match[1], names) else match[0]

    return _QUERY_PARAM.sub(mask_param, _USER_INFO.sub(f"{MASK}@", text))


def _find_secrets(value: Any, names: frozenset[str], *, headers: bool = False) -> Iterator[Any]:
    """Yield the numbers and texts that `redact` masks."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if _is_hidden(key, headers, names):
                yield from _find_leaves(item)
            else:
                yield from _find_secrets(item, names, headers=_are_headers(key, item))
    elif isinstance(value, list | tuple):
        for item in value:
            header = _read_header(item) if headers else None
            yield from _find_secrets(item if header is None else header, names, headers=header is not None)
    elif isinstance(value, str) and "://" in value:
        yield from (match[0][:-1].partition(":")[2] or match[0][:-1] for match in _USER_INFO.finditer(value))
        yield from (match[2] for match in _QUERY_PARAM.finditer(value) if _is_secret(match[1], names))


def _find_leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _find_leaves(item)
    elif value is not None and value != "" and not isinstance(value, bool):
        yield value


def _put_back(
    edited: Any, original: Any, path: Path, masks: list[Path], *, headers: bool = False, hidden: bool = False
) -> Any:
    """Return the document with its secrets, and add the path of each mask to `masks`."""
    if isinstance(edited, dict):
        known, names = original if isinstance(original, dict) else {}, _get_names()
        return {
            key: _put_back(
                item,
                known.get(key, _MISSING),
                (*path, key),
                masks,
                headers=_are_headers(key, item),
                hidden=_is_hidden(key, headers, names),
            )
            for key, item in edited.items()
        }
    if isinstance(edited, list):
        items = original if isinstance(original, list) else []
        restored = []
        for index, item in enumerate(edited):
            stored = items[index] if index < len(items) else _MISSING
            header = _read_header(item) if headers else None
            if header is None:
                restored.append(_put_back(item, stored, (*path, index), masks))
            else:
                values = _put_back(header, _read_header(stored), (*path, index), masks, headers=True)
                restored.append(_write_header(item, values))
        return restored
    if (hidden and edited == MASK) or (isinstance(edited, str) and _MASKED_URL.search(edited)):
        if original is _MISSING or edited not in (MASK, redact(original)):
            raise InvalidInput(path, _("is hidden here: write its value in again"), "hidden")
        masks.append(path)
        return original
    return edited
