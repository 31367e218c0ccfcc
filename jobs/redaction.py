"""Mask secrets in JSON; the admin, the API and webhooks all use `redact`.

`restore` puts the secrets back into an edited document, so that a document with masks can be saved.
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
    """Return a copy in which MASK replaces each value whose key is in REDACT_KEYS (whole key, any case)."""
    return _mask(value, _casefold_keys(conf.REDACT_KEYS))


def restore(edited: Any, original: Any, field: str) -> Any:
    """Return the edited document with each MASK replaced by the original value.

    The items of a changed list cannot be matched with the original ones, so a mask in it is an error, as is a mask
    without an original value.
    """
    if edited == redact(original):
        return original
    return _restore(edited, original, _casefold_keys(conf.REDACT_KEYS), (field,))


@lru_cache(maxsize=8)
def _casefold_keys(keys: tuple[str, ...]) -> frozenset[str]:
    return frozenset(key.casefold() for key in keys)


def _mask(value: Any, secret: frozenset[str]) -> Any:
    if isinstance(value, Mapping):
        return {key: MASK if _is_secret(key, secret) else _mask(item, secret) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mask(item, secret) for item in value]
    return value


def _is_secret(key: Any, secret: frozenset[str]) -> bool:
    return isinstance(key, str) and key.casefold() in secret


def _restore(edited: Any, original: Any, secret: frozenset[str], path: tuple[str | int, ...]) -> Any:
    if isinstance(edited, dict):
        originals = original if isinstance(original, dict) else {}
        restored: dict[str, Any] = {}
        for key, item in edited.items():
            if not (_is_secret(key, secret) and item == MASK):
                restored[key] = _restore(item, originals.get(key), secret, (*path, key))
            elif key in originals:
                restored[key] = originals[key]
            else:
                raise InvalidInput((*path, key), _("is hidden here: write its value in again"), "hidden")
        return restored
    if isinstance(edited, list):
        if isinstance(original, list) and edited == _mask(original, secret):
            return original
        return [_restore(item, None, secret, (*path, index)) for index, item in enumerate(edited)]
    return edited
