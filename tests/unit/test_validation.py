"""The gate: what comes in is clean, or refused by the name of its field; what handlers leave is always storable."""

from __future__ import annotations

import json
import uuid
from collections import OrderedDict, namedtuple
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any

import pytest
from django.test import override_settings
from django.utils.safestring import mark_safe

from jobs.errors import InvalidInput, NotFound
from jobs.validation import fields, sanitize
from tests.support.param_ids import make_test_id

pytestmark = pytest.mark.once

NAN, INFINITY = float("nan"), float("inf")
SURROGATE = "\ud800"


def nest_value(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


def cyclic() -> list[Any]:
    value: list[Any] = [1]
    value.append(value)
    return value


def unfolding(levels: int) -> list[Any]:
    """A few dozen lists that stand for billions of items."""
    value: list[Any] = [1]
    for _ in range(levels):
        value = [value, value]
    return value


class Colour(Enum):
    RED = "red"
    ODD = object()


class Level(IntEnum):
    ONE = 1


class Word(StrEnum):
    SEA = "sea"


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


class Chatty:
    def __repr__(self) -> str:
        return "chatty " + "x" * 10_000_000


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize("value", [None, 1, True, b"bytes", ["a"], {}, NAN], ids=make_test_id)
def test_text_is_text_and_nothing_else(value: Any) -> None:
    with pytest.raises(InvalidInput, match="name: must be text"):
        fields.parse_text(value, "name")


@pytest.mark.parametrize("value", ["a\0b", "\0", SURROGATE, "a\udfff", "é\udc80"], ids=make_test_id)
def test_text_that_no_database_stores_is_refused(value: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        fields.parse_text(value, "name")
    assert caught.value.errors[0]["loc"] == ["name"]


@pytest.mark.parametrize("value", ["", " ", "\n\t"], ids=make_test_id)
def test_empty_text_is_refused_unless_allowed(value: str) -> None:
    assert fields.parse_text(value, "reason", allow_empty=True) == value
    with pytest.raises(InvalidInput, match="must not be empty"):
        fields.parse_text(value, "reason")


def test_text_is_measured_in_characters() -> None:
    assert fields.parse_text("é" * 5, "name", max_length=5) == "é" * 5
    with pytest.raises(InvalidInput, match="longer than 5 characters"):
        fields.parse_text("é" * 6, "name", max_length=5)


@pytest.mark.parametrize(
    "value", ["a\nb", "a\rb", "a\tb", "\x1b[31mred", "a\x7f", "a\x85b", "a\u2028b"], ids=make_test_id
)
def test_a_single_line_has_no_control_characters(value: str) -> None:
    assert fields.parse_text(value, "name") == value
    with pytest.raises(InvalidInput, match="control character"):
        fields.parse_text(value, "name", single_line=True)


@pytest.mark.parametrize("value", ["plain", "=1+1", "<script>", "naïve 日本 🌊", " padded "], ids=make_test_id)
def test_ordinary_text_passes_unchanged(value: str) -> None:
    assert fields.parse_text(value, "name", single_line=True) == value


def test_subclasses_of_text_become_plain_text() -> None:
    assert type(fields.parse_text(mark_safe("<b>"), "name")) is str
    assert type(fields.parse_text(Word.SEA, "name")) is str


@pytest.mark.parametrize("value", [True, False, None, "1", 1.0, NAN, [1], Decimal(1)], ids=make_test_id)
def test_an_integer_is_neither_a_boolean_nor_a_float(value: Any) -> None:
    with pytest.raises(InvalidInput, match="n: must be a whole number"):
        fields.parse_integer(value, "n")


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**400], ids=make_test_id)
def test_an_integer_stays_within_64_bits(value: int) -> None:
    with pytest.raises(InvalidInput, match="must be from"):
        fields.parse_integer(value, "n")
    with pytest.raises(InvalidInput, match="within 64 bits"):
        fields.parse_number(value, "n")


