"""Signatures by the Standard Webhooks scheme: `webhook-id`, `webhook-timestamp`, `webhook-signature`."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable

PREFIX = "whsec_"
KEY_BYTES = 32


def new_secret() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def shown(secret: bytes) -> str:
    """As receivers configure it."""
    return PREFIX + base64.b64encode(secret).decode()


def headers(message_id: str, timestamp: int, body: bytes, keys: Iterable[bytes]) -> dict[str, str]:
    """One signature for each key: while a secret is being replaced, both the new and the former one verify."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    signatures = (base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{each}" for each in signatures),
    }
