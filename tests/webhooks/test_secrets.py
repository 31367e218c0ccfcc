"""Secrets: of full strength, shown once, sealed with a key that is not in the database."""

from __future__ import annotations

import base64
import logging
from typing import Any

import pytest
from django.db import connection
from standardwebhooks import Webhook

from tests.webhooks.conftest import Settings
from tests.webhooks.scenes import ANYWHERE
from webhooks import sealing, services, signing
from webhooks.models import WebhookEndpoint

KEY = "a key of sixteen or more"


@pytest.mark.parametrize("plain", [b"x", b"y" * 32, bytes(range(256)) * 5])
def test_what_is_sealed_can_be_unsealed_and_never_looks_alike(plain: bytes) -> None:
    first, second = sealing.seal(plain), sealing.seal(plain)
    assert sealing.unseal(first) == sealing.unseal(second) == plain
    assert first != second
    assert len(plain) < 8 or (plain not in first and plain not in second)


@pytest.mark.parametrize("place", [0, 1, 16, 17, 40, 49, -1])
def test_one_changed_bit_is_noticed(place: int) -> None:
    sealed = bytearray(sealing.seal(b"k" * 32))
    sealed[place] ^= 1
    with pytest.raises(sealing.Unreadable):
        sealing.unseal(bytes(sealed))


@pytest.mark.parametrize("sealed", [b"", b"\x01", b"sealed", b"\x01" + b"\0" * 48, b"\x02" + b"\0" * 100])
def test_what_was_never_sealed_is_unreadable(sealed: bytes) -> None:
    with pytest.raises(sealing.Unreadable):
        sealing.unseal(sealed)


def test_another_key_cannot_read_it(settings: Any) -> None:
    sealed = sealing.seal(b"k" * 32)
    settings.SECRET_KEY = "another key"
    with pytest.raises(sealing.Unreadable):
        sealing.unseal(sealed)
    settings.SECRET_KEY_FALLBACKS = ["only for tests"]
    assert sealing.unseal(sealed) == b"k" * 32


def test_a_key_of_its_own_can_be_introduced_later_and_then_is_what_counts(told: Settings, settings: Any) -> None:
    before = sealing.seal(b"k" * 32)
    told(WEBHOOK_SECRET_KEY=KEY)
    after = sealing.seal(b"k" * 32)
    assert sealing.unseal(before) == sealing.unseal(after) == b"k" * 32
    settings.SECRET_KEY = "another key"
    assert sealing.unseal(after) == b"k" * 32


def test_signatures_are_what_the_standard_library_makes() -> None:
    from datetime import UTC, datetime

    key, body = signing.new_secret(), b'{"type":"job.completed"}'
    moment = datetime(2030, 1, 31, 12, tzinfo=UTC)
    ours = signing.headers("msg_1", int(moment.timestamp()), body, [key])
    assert ours["webhook-signature"] == Webhook(signing.shown(key)).sign("msg_1", moment, body.decode())


def test_a_secret_has_256_bits_and_the_prefix_of_the_standard() -> None:
    shown = signing.shown(signing.new_secret())
    assert shown.startswith("whsec_")
    assert len(base64.b64decode(shown.removeprefix("whsec_"))) == 32
    assert shown != signing.shown(signing.new_secret())


@pytest.mark.django_db
def test_a_secret_is_nowhere_in_the_clear(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        made, first = services.create(ANYWHERE, ["*"])
        _, second = services.rotate_secret(made.pk)
    raw = [base64.b64decode(each.removeprefix("whsec_")) for each in (first, second)]
    with connection.cursor() as cursor:
        cursor.execute("SELECT secret, old_secret FROM jobscheduler_webhookendpoint")
        stored = b"".join(bytes(each) for each in cursor.fetchone())
    assert not any(secret in stored for secret in raw)
    endpoint = WebhookEndpoint.objects.get()
    for text in (caplog.text, repr(endpoint), str(endpoint), str(vars(endpoint))):
        assert first.removeprefix("whsec_") not in text
        assert second.removeprefix("whsec_") not in text
    assert sealing.unseal(bytes(endpoint.secret)) == raw[1]
    assert sealing.unseal(bytes(endpoint.old_secret or b"")) == raw[0]
