"""One function masks secrets; another puts them back under an edited document."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.errors import InvalidInput
from jobs.redaction import MASK, redact, restore

pytestmark = pytest.mark.once


def test_values_of_secret_keys_are_masked_at_any_depth() -> None:
    value = {"a": [{"Password": "x", "deep": {"API_KEY": {"k": 1}}}], "token": None, "n": 1}
    assert redact(value) == {"a": [{"Password": MASK, "deep": {"API_KEY": MASK}}], "token": MASK, "n": 1}


@pytest.mark.parametrize("key", ["password_hint", "tokens_used", "secretary", "max_tokens", "", "pass word"])
def test_only_whole_keys_are_secret(key: str) -> None:
    assert redact({key: 1}) == {key: 1}


@pytest.mark.parametrize("value", [None, 1, 1.5, True, "password", [], {}, ["token"], 2**62])
def test_what_has_no_secret_key_stays_as_it_is(value: Any) -> None:
    assert redact(value) == value


def test_the_original_is_not_touched() -> None:
    value = {"a": {"token": "x"}}
    redact(value)
    assert value == {"a": {"token": "x"}}


def test_the_keys_are_a_setting(settings: Any) -> None:
    settings.JOBSCHEDULER = {"REDACT_KEYS": ["IBAN"]}
    assert redact({"iban": 1, "password": 2}) == {"iban": MASK, "password": 2}


def test_an_edited_document_gets_its_secrets_back() -> None:
    original = {"a": {"token": "x", "n": 1}, "list": [{"token": "y"}]}
    edited = redact(original)
    edited["a"]["n"] = 2
    assert restore(edited, original, "params") == {"a": {"token": "x", "n": 2}, "list": [{"token": "y"}]}


def test_a_secret_can_be_replaced_and_removed() -> None:
    assert restore({"token": "new"}, {"token": "old"}, "params") == {"token": "new"}
    assert restore({}, {"token": "old"}, "params") == {}


@pytest.mark.parametrize("edited", [{"token": MASK}, {"b": {"token": MASK}}, {"l": [{"token": MASK}, 1]}])
def test_a_mask_without_an_original_is_refused_by_its_place(edited: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        restore(edited, {"l": [{"token": "x"}]}, "params")
    assert refused.value.errors[0]["loc"][0] == "params"
    assert refused.value.errors[0]["loc"][-1] == "token"