def test_an_integer_stays_within_its_own_range() -> None:
    assert [fields.parse_integer(value, "n", 0, 3) for value in (0, 3)] == [0, 3]
    assert fields.parse_integer(2**63 - 1, "n") == 2**63 - 1
    for value in (-1, 4):
        with pytest.raises(InvalidInput, match="must be from 0 to 3"):
            fields.parse_integer(value, "n", 0, 3)


@pytest.mark.parametrize("value", [NAN, INFINITY, -INFINITY], ids=make_test_id)
def test_a_number_is_finite(value: float) -> None:
    with pytest.raises(InvalidInput, match="finite"):
        fields.parse_number(value, "n")


@pytest.mark.parametrize("value", [True, None, "1.5", [], Decimal(1)], ids=make_test_id)
def test_a_number_is_a_number(value: Any) -> None:
    with pytest.raises(InvalidInput, match="must be a number"):
        fields.parse_number(value, "n")


@pytest.mark.parametrize(
    ("value", "limits", "message"),
    [
        (-0.1, {"minimum": 0}, "at least 0"),
        (1.1, {"maximum": 1}, "at most 1"),
        (0, {"above": 0}, "more than 0"),
    ],
    ids=make_test_id,
)
def test_a_number_keeps_its_limits(value: float, limits: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        fields.parse_number(value, "n", **limits)
    assert fields.parse_number(0.5, "n", **limits) == 0.5


@pytest.mark.parametrize("value", [0, 1, "true", None, []], ids=make_test_id)
def test_a_boolean_is_true_or_false(value: Any) -> None:
    assert fields.parse_boolean(True, "flag") is True
    with pytest.raises(InvalidInput, match="true or false"):
        fields.parse_boolean(value, "flag")


NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "value",
    [
        NOON,
        NOON.astimezone(timezone(timedelta(hours=5, minutes=30))),
        "2030-01-31T12:00:00Z",
        "2030-01-31T12:00:00.000000000Z",
        "2030-01-31T12:00Z",
        "2030-01-31 12:00:00+00:00",
        "2030-01-31T14:00:00+02:00",
        "2030-01-31T07:00:00-0500",
    ],
    ids=make_test_id,
)
def test_a_moment_comes_out_in_utc(value: Any) -> None:
    moment = fields.parse_time(value, "not_before")
    assert moment == NOON
    assert moment.tzinfo is UTC


@pytest.mark.parametrize(
    "value",
    [
        None,
        0,
        1893456000,
        True,
        date(2030, 1, 31),
        datetime(2030, 1, 31, 12),
        "",
        "tomorrow",
        "2030-01-31",
        "2030-01-31T12:00:00",
        "2030-02-30T12:00:00Z",
        "2030-01-31T25:00:00Z",
        "2030-01-31T12:00:60Z",
        "2030-01-31T12:00:00+99:00",
        "2030-01-31T12:00:00 Europe/Berlin",
        "2030-W05-4T12:00:00Z",
        "2030-01-31☃12:00:00Z",
        "２０３０-01-31T12:00:00Z",
        "2030-01-31T12:00:00Z\n",
        "2030-01-31T12:00:00Z\0",
        "+02030-01-31T12:00:00Z",
        "9" * 100_000,
    ],
    ids=make_test_id,
)
def test_a_moment_that_is_naive_or_impossible_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        fields.parse_time(value, "not_before")
    assert caught.value.errors[0]["loc"] == ["not_before"]


@pytest.mark.parametrize(
    "value",
    [
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-12:00",
        "9999-12-31T23:59:59Z",
        "0000-01-01T00:00:00Z",
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
        datetime.max.replace(tzinfo=UTC),
    ],
    ids=make_test_id,
)
def test_a_moment_stays_within_the_calendar_in_every_time_zone(value: Any) -> None:
    with pytest.raises(InvalidInput):
        fields.parse_time(value, "not_before")


def test_a_json_value_is_copied() -> None:
    given = {"a": [1, 2.5, None, True, "x", {"b": "é🌊"}], "": {}, "c": []}
    copy = fields.parse_json_value(given, "params")
    assert copy == given
    assert copy is not given
    assert copy["a"] is not given["a"]
    assert copy["a"][5] is not given["a"][5]  # type: ignore[index]


