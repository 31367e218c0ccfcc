"""Secrets have 256 bits, are shown once, and are encrypted with a key that is not in the database."""

from __future__ import annotations

import base64
import logging
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection
from standardwebhooks import Webhook

from tests.support.webhooks import ANYWHERE
from tests.webhooks.conftest import Settings
from webhooks import attempt, deliveries, services
from webhooks.models import WebhookEndpoint
from webhooks.secrets import (
    UndecryptableSecret,
    decrypt_secret,
    encrypt_secret,
    format_secret,
    new_secret,
)

KEY = "a key of sixteen or more"
SECRET = b"k" * 32
ENDPOINT = UUID("01920000-0000-7000-8000-000000000001")


@pytest.mark.parametrize("secret", [b"x", b"y" * 32, bytes(range(256)) * 5])
def test_an_encrypted_secret_can_be_decrypted_and_no_two_tokens_are_alike(secret: bytes) -> None:
    first, second = encrypt_secret(secret, ENDPOINT), encrypt_secret(secret, ENDPOINT)
    assert decrypt_secret(first, ENDPOINT) == decrypt_secret(second, ENDPOINT) == secret
    assert first != second
    assert len(secret) < 8 or (secret not in first and secret not in second)


@pytest.mark.parametrize("index", [0, 1, 16, 17, 40, 49, -1])
def test_one_changed_bit_is_noticed(index: int) -> None:
    token = bytearray(base64.urlsafe_b64decode(encrypt_secret(SECRET, ENDPOINT)))
    token[index] ^= 1
    with pytest.raises(UndecryptableSecret):
        decrypt_secret(base64.urlsafe_b64encode(token), ENDPOINT)


@pytest.mark.parametrize("token", [b"", b"\x01", b"encrypted", b"\x80" + b"\0" * 72, b"gAAAAA" + b"A" * 100])
def test_a_token_that_was_never_encrypted_is_refused(token: bytes) -> None:
    with pytest.raises(UndecryptableSecret):
        decrypt_secret(token, ENDPOINT)


def test_a_changed_secret_key_is_named_in_the_error_and_a_fallback_still_decrypts(settings: Any) -> None:
    token = encrypt_secret(SECRET, ENDPOINT)
    first_key, settings.SECRET_KEY = settings.SECRET_KEY, "another key"
    with pytest.raises(UndecryptableSecret, match=f"endpoint {ENDPOINT} cannot be decrypted .* SECRET_KEY_FALLBACKS"):
        decrypt_secret(token, ENDPOINT)
    settings.SECRET_KEY_FALLBACKS = [first_key]
    assert decrypt_secret(token, ENDPOINT) == SECRET


def test_a_key_for_webhooks_can_be_introduced_later_and_replaced(configure: Settings, settings: Any) -> None:
    before = encrypt_secret(SECRET, ENDPOINT)
    configure(WEBHOOK_SECRET_KEY=KEY)
    after = encrypt_secret(SECRET, ENDPOINT)
    assert decrypt_secret(before, ENDPOINT) == decrypt_secret(after, ENDPOINT) == SECRET
    settings.SECRET_KEY = "another key"
    assert decrypt_secret(after, ENDPOINT) == SECRET
    configure(WEBHOOK_SECRET_KEY="the next key of sixteen or more")
    with pytest.raises(UndecryptableSecret):
        decrypt_secret(after, ENDPOINT)
    settings.SECRET_KEY_FALLBACKS = [KEY]
    assert decrypt_secret(after, ENDPOINT) == SECRET


def test_a_token_copied_to_another_endpoint_is_refused() -> None:
    with pytest.raises(UndecryptableSecret):
        decrypt_secret(encrypt_secret(SECRET, ENDPOINT), uuid4())


@pytest.mark.django_db
def test_an_endpoint_with_the_secret_of_another_sends_nothing() -> None:
    changed, other = (services.create(ANYWHERE, ["*"])[0] for _ in range(2))
    WebhookEndpoint.objects.filter(pk=changed.pk).update(secret=other.secret)
    for endpoint in (changed, other):
        services.send_test(endpoint.pk)
    keys = {task.endpoint_id: task.keys for task in deliveries.claim_due(10)}
    assert keys[changed.pk] is None
    assert keys[other.pk] is not None


def test_signatures_equal_those_of_the_standard_library() -> None:
    from datetime import UTC, datetime

    key, body = new_secret(), b'{"type":"job.completed"}'
    moment = datetime(2030, 1, 31, 12, tzinfo=UTC)
    headers = attempt.signature_headers("msg_1", int(moment.timestamp()), body, [key])
    assert headers["webhook-signature"] == Webhook(format_secret(key)).sign("msg_1", moment, body.decode())


def test_a_secret_has_256_bits_and_the_prefix_of_the_standard() -> None:
    secret = format_secret(new_secret())
    assert secret.startswith("whsec_")
    assert len(base64.b64decode(secret.removeprefix("whsec_"))) == 32
    assert secret != format_secret(new_secret())


@pytest.mark.django_db
def test_a_secret_is_nowhere_in_the_clear(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        created, first = services.create(ANYWHERE, ["*"])
        _, second = services.rotate_secret(created.pk)
    raw = [base64.b64decode(secret.removeprefix("whsec_")) for secret in (first, second)]
    with connection.cursor() as cursor:
        cursor.execute("SELECT secret, old_secret FROM jobscheduler_webhookendpoint")
        stored = b"".join(bytes(column) for column in cursor.fetchone())
    assert not any(secret in stored for secret in raw)
    endpoint = WebhookEndpoint.objects.get()
    for text in (caplog.text, repr(endpoint), str(endpoint), str(vars(endpoint))):
        assert first.removeprefix("whsec_") not in text
        assert second.removeprefix("whsec_") not in text
    assert decrypt_secret(bytes(endpoint.secret), endpoint.pk) == raw[1]
    assert decrypt_secret(bytes(endpoint.old_secret or b""), endpoint.pk) == raw[0]
