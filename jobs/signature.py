"""What a handler may be given: its parameters, typed by its own signature.

Values are JSON and judged strictly: "12" and true are no integers, ISO text is a time.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Mapping
from inspect import Parameter
from types import SimpleNamespace
from typing import Any, NotRequired, get_type_hints

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import to_json, to_jsonable_python
from typing_extensions import TypedDict

from jobs.errors import InvalidParams

CONTEXT = "ctx"
_typed_dict: Any = TypedDict  # type checkers want its fields written out
_JSON = json.JSONEncoder(allow_nan=False)
_ONE_OF_EACH_KIND: tuple[Any, ...] = ("text", 1, True, [], {})


class Signature:
    """The parameters of one handler, `ctx` left out."""

    def __init__(self, func: Callable[..., Any]) -> None:
        self.takes_ctx, parameters = _parameters(func)
        hints = {each.name: _annotation(func, each) for each in parameters}
        named = [each for each in parameters if each.kind is not Parameter.VAR_KEYWORD]
        self._hints = {each.name: hints[each.name] for each in named}
        self._extra = next((hints[each.name] for each in parameters if each not in named), None)
        self._defaults = {each.name: each.default for each in named if each.default is not Parameter.empty}
        self._required = len(self._defaults) < len(named)
        try:
            self._adapter = self._build(func.__name__)
            self._schema = self._describe()
        except Exception as error:
            raise _unsupported(func, hints, error) from error

    def validate(self, params: dict[str, Any], text: str | None = None) -> dict[str, Any]:
        """Refuse what does not fit; `text` is the params as JSON, from who has it already.

        Defaults are not filled in: they belong to the code that will run the job.
        """
        if params == {} and not self._required:
            return params
        if self.takes_ctx and self._extra is not None and CONTEXT in params:
            raise InvalidParams(["params", CONTEXT], "this name is the handler's context", "reserved")
        self._typed(_encode(params) if text is None else text)
        return params

    def arguments(self, params: dict[str, Any]) -> dict[str, Any]:
        """The values to call the handler with, for params that were stored as JSON."""
        if not params and not self._required:
            return {}
        return self._typed(to_json(params))

    def coerce_text(self, pairs: Mapping[str, str]) -> dict[str, Any]:
        """`key=value` words as JSON values. What does not fit is left for `validate` to refuse by name."""
        return {name: _parse_word(text, self._hints.get(name, self._extra)) for name, text in pairs.items()}

    def schema(self) -> dict[str, Any]:
        return copy.deepcopy(self._schema)

    def _build(self, title: str) -> TypeAdapter[Any]:
        # A TypedDict, not a model: any name may be a parameter (copy, json, _x), and the result is ready to call with.
        fields = {name: NotRequired[hint] if name in self._defaults else hint for name, hint in self._hints.items()}
        closed = self._extra is None
        kind: Any = _typed_dict(title, fields) if closed else _typed_dict(title, fields, extra_items=self._extra)
        kind.__pydantic_config__ = ConfigDict(extra="forbid" if closed else "allow")
        return TypeAdapter(kind)

    def _describe(self) -> dict[str, Any]:
        schema = self._adapter.json_schema()
        for name, default in self._defaults.items():
            try:
                value = to_jsonable_python(default)
                _JSON.encode(value)
            except ValueError:
                continue  # a default that JSON cannot say is the code's own affair
            schema["properties"][name]["default"] = value
        return schema

    def _typed(self, text: str | bytes) -> dict[str, Any]:
        try:
            typed: dict[str, Any] = self._adapter.validator.validate_json(text, strict=True)
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            wrong = [{"loc": ["params", *each["loc"]], "msg": each["msg"], "type": each["type"]} for each in found]
            raise InvalidParams.of(wrong) from None
        return typed


def _parameters(func: Callable[..., Any]) -> tuple[bool, list[Parameter]]:
    """Return whether the handler takes `ctx`, and its other parameters, which are all passed by name."""
    parameters = list(inspect.signature(func).parameters.values())
    takes_ctx = bool(parameters) and parameters[0].name == CONTEXT
    if takes_ctx and parameters[0].kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
        parameters = parameters[1:]
    place = f"{func.__module__}.{func.__qualname__}"
    for name, kind in ((each.name, each.kind) for each in parameters):
        if name == CONTEXT:
            raise TypeError(f"{place}: `{CONTEXT}` must be the first, positional parameter")
        if kind is Parameter.VAR_POSITIONAL:
            raise TypeError(f"{place}: a handler is called by name and cannot take *{name}")
        if kind is Parameter.POSITIONAL_ONLY:
            raise TypeError(f"{place}: a handler is called by name, so `{name}` cannot be positional-only")
    return takes_ctx, parameters


def _annotation(func: Callable[..., Any], parameter: Parameter) -> Any:
    """Its type. No other annotation is evaluated: those of `ctx` and the return value may be for type checkers only."""
    if parameter.annotation is Parameter.empty:
        return Any
    holder = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    names = getattr(inspect.unwrap(func), "__globals__", {})
    try:
        return get_type_hints(holder, globalns=names, include_extras=True)[parameter.name]
    except Exception as error:
        raise _refusal(func, parameter.name, error) from error


def _unsupported(func: Callable[..., Any], hints: dict[str, Any], error: Exception) -> TypeError:
    """Name the parameter that pydantic could not make sense of."""
    for name, hint in hints.items():
        try:
            TypeAdapter(hint).json_schema()
        except (PydanticUserError, NameError, TypeError) as reason:
            return _refusal(func, name, reason)
    return _refusal(func, ", ".join(hints), error)


def _refusal(func: Callable[..., Any], name: str, error: Exception) -> TypeError:
    reason = str(error).partition("\n")[0].partition(". ")[0]  # the rest is pydantic's advice on its own settings
    place = f"{func.__module__}.{func.__qualname__}"
    return TypeError(f"{place}: `{name}` is not annotated with a type that JSON can carry: {reason}")


def _encode(params: dict[str, Any]) -> str:
    try:
        return _JSON.encode(params)
    except (TypeError, ValueError, RecursionError):
        pass
    errors: list[dict[str, Any]] = []
    for name, value in params.items():
        try:
            _JSON.encode({name: value})
        except (TypeError, ValueError, RecursionError) as error:
            errors.append({"loc": ["params", str(name)], "msg": f"Not a JSON value: {error}", "type": "json_type"})
    raise InvalidParams.of(errors)


def _parse_word(text: str, hint: Any) -> Any:
    """A parameter that may be text takes the word as it stands; one that may be anything takes it as JSON."""
    adapter = TypeAdapter(Any if hint is None else hint)
    try:
        parsed = json.loads(text)
        _JSON.encode(parsed)  # NaN, and 1e999 which became Infinity
    except (ValueError, RecursionError):
        parsed = text
    if all(_fits(adapter, value) for value in _ONE_OF_EACH_KIND):
        return parsed
    if parsed is None and _fits(adapter, None):
        return None
    if _fits(adapter, text):
        return text
    if _fits(adapter, parsed):
        return parsed
    # yes, on, +5, 1_000: what people write where a program wants a boolean or a number. What is wrong in any case is
    # refused as what it is: a number out of range is no bad number.
    try:
        value = adapter.dump_python(adapter.validate_strings(text), mode="json")
    except ValueError:
        return parsed
    return value if _fits(adapter, value) else parsed


def _fits(adapter: TypeAdapter[Any], value: Any) -> bool:
    try:
        adapter.validate_json(_JSON.encode(value), strict=True)
    except ValueError:
        return False
    return True