@pytest.mark.parametrize(
    ("value", "copy"),
    [
        ((1, (2,)), [1, [2]]),
        (Point(1, 2), [1, 2]),
        (OrderedDict(a=1), {"a": 1}),
        (Colour.RED, "red"),
        (Level.ONE, 1),
        (Word.SEA, "sea"),
        ({Word.SEA: mark_safe("<b>")}, {"sea": "<b>"}),
        (NOON, "2030-01-31T12:00:00Z"),
        (datetime(2030, 1, 31, 14, 0, 0, 5, timezone(timedelta(hours=2))), "2030-01-31T12:00:00.000005Z"),
        (date(2030, 1, 31), "2030-01-31"),
        (time(12, 30), "12:30:00"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Decimal("1.10"), "1.10"),
        (2**63 - 1, 2**63 - 1),
        (-(2**63), -(2**63)),
    ],
    ids=make_test_id,
)
def test_what_python_says_otherwise_becomes_its_json(value: Any, copy: Any) -> None:
    for given, expected in ((value, copy), ({"k": value}, {"k": copy}), ([value], [copy])):
        result = fields.parse_json_value(given, "params")
        assert result == expected
        assert json.loads(json.dumps(result)) == expected


def test_plain_types_come_out_of_subclasses() -> None:
    copy = fields.parse_json_value({Word.SEA: [Level.ONE, mark_safe("x"), OrderedDict()]}, "params")
    assert type(next(iter(copy))) is str
    assert [type(item) for item in copy["sea"]] == [int, str, dict]


NOT_JSON = [
    NAN,
    INFINITY,
    -INFINITY,
    2**63,
    -(2**63) - 1,
    10**5000,
    "a\0b",
    SURROGATE,
    {"a\0": 1},
    {SURROGATE: 1},
    {1: "a"},
    {None: "a"},
    {b"a": 1},
    {("a",): 1},
    b"bytes",
    {1, 2},
    object(),
    object,
    Hostile(),
    1j,
    timedelta(1),
    range(3),
    Decimal("NaN"),
    Decimal("Infinity"),
    datetime(2030, 1, 31),
    datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
    Colour.ODD,
    iter([]),
]


@pytest.mark.parametrize("value", NOT_JSON, ids=make_test_id)
def test_what_is_no_json_is_refused_wherever_it_hides(value: Any) -> None:
    for given in (value, [value], {"k": value}, {"a": [{"b": (value,)}]}):
        with pytest.raises(InvalidInput) as caught:
            fields.parse_json_value(given, "params")
        assert caught.value.errors[0]["loc"][0] == "params"
        json.dumps(caught.value.errors, ensure_ascii=False).encode()  # the answer itself can be sent


def test_a_refusal_leads_to_the_place() -> None:
    with pytest.raises(InvalidInput) as caught:
        fields.parse_json_value({"a": [1, {"b": NAN}]}, "params")
    assert caught.value.errors[0]["loc"] == ["params", "a", 1, "b"]
    with pytest.raises(InvalidInput) as caught:
        fields.parse_json_value({"x\0": 1}, ("jobs", 3, "params"))
    assert caught.value.errors[0]["loc"] == ["jobs", 3, "params", "x\ufffd"]


def test_depth_is_counted_in_containers_and_bounded_by_the_settings() -> None:
    assert fields.parse_json_value(nest_value(32), "params") == nest_value(32)
    with pytest.raises(InvalidInput, match="nested too deeply"):
        fields.parse_json_value(nest_value(33), "params")
    with override_settings(JOBSCHEDULER={"MAX_PARAMS_DEPTH": 2}):
        fields.parse_json_value(nest_value(2), "params")
        with pytest.raises(InvalidInput, match="nested too deeply"):
            fields.parse_json_value(nest_value(3), "params")
    with pytest.raises(InvalidInput, match="nested too deeply"):
        fields.parse_json_value([[]], "params", max_depth=1)


