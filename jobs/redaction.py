"""Secrets in JSON, masked for whoever reads it: the admin, the API and webhooks all use this one function.

`restore` puts them back under an edited document, so that what was shown masked can be saved again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from django.utils.translation import gettext as _

from jobs.conf import conf
from jobs.errors import InvalidInput

MASK = "••••••"


def redact(value: Any) -> Any:
    """A copy with MASK in place of every value whose key, as a whole and in any case, is one of REDACT_KEYS."""
    return _masked(value, _folded(conf.REDACT_KEYS))


def restore(edited: Any, original: Any, field: str) -> Any:
    """The edited document with each untouched MASK turned back into the original's value.

    Within a list there is no telling which entry an edited one was, so a mask in a changed list is refused,
    as is one that stands for nothing.
    """
    if edited == redact(original):
        return original
    return _restored(edited, original, _folded(conf.REDACT_KEYS), (field,))


@lru_cache(maxsize=8)
def _folded(keys: tuple[str, ...]) -> frozenset[str]:
    return frozenset(key.casefold() for key in keys)


def _masked(value: Any, secret: frozenset[str]) -> Any:
    if isinstance(value, Mapping):
        return {key: MASK if _is_secret(key, secret) else _masked(item, secret) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(item, secret) for item in value]
    return value


def _is_secret(key: Any, secret: frozenset[str]) -> bool:
    return isinstance(key, str) and key.casefold() in secret


def _restored(edited: Any, original: Any, secret: frozenset[str], path: tuple[str | int, ...]) -> Any:
    if isinstance(edited, dict):
        known = original if isinstance(original, dict) else {}
        return {key: _entry(key, item, known, secret, (*path, key)) for key, item in edited.items()}
    if isinstance(edited, list):
        if isinstance(original, list) and edited == _masked(original, secret):
            return original
        return [_restored(item, None, secret, (*path, index)) for index, item in enumerate(edited)]
    return edited


def _entry(key: str, item: Any, known: dict[str, Any], secret: frozenset[str], path: tuple[str | int, ...]) -> Any:
    if not (_is_secret(key, secret) and item == MASK):
        return _restored(item, known.get(key), secret, path)
    if key not in known:
        raise InvalidInput(path, _("is hidden here: write its value in again"), "hidden")
    return known[key]
