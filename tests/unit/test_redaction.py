"""One function masks secrets; another puts them back under an edited document."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from jobs.errors import InvalidInput
from jobs.redaction import MASK, find_secrets, has_secret, redact, restore, scrub

pytestmark = pytest.mark.once


def test_values_of_secret_keys_are_masked_at_any_depth() -> None:
    value = {"a": [{"Password": "x", "deep": {"API_KEY": {"k": 1}}}], "token": None, "n": 1}
    assert redact(value) == {"a": [{"Password": MASK, "deep": {"API_KEY": MASK}}], "token": MASK, "n": 1}


SECRET_KEYS = (
    *("X-Gitlab-Token", "X-Vault-Token", "db_password", "aws_secret_access_key", "apiKey", "APIKey", "x-api-key"),
    *("OAuthToken", "csrftoken", "dbpassword", "password2", "new.password", "Set-Cookie", "client secret", "SESSIONID"),
)
HARMLESS_KEYS = (
    *("password_hint", "tokens_used", "max_tokens", "token_limit", "tokenCount", "secretary", "secret_name", "key"),
    *("author", "authorization_url", "monkey", "keyboard", "cookie_domain", "token_expires_at", "", "user", "_-_"),
)


@pytest.mark.parametrize("key", SECRET_KEYS)
def test_a_key_is_secret_by_its_words(key: str) -> None:
    assert redact({key: 1}) == {key: MASK}


@pytest.mark.parametrize("key", HARMLESS_KEYS)
def test_a_key_that_only_resembles_a_secret_one_is_shown(key: str) -> None:
    assert redact({key: 1}) == {key: 1}


def test_every_header_is_masked_but_a_few() -> None:
    headers = {"X-Upstream": "a", "Authorization": "b", "Content-Type": "application/json"}
    masked = {"X-Upstream": MASK, "Authorization": MASK, "Content-Type": "application/json"}
    assert redact({"headers": headers, "X-Upstream": "a"}) == {"headers": masked, "X-Upstream": "a"}


LISTS_OF_HEADERS: dict[str, tuple[list[Any], list[Any]]] = {
    "pairs": ([["X-Upstream", "abcd"], ["Accept", "d"]], [["X-Upstream", MASK], ["Accept", "d"]]),
    "named": (
        [{"name": "X-Upstream", "value": "abcd", "n": 1}, {"name": "Accept", "value": "d"}],
        [{"name": "X-Upstream", "value": MASK, "n": 1}, {"name": "Accept", "value": "d"}],
    ),
    "objects": ([{"X-Upstream": "abcd", "Accept": "d"}, {}], [{"X-Upstream": MASK, "Accept": "d"}, {}]),
    "lines": (["X-Upstream:abcd", "Accept: d", "X-Name"], [f"X-Upstream: {MASK}", "Accept: d", "X-Name"]),
    "others": ([["X-Upstream", "a", "b"], 1, None, [1, 2]], [["X-Upstream", "a", "b"], 1, None, [1, 2]]),
}


@pytest.mark.parametrize(("headers", "masked"), LISTS_OF_HEADERS.values(), ids=LISTS_OF_HEADERS)
def test_headers_in_a_list_are_masked_found_and_restored(headers: list[Any], masked: list[Any]) -> None:
    document = {"extra_headers": headers, "pairs": headers}
    shown = redact(document)
    assert shown == {"extra_headers": masked, "pairs": headers}
    assert find_secrets(document) == (("abcd",) if headers != masked else ())
    assert restore(shown, document, "params") == document
    if headers != masked:
        edited = {**shown, "password": "own"}
        assert redact(restore(edited, {**document, "password": "old"}, "params")) == redact(edited)
        with pytest.raises(InvalidInput, match="write its value in again"):
            restore({**shown, "extra_headers": masked[::-1]}, document, "params")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://ann:pa@ss@db.example/x", f"https://{MASK}@db.example/x"),
        ("see postgres://ann:word@db:5432/app now", f"see postgres://{MASK}@db:5432/app now"),
        ("https://a.example/x?page=2&api_key=k7&n=1", f"https://a.example/x?page=2&api_key={MASK}&n=1"),
        ("https://a.example/@ann?q=a@b", "https://a.example/@ann?q=a@b"),
        ("ann:word@db", "ann:word@db"),
    ],
)
def test_credentials_within_a_url_are_masked(url: str, shown: str) -> None:
    assert redact([url]) == [shown]
    assert redact(redact([url])) == [shown]


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


ORIGINAL: dict[str, Any] = {
    "url": "https://ann:word@a.example/",
    "headers": {"Authorization": "b", "X-Upstream": "c", "Accept": "d"},
    "list": [{"token": "y", "n": None}],
    "token": None,
}


def test_an_unchanged_document_gets_its_secrets_back() -> None:
    assert restore(redact(ORIGINAL), ORIGINAL, "params") == ORIGINAL


def test_a_secret_can_be_replaced_beside_a_masked_one() -> None:
    edited = redact(ORIGINAL)
    edited["headers"]["Authorization"] = "new"
    expected = {**ORIGINAL, "headers": {**ORIGINAL["headers"], "Authorization": "new"}}
    assert restore(edited, ORIGINAL, "params") == expected


@pytest.mark.parametrize(
    "change",
    [
        {"url": "https://b.example/"},
        {"url": f"https://{MASK}@b.example/"},
        {"headers": {**redact(ORIGINAL)["headers"], "X-Upstream": "other"}},
        {"headers": {**redact(ORIGINAL)["headers"], "X-New": "other"}},
        {"headers": {**redact(ORIGINAL)["headers"], "Accept": "other"}},
        {"list": [{"token": MASK, "n": 1}]},
        {"list": [*redact(ORIGINAL)["list"], 1]},
        {"more": 1},
        {"proxy_password": "own"},
    ],
    ids=str,
)
def test_no_secret_is_restored_beside_a_changed_value(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="write its value in again"):
        restore({**redact(ORIGINAL), **change}, ORIGINAL, "params")


@pytest.mark.parametrize(
    ("secret", "replaced"),
    [
        ({"connection_string": "postgres://a.example/db"}, {"connection_string": "postgres://b.example/db"}),
        ({"connection_string": "Server=a;Database=db"}, {"connection_string": "Server=b;Database=db"}),
        ({"credentials": {"host": "a.example"}}, {"credentials": {"host": "b.example"}}),
        ({"url": "https://user:word@a.example/"}, {"url": "https://b.example\\@a.example/"}),
    ],
    ids=str,
)
def test_no_secret_is_restored_beside_a_changed_secret_that_may_name_a_destination(secret: Any, replaced: Any) -> None:
    with pytest.raises(InvalidInput, match="write its value in again"):
        restore({**replaced, "password": MASK}, {**secret, "password": "hidden"}, "params")


def test_a_document_without_masks_may_change_in_any_way() -> None:
    edited = {"url": "https://b.example/", "headers": {"Authorization": "own"}, "note": MASK}
    assert restore(edited, ORIGINAL, "params") == edited


def test_secrets_are_found_in_texts_in_any_quoting() -> None:
    params = {"password": "p'w\"d/1", "headers": {"Authorization": "Bearer abcdef"}, "pin_token": 4711, "otp": "123"}
    secrets = find_secrets(params)
    quoted = repr(params["password"]) + json.dumps(params["password"]) + quote(params["password"], safe="")
    text = scrub(f"{quoted} abcdef 4711 123", secrets)
    assert [part for part in ("w\\", "d/1", "d%2F1", "abcdef", "4711") if part in text] == []
    assert text.endswith(" 123")


def test_a_text_is_hidden_as_a_whole_if_the_secrets_are_too_many_to_look_for() -> None:
    secrets = find_secrets({"secrets": [f"word-{number}" for number in range(10_000)]})
    assert (scrub("word-1 and word-9999", secrets), scrub("", secrets)) == (MASK, "")


def test_a_long_text_is_searched_for_masks_once() -> None:
    text = "?a" * 200_000 + MASK  # quadratic in a pattern without a bound
    assert restore({"text": text}, {"text": "", "token": "x"}, "params") == {"text": text}


def test_a_document_has_a_secret_only_if_it_is_not_empty() -> None:
    documents = ({"token": ""}, {"token": None}, {"token": []}, {"a": {"token": "x"}}, {"headers": {"X-Id": "x"}})
    assert [has_secret(document) for document in documents] == [False, False, False, True, True]


def test_a_secret_can_be_replaced_and_removed() -> None:
    assert restore({"token": "new"}, {"token": "old"}, "params") == {"token": "new"}
    assert restore({}, {"token": "old"}, "params") == {}


@pytest.mark.parametrize("edited", [{"token": MASK}, {"b": {"token": MASK}}, {"l": [{"token": MASK}, 1]}])
def test_a_mask_without_an_original_is_refused_by_its_place(edited: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        restore(edited, {"l": [{"token": "x"}]}, "params")
    assert refused.value.errors[0]["loc"][0] == "params"
    assert refused.value.errors[0]["loc"][-1] == "token"