@pytest.mark.parametrize("depth", [None, 10**6], ids=make_test_id)
def test_hostile_depth_is_a_clean_refusal(depth: int | None) -> None:
    with pytest.raises(InvalidInput, match="nested too deeply"):
        fields.parse_json_value(nest_value(100_000), "params", max_depth=depth)


def test_a_structure_that_contains_itself_is_refused() -> None:
    value: dict[str, Any] = {}
    value["me"] = value
    for given in (value, cyclic()):
        with pytest.raises(InvalidInput):
            fields.parse_json_value(given, "params")


def test_a_small_graph_that_unfolds_into_a_huge_tree_is_refused() -> None:
    with pytest.raises(InvalidInput, match="larger than 1048576 bytes"):
        fields.parse_json_value(unfolding(31), "params")


@pytest.mark.parametrize(
    "value", ["x" * 1025, "é" * 513, {"x" * 1025: 1}, ["x" * 100] * 11, [1] * 520], ids=make_test_id
)
def test_size_is_bounded(value: Any) -> None:
    fields.parse_json_value(value, "params")
    with pytest.raises(InvalidInput, match="larger than 1024 bytes"):
        fields.parse_json_value(value, "params", max_bytes=1024)


ORDINARY_DOCUMENTS: dict[str, Any] = {
    "mixed": {"a": ["x" * 50, 1, 2.5, None], "é": {"flags": [True, False], "from": "…" * 20}},
    "records": [{"id": number, "name": "ann"} for number in range(1000)],
    "coordinates": [[-73.98513 + number, 40.75889] for number in range(1000)],
    "embedding": [0.123456 + number for number in range(1000)],
    "pixels": [number % 256 for number in range(1000)],
    "flags": {f"option_{number}": True for number in range(1000)},
    "table": {"rows": [["x", number, None] for number in range(100, 1000)], "columns": ["name", "number", "note"]},
}


@pytest.mark.parametrize("name", ORDINARY_DOCUMENTS)
def test_an_ordinary_document_that_fits_into_a_body_is_never_refused_for_its_size(name: str) -> None:
    value = ORDINARY_DOCUMENTS[name]
    size = len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())
    assert fields.parse_json_value(value, "params", max_bytes=size) == value


def test_sixty_thousand_floats_are_params() -> None:
    assert len(fields.parse_json_object({"v": [1 / (n + 3) for n in range(60_000)]}, "params")["v"]) == 60_000


@pytest.mark.parametrize("node", [{}, [], {"": 0}, [0], {"a": {}}], ids=make_test_id)
def test_tiny_containers_cost_more_than_their_json(node: Any) -> None:
    count = 600_000 // (len(json.dumps(node, separators=(",", ":"))) + 1)
    with pytest.raises(InvalidInput, match="larger than 1048576 bytes"):
        fields.parse_json_object({"x": [node] * count}, "params")
    assert sanitize.sanitize_json([node] * count)["truncated"] is True


def test_tiny_containers_beside_a_value_that_json_cannot_represent_are_bounded_too() -> None:
    assert sanitize.sanitize_json([object(), [[]] * 200_000])["truncated"] is True


def test_containers_are_counted_in_the_text_of_a_body_and_brackets_within_strings_are_not() -> None:
    for text in (rb'{"a": "[[[{{{", "b\"[[": "\"[[[["}', b'["' + b"[" * 1000, b'"' + b'\\"[' * 1000):
        fields.require_few_containers(text, 2)
    with pytest.raises(InvalidInput, match="body: has more than 2 objects and lists"):
        fields.require_few_containers(b'[{"a": []}]', 2)


def test_the_containers_of_any_text_are_counted_in_linear_time() -> None:
    """In quadratic time, an unterminated string of escaped quotes would take hours."""
    for text in (b'"' + b'\\"[' * 2**20, b'"' * 2**20 + b"[" * 10, b"\\" * 2**20 + b'"[' * 2**10):
        with suppress(InvalidInput):
            fields.require_few_containers(text, 1)


