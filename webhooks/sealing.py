"""Secrets at rest: encrypted with a key that is not in the database (WEBHOOK_SECRET_KEY, else SECRET_KEY).

A keystream from HMAC-SHA256 in counter mode, then HMAC-SHA256 over nonce and ciphertext; a fresh nonce and fresh keys
for every sealing. Nothing beyond the standard library: see docs/decisions/0011-webhooks.md.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterator

from django.conf import settings

from jobs.conf import conf

VERSION = b"\x01"
NONCE, TAG, BLOCK = 16, 32, 32


class Unreadable(Exception):
    """Sealed with a key that is no longer known, or tampered with."""


def seal(plain: bytes) -> bytes:
    nonce = secrets.token_bytes(NONCE)
    key = next(_keys())
    hidden = _xor(plain, _derived(key, b"encrypt", nonce))
    return VERSION + nonce + hidden + _tag(key, nonce, hidden)


def unseal(sealed: bytes) -> bytes:
    """Tries the present key first, then those that may have been in use before."""
    version, nonce, hidden, tag = sealed[:1], sealed[1 : 1 + NONCE], sealed[1 + NONCE : -TAG], sealed[-TAG:]
    if version == VERSION and len(sealed) > 1 + NONCE + TAG:
        for key in _keys():
            if hmac.compare_digest(tag, _tag(key, nonce, hidden)):
                return _xor(hidden, _derived(key, b"encrypt", nonce))
    raise Unreadable


def _keys() -> Iterator[bytes]:
    if conf.WEBHOOK_SECRET_KEY is not None:
        yield conf.WEBHOOK_SECRET_KEY.encode()
    for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS):
        yield key if isinstance(key, bytes) else str(key).encode()


def _derived(key: bytes, purpose: bytes, nonce: bytes) -> bytes:
    return hmac.digest(key, b"jobscheduler.webhooks:" + purpose + b":" + nonce, hashlib.sha256)


def _tag(key: bytes, nonce: bytes, hidden: bytes) -> bytes:
    return hmac.digest(_derived(key, b"authenticate", nonce), VERSION + nonce + hidden, hashlib.sha256)


def _xor(text: bytes, key: bytes) -> bytes:
    blocks = (hmac.digest(key, number.to_bytes(8, "big"), hashlib.sha256) for number in range(-(-len(text) // BLOCK)))
    return bytes(left ^ right for left, right in zip(text, b"".join(blocks), strict=False))
