"""Create the signing secrets of endpoints, and encrypt them at rest.

Each endpoint has a Fernet key of its own, derived by HKDF from WEBHOOK_SECRET_KEY (else SECRET_KEY) and the endpoint's
id: a token that was copied to another endpoint's row cannot be decrypted there. SECRET_KEY and SECRET_KEY_FALLBACKS
still decrypt what they encrypted. None of these keys is in the database.
"""

from __future__ import annotations

import base64
import secrets
from uuid import UUID

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings
from django.utils.encoding import force_bytes

from jobs.conf import conf

PURPOSE = b"jobscheduler.webhooks.secret:"
PREFIX, KEY_BYTES = "whsec_", 32


class UndecryptableSecret(Exception):
    """Raised for a token of another key or endpoint, or one that was modified."""

    def __init__(self, endpoint_id: UUID) -> None:
        super().__init__(
            f"The secret of webhook endpoint {endpoint_id} cannot be decrypted with WEBHOOK_SECRET_KEY, SECRET_KEY or "
            "SECRET_KEY_FALLBACKS; restore the key that encrypted it, or rotate the secret."
        )


def new_secret() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def format_secret(secret: bytes) -> str:
    """Return a secret in the form that receivers configure."""
    return PREFIX + base64.b64encode(secret).decode()


def encrypt_secret(secret: bytes, endpoint_id: UUID) -> bytes:
    """Return a token that only `decrypt_secret` for the same endpoint can read."""
    return _fernet(endpoint_id).encrypt(secret)


def decrypt_secret(token: bytes, endpoint_id: UUID) -> bytes:
    """Return the secret, by the current key or an old one; raise UndecryptableSecret if none fits."""
    try:
        return _fernet(endpoint_id).decrypt(token)
    except InvalidToken:
        raise UndecryptableSecret(endpoint_id) from None


def _fernet(endpoint_id: UUID) -> MultiFernet:
    keys = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    if conf.WEBHOOK_SECRET_KEY is not None:
        keys.insert(0, conf.WEBHOOK_SECRET_KEY)
    info = PURPOSE + endpoint_id.bytes
    derived = (HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(force_bytes(key)) for key in keys)
    return MultiFernet([Fernet(base64.urlsafe_b64encode(key)) for key in derived])