@pytest.mark.parametrize("value", [None, [], "{}", 1, True, [("a", 1)]], ids=make_test_id)
def test_a_json_object_is_an_object(value: Any) -> None:
    assert fields.parse_json_object({"a": 1}, "params") == {"a": 1}
    with pytest.raises(InvalidInput, match="params: must be an object"):
        fields.parse_json_object(value, "params")


@pytest.mark.parametrize(
    ("value", "number"),
    [(0, 0), (100, 100), ("LOW", 25), ("normal", 50), ("High", 75), ("URGENT", 100)],
    ids=make_test_id,
)
def test_a_priority_is_a_number_or_a_name(value: Any, number: int) -> None:
    assert fields.parse_priority(value) == number


@pytest.mark.parametrize("value", [-1, 101, True, 50.0, "50", "", "highest", None, 10**30, "LOW\0"], ids=make_test_id)
def test_any_other_priority_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="priority"):
        fields.parse_priority(value)


@pytest.mark.parametrize("value", ["default", "a", "A.b-c_9", "x" * 64], ids=make_test_id)
def test_a_tenant_is_a_short_plain_name(value: str) -> None:
    assert fields.parse_tenant(value) == value


@pytest.mark.parametrize(
    "value", ["", "x" * 65, "a b", "a/b", "é", "a\n", "a\0", "１", None, 1, True], ids=make_test_id
)
def test_any_other_tenant_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="tenant"):
        fields.parse_tenant(value)


@pytest.mark.parametrize("value", ["book-1", "x" * 200, "Büro 5 – 日本", "a:b?c#d%2F"], ids=make_test_id)
def test_a_target_is_a_line_of_text(value: str) -> None:
    assert fields.parse_target(value) == value


@pytest.mark.parametrize(
    "value", ["", " ", "x" * 201, "a/b", "a\nb", "a\0", SURROGATE, "\x7f", None, 5], ids=make_test_id
)
def test_any_other_target_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="target"):
        fields.parse_target(value)


@pytest.mark.parametrize("value", ["", "x" * 201, "a\nb", "a\0", SURROGATE, None, 5], ids=make_test_id)
def test_an_identifier_is_a_line_of_text(value: Any) -> None:
    assert fields.parse_identifier("reports/daily", "job_type") == "reports/daily"
    with pytest.raises(InvalidInput, match="job_type"):
        fields.parse_identifier(value, "job_type")


