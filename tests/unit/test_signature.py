"""Typed params from a handler's signature: what is refused, what the handler gets, what the command line means."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import Field

from jobs.errors import InvalidParams
from jobs.registry import Signature

pytestmark = pytest.mark.once

if TYPE_CHECKING:
    from nowhere import Context, Story  # type: ignore[import-not-found]


class Colour(StrEnum):
    RED = "red"


@dataclass
class Page:
    number: int


def generate(ctx: Context, topic: str, words: int = 500) -> Story: ...


def every_type(
    *,
    at: datetime,
    took: timedelta,
    price: Decimal,
    book: UUID,
    colour: Colour,
    page: Page,
    ids: set[int],
    share: float,
    size: Literal["A4", "A5"],
) -> None: ...


def list_refusals(func: Callable[..., Any], params: dict[str, Any]) -> list[tuple[list[str | int], str]]:
    with pytest.raises(InvalidParams) as caught:
        Signature(func).validate(params)
    assert all(error["msg"] for error in caught.value.errors)
    return [(error["loc"], error["type"]) for error in caught.value.errors]


# validate


def test_valid_params_come_back_as_they_were_without_the_defaults() -> None:
    params = {"topic": "sea"}
    assert Signature(generate).validate(params) is params
    assert params == {"topic": "sea"}


def test_every_wrong_field_is_named_at_once() -> None:
    assert list_refusals(generate, {"words": "12", "wrods": 1}) == [
        (["params", "topic"], "missing"),
        (["params", "words"], "int_type"),
        (["params", "wrods"], "extra_forbidden"),
    ]


@pytest.mark.parametrize("value", ["12", True, 12.5, None, [1]])
def test_an_integer_is_an_integer_and_nothing_else(value: Any) -> None:
    [(loc, _kind)] = list_refusals(generate, {"topic": "sea", "words": value})
    assert loc == ["params", "words"]


@pytest.mark.parametrize("value", [1, "true", "yes", None])
def test_a_boolean_is_true_or_false_and_nothing_else(value: Any) -> None:
    def handler(dry: bool) -> None: ...

    assert [loc for loc, _kind in list_refusals(handler, {"dry": value})] == [["params", "dry"]]


def test_an_error_inside_a_value_is_named_by_its_path() -> None:
    def handler(pages: list[Page]) -> None: ...

    assert list_refusals(handler, {"pages": [{"number": 1}, {"number": "2"}]}) == [
        (["params", "pages", 1, "number"], "int_type")
    ]


def test_an_error_does_not_repeat_the_value() -> None:
    with pytest.raises(InvalidParams) as caught:
        Signature(generate).validate({"topic": ["hunter2"]})
    assert "hunter2" not in repr(caught.value.errors) + str(caught.value)


@pytest.mark.parametrize("value", [datetime(2030, 1, 1, tzinfo=UTC), {1, 2}, object(), float("nan"), float("inf")])
def test_what_is_not_json_is_refused_even_where_anything_goes(value: Any) -> None:
    def handler(first: Any, second: Any) -> None: ...

    assert list_refusals(handler, {"first": 1, "second": value}) == [(["params", "second"], "json_type")]


def test_a_value_that_contains_itself_is_refused() -> None:
    def handler(tree: Any) -> None: ...

    tree: list[Any] = []
    tree.append(tree)
    assert list_refusals(handler, {"tree": tree}) == [(["params", "tree"], "json_type")]


def test_half_a_surrogate_pair_is_refused() -> None:
    assert list_refusals(generate, {"topic": "\ud800"}) == [(["params"], "json_invalid")]


@pytest.mark.parametrize("params", [[], None, "topic"])
def test_params_that_are_no_object_are_refused(params: Any) -> None:
    def handler(topic: str = "sea") -> None: ...

    assert list_refusals(handler, params) == [(["params"], "dict_type")]


def test_a_handler_without_parameters_takes_none() -> None:
    def handler() -> None: ...

    assert Signature(handler).validate({}) == {}
    assert Signature(handler).parse_arguments({}) == {}
    assert list_refusals(handler, {"topic": "sea"}) == [(["params", "topic"], "extra_forbidden")]


def test_an_unannotated_parameter_takes_any_json_value() -> None:
    def handler(thing) -> None: ...  # type: ignore[no-untyped-def]

    for value in (None, True, 1, 1.5, "text", [1, [2]], {"a": None}):
        assert Signature(handler).validate({"thing": value}) == {"thing": value}
        assert Signature(handler).parse_arguments({"thing": value}) == {"thing": value}


def test_a_keyword_handler_takes_further_names() -> None:
    def handler(topic: str, **rest: Any) -> None: ...

    params = {"topic": "sea", "colour": "red", "deep": {"a": [1]}}
    assert Signature(handler).validate(params) is params
    assert Signature(handler).parse_arguments(params) == params


def test_annotated_keywords_are_judged_by_their_annotation() -> None:
    def handler(**counts: int) -> None: ...

    assert Signature(handler).validate({"red": 1}) == {"red": 1}
    assert list_refusals(handler, {"red": "1"}) == [(["params", "red"], "int_type")]


def test_further_names_cannot_stand_in_for_the_context() -> None:
    def handler(ctx: Any, **rest: Any) -> None: ...

    assert list_refusals(handler, {"ctx": 1}) == [(["params", "ctx"], "reserved")]


def test_limits_in_annotations_are_kept() -> None:
    def handler(share: Annotated[int, Field(ge=0, le=100)]) -> None: ...

    assert Signature(handler).validate({"share": 100})
    assert list_refusals(handler, {"share": 101}) == [(["params", "share"], "less_than_equal")]


def test_any_name_may_be_a_parameter() -> None:
    def handler(copy: int, json: str, schema: str, model_config: str, _private: int, self: int) -> None: ...

    params = {"copy": 1, "json": "a", "schema": "b", "model_config": "c", "_private": 2, "self": 3}
    assert Signature(handler).validate(params) is params
    assert Signature(handler).parse_arguments(params) == params


# arguments


def test_the_handler_gets_typed_values_from_json() -> None:
    params = {
        "at": "2030-01-31T12:00:00Z",
        "took": "PT5M",
        "price": "1.10",
        "book": "01920000-0000-7000-8000-000000000000",
        "colour": "red",
        "page": {"number": 7},
        "ids": [1, 2],
        "share": 1,
        "size": "A4",
    }
    signature = Signature(every_type)
    assert signature.validate(params) is params
    assert signature.parse_arguments(params) == {
        "at": datetime(2030, 1, 31, 12, tzinfo=UTC),
        "took": timedelta(minutes=5),
        "price": Decimal("1.10"),
        "book": UUID("01920000-0000-7000-8000-000000000000"),
        "colour": Colour.RED,
        "page": Page(7),
        "ids": {1, 2},
        "share": 1.0,
        "size": "A4",
    }


def test_defaults_are_left_to_the_function() -> None:
    assert Signature(generate).parse_arguments({"topic": "sea"}) == {"topic": "sea"}


def test_params_stored_for_an_older_handler_are_refused_at_the_call() -> None:
    with pytest.raises(InvalidParams):
        Signature(generate).parse_arguments({"subject": "sea"})
    with pytest.raises(InvalidParams):
        Signature(generate).parse_arguments({})


# decoration


def test_ctx_is_no_param() -> None:
    assert Signature(generate).takes_ctx
    assert list(Signature(generate).get_schema()["properties"]) == ["topic", "words"]
    assert list_refusals(generate, {"topic": "sea", "ctx": 1}) == [(["params", "ctx"], "extra_forbidden")]


def test_a_handler_may_do_without_ctx() -> None:
    assert not Signature(every_type).takes_ctx


def test_ctx_may_be_positional_only() -> None:
    def handler(ctx: Any, /, topic: str) -> None: ...

    assert Signature(handler).takes_ctx
    assert Signature(handler).parse_arguments({"topic": "sea"}) == {"topic": "sea"}


def test_the_signature_of_a_wrapped_function_is_that_of_the_function_itself() -> None:
    @functools.wraps(generate)
    def wrapper(*args: Any, **kwargs: Any) -> Any: ...

    assert Signature(wrapper).takes_ctx
    assert list_refusals(wrapper, {"topic": 1}) == [(["params", "topic"], "string_type")]


def takes_a_class(engine: InvalidParams) -> None: ...


def takes_a_callable(call: Callable[[], int]) -> None: ...


def takes_the_unknown(story: Story) -> None: ...


def takes_an_inner_unknown(stories: list[Story]) -> None: ...


def takes_typed_rest(**rest: InvalidParams) -> None: ...


@pytest.mark.parametrize(
    ("func", "name"),
    [
        (takes_a_class, "engine"),
        (takes_a_callable, "call"),
        (takes_the_unknown, "story"),
        (takes_an_inner_unknown, "stories"),
        (takes_typed_rest, "rest"),
    ],
)
def test_a_type_that_json_cannot_carry_is_refused_by_name(func: Callable[..., Any], name: str) -> None:
    with pytest.raises(TypeError, match=rf"test_signature\.{func.__name__}: `{name}` is not annotated with a type"):
        Signature(func)


def takes_star_args(*topics: str) -> None: ...


def takes_positional_only(topic: str, /) -> None: ...


def takes_ctx_second(topic: str, ctx: Any) -> None: ...


def takes_ctx_by_keyword(*, ctx: Any) -> None: ...


@pytest.mark.parametrize(
    ("func", "reason"),
    [
        (takes_star_args, r"cannot take \*topics"),
        (takes_positional_only, "`topic` cannot be positional-only"),
        (takes_ctx_second, "`ctx` must be the first"),
        (takes_ctx_by_keyword, "`ctx` must be the first"),
    ],
)
def test_a_parameter_that_cannot_be_passed_is_refused(func: Callable[..., Any], reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        Signature(func)


# the command line


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (str, "12", "12"),
        (str, '"quoted"', '"quoted"'),
        (str, "null", "null"),
        (str | None, "null", None),
        (str | None, "12", "12"),
        (int, "12", 12),
        (int, "+5", 5),
        (int, "007", 7),
        (int | None, "null", None),
        (float, "1.5", 1.5),
        (float, "1e3", 1000.0),
        (bool, "true", True),
        (bool, "yes", True),
        (bool, "0", False),
        (bool | None, "null", None),
        (list[int], "[1, 2]", [1, 2]),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (Page, '{"number": 7}', {"number": 7}),
        (Literal[1, 2], "2", 2),
        (Colour, "red", "red"),
        (Decimal, "1.10", "1.10"),
        (datetime, "2030-01-31T12:00:00Z", "2030-01-31T12:00:00Z"),
        (Any, "12", 12),
        (Any, "null", None),
        (Any, '{"a": [true]}', {"a": [True]}),
        (Any, "sea", "sea"),
        (Any, "NaN", "NaN"),
        (Any, "1e999", "1e999"),
        (Any | None, "12", 12),
    ],
)
def test_a_word_of_the_command_line_is_typed_by_the_parameter(kind: Any, text: str, value: Any) -> None:
    def handler(thing) -> None: ...  # type: ignore[no-untyped-def]

    handler.__annotations__ = {"thing": kind}
    signature = Signature(handler)
    coerced = signature.coerce_text({"thing": text})
    assert coerced == {"thing": value}
    assert type(coerced["thing"]) is type(value)
    assert signature.validate(coerced) is coerced


def test_an_unannotated_word_is_json_where_it_parses_and_text_elsewhere() -> None:
    def handler(first, second) -> None: ...  # type: ignore[no-untyped-def]

    assert Signature(handler).coerce_text({"first": "[1]", "second": "[1"}) == {"first": [1], "second": "[1"}


def test_further_names_are_typed_by_the_annotation_of_the_keywords() -> None:
    def handler(**labels: str) -> None: ...

    assert Signature(handler).coerce_text({"year": "2030"}) == {"year": "2030"}


@pytest.mark.parametrize("text", ["twelve", "", "1.5", "NaN", "[1]"])
def test_a_word_that_cannot_be_read_is_left_for_validate_to_refuse_by_name(text: str) -> None:
    coerced = Signature(generate).coerce_text({"topic": "sea", "words": text})
    assert [loc for loc, _kind in list_refusals(generate, coerced)] == [["params", "words"]]


def test_an_unknown_word_is_left_for_validate_to_refuse_by_name() -> None:
    coerced = Signature(generate).coerce_text({"topic": "sea", "wrods": "5"})
    assert list_refusals(generate, coerced) == [(["params", "wrods"], "extra_forbidden")]


# schema


def test_the_schema_names_types_and_defaults() -> None:
    schema = Signature(generate).get_schema()
    assert schema["type"] == "object"
    assert schema["required"] == ["topic"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["topic"]["type"] == "string"
    assert schema["properties"]["words"] == {"type": "integer", "title": "Words", "default": 500}


def test_a_default_that_json_cannot_say_is_left_out_of_the_schema() -> None:
    def handler(share: float = float("nan"), thing: Any = object()) -> None: ...  # noqa: B008

    properties = Signature(handler).get_schema()["properties"]
    assert "default" not in properties["share"]
    assert "default" not in properties["thing"]


def test_changing_a_schema_that_was_given_out_changes_no_other() -> None:
    signature = Signature(generate)
    signature.get_schema()["properties"].clear()
    assert list(signature.get_schema()["properties"]) == ["topic", "words"]