def test_tags_keep_their_order_and_lose_their_doubles() -> None:
    assert fields.parse_tags(["b", "a", "b"]) == ["b", "a"]
    assert fields.parse_tags(()) == []
    assert len(fields.parse_tags([f"{i:064}" for i in range(32)])) == 32


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (None, ["tags"]),
        ("red", ["tags"]),
        ({"a"}, ["tags"]),
        ({"a": 1}, ["tags"]),
        (["x"] * 33, ["tags"]),
        (["a", ""], ["tags", 1]),
        (["x" * 65], ["tags", 0]),
        (["a", 5], ["tags", 1]),
        (["a\nb"], ["tags", 0]),
        ([SURROGATE], ["tags", 0]),
    ],
    ids=make_test_id,
)
def test_any_other_tags_are_refused_with_their_place(value: Any, place: list[Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        fields.parse_tags(value)
    assert caught.value.errors[0]["loc"] == place


@pytest.mark.parametrize("value", ["a", " ", "x" * 255, "!~ {}"], ids=make_test_id)
def test_an_idempotency_key_is_printable_ascii(value: str) -> None:
    assert fields.parse_idempotency_key(value) == value


@pytest.mark.parametrize(
    "value", ["", "x" * 256, "é", "a\n", "a\0", "\x7f", "\t", SURROGATE, None, 1, b"a"], ids=make_test_id
)
def test_any_other_idempotency_key_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="idempotency_key"):
        fields.parse_idempotency_key(value)


def test_constraints_are_known_booleans() -> None:
    assert fields.parse_constraints({}) == {}
    assert fields.parse_constraints({"cpu_heavy": True, "network_heavy": False}) == {
        "cpu_heavy": True,
        "network_heavy": False,
    }


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (None, ["constraints"]),
        ([], ["constraints"]),
        ({"cpu_heavy": 1}, ["constraints", "cpu_heavy"]),
        ({"cpu_heavy": None}, ["constraints", "cpu_heavy"]),
        ({"gpu_heavy": True}, ["constraints", "gpu_heavy"]),
        ({SURROGATE: True}, ["constraints", "\ufffd"]),
        ({"x" * 500: True}, ["constraints", "x" * 99 + "…"]),
    ],
    ids=make_test_id,
)
def test_any_other_constraint_is_refused(value: Any, place: list[Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        fields.parse_constraints(value)
    assert caught.value.errors[0]["loc"] == place


def test_a_job_id_is_a_uuid_in_either_spelling() -> None:
    known = uuid.uuid4()
    assert [fields.parse_id(value) for value in (known, str(known), known.hex, str(known).upper())] == [known] * 4


@pytest.mark.parametrize(
    "value",
    [
        None,
        0,
        "",
        "1",
        "not-a-uuid",
        "{00000000-0000-0000-0000-000000000001}",
        "urn:uuid:00000000-0000-0000-0000-000000000001",
        "00000000-0000-0000-0000-00000000000g",
        "00000000-0000-0000-0000-0000000000010",
        "１" * 32,
        "0_0" * 10 + "00",
        " 0000000000000000000000000000000",
        "00000000-0000-0000-0000-000000000001\n",
        SURROGATE,
        "\0",
        b"0" * 16,
        ["a"],
        "9" * 100_000,
    ],
    ids=make_test_id,
)
def test_a_malformed_job_id_is_the_id_of_no_job(value: Any) -> None:
    with pytest.raises(NotFound):
        fields.parse_id(value)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"a": [1, -2.5e3, null, true, "\xc3\xa9"]}', {"a": [1, -2500.0, None, True, "é"]}),
        (' {"a": "\\ud83c\\udf0a \\u00e9"} ', {"a": "🌊 é"}),
        ("9223372036854775807", 2**63 - 1),
        ('"\\\\u0000"', "\\u0000"),
        ("[]", []),
    ],
    ids=make_test_id,
)
def test_well_formed_json_is_decoded(data: Any, value: Any) -> None:
    assert fields.decode_json(data) == value


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "json_invalid"),
        (b"{", "json_invalid"),
        (b"{} {}", "json_invalid"),
        (b"{'a': 1}", "json_invalid"),
        (b'{"a": 1,}', "json_invalid"),
        (b'"\xff"', "json_invalid"),
        (b'"\xed\xa0\x80"', "json_invalid"),
        (f'"{SURROGATE}"', "json_invalid"),
        (b"\xef\xbb\xbf{}", "json_invalid"),
        ("\ufeff{}", "json_invalid"),
        ("{}".encode("utf-16"), "json_invalid"),
        (b'"a\0b"', "json_invalid"),
        (b'"a\nb"', "json_invalid"),
        (b"NaN", "json_invalid"),
        (b'{"a": Infinity}', "json_invalid"),
        (b"[-Infinity]", "json_invalid"),
        (b"1e999", "finite_number"),
        (b"-1e999", "finite_number"),
        (b"9223372036854775808", "int_size"),
        (b"-9223372036854775809", "int_size"),
        (b'{"a": ' + b"9" * 100_000 + b"}", "int_size"),
        (b'{"a": 1, "a": 2}', "duplicate_key"),
        (b'[{"b": {"a": 1, "\\u0061": 2}}]', "duplicate_key"),
        (b'"\\u0000"', "string_unicode"),
        (b'{"\\u0000": 1}', "string_unicode"),
        (b'["\\ud800"]', "string_unicode"),
        (b'["\\uDC00\\uD800"]', "string_unicode"),
        (b"[" * 100_000, "too_deep"),
        (b"[" * 100_000 + b"]" * 100_000, "too_deep"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "too_deep"),
    ],
    ids=make_test_id,
)
def test_anything_but_strict_json_is_refused(data: Any, kind: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        fields.decode_json(data, "body")
    assert caught.value.errors[0]["loc"][0] == "body"
    assert caught.value.errors[0]["type"] == kind


def test_a_byte_order_mark_is_called_by_its_name() -> None:
    with pytest.raises(InvalidInput, match="byte order mark"):
        fields.decode_json(b"\xef\xbb\xbf{}")


def test_a_duplicate_among_very_many_keys_is_found_quickly() -> None:
    keys = ", ".join(f'"{i}": 1' for i in range(100_000))
    with pytest.raises(InvalidInput) as caught:
        fields.decode_json(f'{{{keys}, "99999": 2}}')
    assert caught.value.errors[0]["loc"] == ["body", "99999"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ("a\0b", "a\ufffdb"),
        (SURROGATE + "x", "\ufffdx"),
        (ValueError("bad\0thing"), "bad\ufffdthing"),
        (None, "None"),
        (Hostile(), "<Hostile>"),
        (10**5000, "<int>"),
        ("0123456789", "0123456789"),
        ("0123456789a", "012345678…"),
        ("\0" * 11, "\ufffd" * 9 + "…"),
    ],
    ids=make_test_id,
)
def test_text_is_sanitized_within_its_length(value: Any, text: str) -> None:
    assert sanitize.sanitize_text(value, max(len(text), 10)) == text


def test_no_length_is_too_short_for_sanitized_text() -> None:
    assert [sanitize.sanitize_text("abc", length) for length in (0, 1, 2)] == ["", "…", "a…"]


@pytest.mark.parametrize(
    ("value", "sanitized"),
    [
        (None, None),
        ({"a": [1, 2.5, True]}, {"a": [1, 2.5, True]}),
        ({"ok": 1, "bad": NAN}, {"ok": 1, "bad": "nan"}),
        ([INFINITY, "a\0b", SURROGATE], ["inf", "a\ufffdb", "\ufffd"]),
        ({1: "a", None: "b", "c\0": "d"}, {"1": "a", "None": "b", "c\ufffd": "d"}),
        ({"x": {1}}, {"x": [1]}),
        ([b"raw", 1j], ["b'raw'", "1j"]),
        ([2**63], ["9223372036854775808"]),
        ([NOON, Decimal("1.5"), b""], ["2030-01-31T12:00:00Z", "1.5", "b''"]),
        ([Word.SEA, Level.ONE, NAN], ["sea", 1, "nan"]),
        (10**5000, "<int>"),
        ((x for x in ()), None),
    ],
    ids=make_test_id,
)
def test_json_is_sanitized_value_by_value(value: Any, sanitized: Any) -> None:
    result = sanitize.sanitize_json(value)
    if sanitized is not None or value is None:
        assert result == sanitized
    assert fields.parse_json_value(result, "result") == result


@pytest.mark.parametrize(
    "value",
    [
        Hostile(),
        [Hostile(), {"k": Hostile()}, {Hostile(): 1}],
        Chatty(),
        [Chatty()] * 3,
        nest_value(100_000),
        [nest_value(100_000), NAN],
        cyclic(),
        [cyclic(), NAN],
        unfolding(31),
        [unfolding(31), NAN],
        "x" * 3_000_000,
        ["\0" * 3_000_000],
        {str(i): i for i in range(200_000)},
        {i: i for i in range(200_000)},
        [10**5000] * 3,
        Colour.ODD,
        *NOT_JSON,
    ],
    ids=make_test_id,
)
def test_whatever_a_handler_returns_is_storable_and_bounded(value: Any) -> None:
    result = sanitize.sanitize_json(value)
    assert fields.parse_json_value(result, "result") == result
    assert len(json.dumps(result, ensure_ascii=False).encode()) < 2 * 2**20


def test_what_is_too_large_says_so() -> None:
    result = sanitize.sanitize_json(["x" * 2_000_000])
    assert result["truncated"] is True
    assert result["type"] == "list"
    assert len(result["preview"]) <= 1000


def test_a_container_that_contains_itself_ends_as_text() -> None:
    first, second = sanitize.sanitize_json(cyclic())
    assert first == 1
    assert second.startswith("[1, [1, ")
