"""The handlers of this process: `@job` registers a function, autodiscovery imports the modules of all apps."""

from __future__ import annotations

import copy
import difflib
import functools
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, NotRequired, ParamSpec, TypeVar, get_type_hints, overload

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext as _
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import to_json, to_jsonable_python
from typing_extensions import TypedDict

from jobs.conf import get_raw_settings, read_settings
from jobs.conf.rules import YEAR_SEC
from jobs.errors import InvalidInput, InvalidParams, UnknownJobType
from jobs.validation import fields as validation
from jobs.validation.retry_policy import RETRY_OPTIONS, merge_retry_options, parse_retry_option

if TYPE_CHECKING:
    from jobs.models import Job

P = ParamSpec("P")
R = TypeVar("R")
CONTEXT = "ctx"
_typed_dict: Any = TypedDict  # type checkers want its fields written out
_JSON = json.JSONEncoder(allow_nan=False)
_SAMPLE_VALUES: tuple[Any, ...] = ("text", 1, True, [], {})
ExceptionKinds = type[Exception] | tuple[type[Exception], ...]
MAX_CRONS = 50


@dataclass(frozen=True, kw_only=True)
class HandlerOptions:
    """The options of `@job`. None: the settings apply. Templates and submissions take precedence over both."""

    resource: str = "default"
    priority: int | None = None
    max_retries: int | None = None
    retry_on: tuple[type[Exception], ...] | None = None
    retry_delay: float | None = None
    retry_backoff: float | None = None
    retry_max_delay: float | None = None
    retry_jitter: float | None = None
    max_runtime_sec: float | None = None
    token_limit: int | None = None
    cost_units: int | None = None
    constraints: Mapping[str, bool] | None = None
    tags: tuple[str, ...] = ()
    context: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None
    remote: bool = False
    direct: bool = False
    unique_key: str | None = None
    unique_until: str | None = None
    on_conflict: str | None = None
    aliases: tuple[str, ...] = ()
    cron: tuple[str, ...] = ()  # a schedule for each
    cron_params: Mapping[str, Any] | None = None
    fire_time_param: str | None = None
    timezone: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> HandlerOptions:
        """Validate the options of `@job(...)`."""
        unknown = options.keys() - _OPTION_VALIDATORS.keys()
        if unknown:
            raise TypeError(f"@job has no option {', '.join(map(repr, sorted(unknown)))}")
        clean = {name: _OPTION_VALIDATORS[name](value, name) for name, value in options.items() if value is not None}
        for name in ("timezone", "cron_params", "fire_time_param"):
            if name in clean and "cron" not in clean:
                raise TypeError(f"@job: the option {name} requires the option cron")
        if clean.get("direct") and clean.get("remote"):
            raise TypeError("@job: the option direct excludes the option remote, whose handlers run elsewhere")
        return cls(**clean)

    @property
    def retry_policy(self) -> dict[str, Any]:
        """Return the retry options as a job stores them."""
        policy = {key: getattr(self, option) for option, key in RETRY_OPTIONS.items()}
        return {key: value for key, value in policy.items() if value is not None}


def _parse_retry_on(value: Any, where: str) -> tuple[type[Exception], ...]:
    kinds = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        raise InvalidInput(where, _("must be an exception class or a tuple of them"))
    return kinds


def _parse_aliases(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise InvalidInput(where, _("must be a list"), "list_type")
    return tuple(validation.parse_identifier(alias, where) for alias in value)


def _parse_crons(value: Any, where: str) -> tuple[str, ...]:
    """Return the cron expressions; the app `schedules` checks them."""
    crons = [value] if isinstance(value, str) else value
    if not isinstance(crons, list | tuple) or not 1 <= len(crons) <= MAX_CRONS:
        raise InvalidInput(where, _("must be a cron expression or a list of 1 to %d of them") % MAX_CRONS)
    parsed = tuple(validation.parse_identifier(cron, where) for cron in crons)
    if len(set(parsed)) < len(parsed):
        raise InvalidInput(where, _("names an expression twice"))
    return parsed


_OPTION_VALIDATORS: dict[str, Callable[[Any, str], Any]] = {
    "resource": validation.parse_identifier,
    "priority": validation.parse_priority,
    "max_retries": functools.partial(validation.parse_integer, minimum=0, maximum=1000),
    "retry_on": _parse_retry_on,
    **dict.fromkeys(RETRY_OPTIONS, parse_retry_option),
    "max_runtime_sec": functools.partial(validation.parse_number, above=0, maximum=YEAR_SEC),
    "token_limit": functools.partial(validation.parse_integer, minimum=0),
    "cost_units": functools.partial(validation.parse_integer, minimum=0, maximum=100),
    "constraints": validation.parse_constraints,
    "tags": lambda value, where: tuple(validation.parse_tags(value, where)),
    "context": lambda value, where: value if callable(value) else validation.parse_json_object(value, where),
    "remote": validation.parse_boolean,
    "direct": validation.parse_boolean,
    **validation.UNIQUE_VALIDATORS,
    "aliases": _parse_aliases,
    "cron": _parse_crons,
    "cron_params": validation.parse_json_object,
    "fire_time_param": validation.parse_identifier,
    "timezone": validation.parse_identifier,
}


@dataclass(frozen=True)
class GroupMember:
    """A job that is not submitted yet: a member of a group."""

    job_type: str
    params: dict[str, Any]
    fields: dict[str, Any] = field(default_factory=dict)

    def to_item(self) -> dict[str, Any]:
        return {"job_type": self.job_type, "params": self.params, **self.fields}


@dataclass(frozen=True)
class BoundHandler:
    """A handler with given submission fields (target, priority, not_before, …)."""

    job_type: str
    fields: dict[str, Any] = field(default_factory=dict)

    def using(self, /, **fields: Any) -> BoundHandler:
        return BoundHandler(self.job_type, merge_retry_options({**self.fields, **fields}))

    def enqueue(self, /, **params: Any) -> Job:
        from jobs.services.jobs import enqueue  # the services import this module

        return enqueue(self.job_type, params, **self.fields)

    def s(self, /, **params: Any) -> GroupMember:
        return GroupMember(self.job_type, params, {**self.fields})


class Handler(Generic[P, R]):
    """A function that jobs run. Calling the handler calls the function."""

    __name__: str
    __qualname__: str
    __wrapped__: Callable[P, R]

    def __init__(self, func: Callable[P, R], name: str | None, options: HandlerOptions) -> None:
        if not inspect.isfunction(func):
            raise TypeError(f"@job decorates functions, not {func!r}")
        if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
            raise TypeError(f"{func.__module__}.{func.__qualname__} is a generator: calling it would run nothing")
        functools.update_wrapper(self, func)
        self.name = validation.parse_identifier(self.path if name is None else name, "name")
        self.options = options
        self.signature = Signature(func)
        self.takes_ctx = self.signature.takes_ctx
        self.is_async = inspect.iscoroutinefunction(func)
        self.doc = inspect.getdoc(func) or ""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.__wrapped__(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Handler {self.name}: {self.path}>"

    @property
    def path(self) -> str:
        return f"{self.__module__}.{self.__qualname__}"

    def using(self, /, **fields: Any) -> BoundHandler:
        """Return the handler with these submission fields, e.g. `using(target="book-1").enqueue(…)`."""
        return BoundHandler(self.name).using(**fields)

    def enqueue(self, /, **params: Any) -> Job:
        return BoundHandler(self.name).enqueue(**params)

    def s(self, /, **params: Any) -> GroupMember:
        return BoundHandler(self.name).s(**params)


class Registry:
    def __init__(self) -> None:
        self._handlers: dict[str, Handler[..., Any]] = {}

    def add(self, handler: Handler[..., Any]) -> None:
        """Register a handler under its name and aliases. The same function, imported again, replaces its handler."""
        names = (handler.name, *handler.options.aliases)
        replaced = {id(existing): existing for name in names if (existing := self._handlers.get(name))}.values()
        for existing in replaced:
            if existing.path != handler.path:
                raise ImproperlyConfigured(f"Two handlers share a job type: {existing!r} and {handler!r}.")
        others = {name: existing for name, existing in self._handlers.items() if existing not in replaced}
        self._handlers = others | dict.fromkeys(names, handler)

    def get(self, name: str) -> Handler[..., Any]:
        handler = self._handlers.get(name)
        if handler is None:
            message = _("There is no job type “%s”.") % name[:200]
            matches = difflib.get_close_matches(name[:200], self._handlers, 1)
            if matches:
                message += " " + _("Did you mean “%s”?") % matches[0]
            raise UnknownJobType("job_type", message, "unknown_job_type")
        return handler

    def names(self) -> list[str]:
        """Return all job types by their current names."""
        return sorted({handler.name for handler in self._handlers.values()})

    def local_names(self) -> list[str]:
        """Return the job types that a worker of this process can run, with aliases: queued rows may have them."""
        return sorted(name for name, handler in self._handlers.items() if not handler.options.remote)

    def autodiscover(self) -> None:
        """Import `jobs.py` and `tasks.py` of every installed app."""
        settings, _problems = read_settings(get_raw_settings())  # the system checks report the problems
        autodiscover_modules(*settings.AUTODISCOVER)


registry = Registry()


@overload
def job(name: Callable[P, R], /) -> Handler[P, R]: ...


@overload
def job(
    name: str | None = None,
    *,
    resource: str = "default",
    priority: int | str | None = None,
    max_retries: int | None = None,
    retry_on: ExceptionKinds | None = None,
    retry_delay: float | None = None,
    retry_backoff: float | None = None,
    retry_max_delay: float | None = None,
    retry_jitter: float | None = None,
    max_runtime_sec: float | None = None,
    token_limit: int | None = None,
    cost_units: int | None = None,
    constraints: Mapping[str, bool] | None = None,
    tags: list[str] | tuple[str, ...] = (),
    context: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None,
    remote: bool = False,
    direct: bool = False,
    unique_key: str | None = None,
    unique_until: str | None = None,
    on_conflict: str | None = None,
    aliases: list[str] | tuple[str, ...] = (),
    cron: str | list[str] | tuple[str, ...] | None = None,
    cron_params: Mapping[str, Any] | None = None,
    fire_time_param: str | None = None,
    timezone: str | None = None,
) -> Callable[[Callable[P, R]], Handler[P, R]]: ...


def job(name: Any = None, **options: Any) -> Any:
    """Register a function as a job type: `@job`, `@job("story.generate")`, `@job("story.generate", max_retries=5)`.

    The default name is the dotted path of the function. Give a name if rows may exist when the module is moved.
    """
    if callable(name):
        return job(**options)(name)

    def decorate(func: Callable[P, R]) -> Handler[P, R]:
        handler = Handler(func, name, HandlerOptions.parse(options))
        registry.add(handler)
        return handler

    return decorate


class Signature:
    """The parameters of one handler, `ctx` left out, typed by its annotations.

    Values are JSON and validated strictly: "12" and true are not integers, ISO text is a time.
    """

    def __init__(self, func: Callable[..., Any]) -> None:
        self.takes_ctx, parameters = _list_parameters(func)
        hints = {parameter.name: _resolve_annotation(func, parameter) for parameter in parameters}
        named = [parameter for parameter in parameters if parameter.kind is not Parameter.VAR_KEYWORD]
        self._hints = {parameter.name: hints[parameter.name] for parameter in named}
        self._extra = next((hints[parameter.name] for parameter in parameters if parameter not in named), None)
        self._defaults = {
            parameter.name: parameter.default for parameter in named if parameter.default is not Parameter.empty
        }
        self._required = len(self._defaults) < len(named)
        try:
            self._adapter = self._build_adapter(func.__name__)
            self._schema = self._build_schema()
        except Exception as error:
            raise _find_unsupported(func, hints, error) from error

    def validate(self, params: dict[str, Any], text: str | None = None) -> dict[str, Any]:
        """Raise InvalidParams unless the params fit; `text` is the params as JSON, if the caller has it.

        Defaults are not filled in: the code that runs the job applies them.
        """
        if params == {} and not self._required:
            return params
        if self.takes_ctx and self._extra is not None and CONTEXT in params:
            raise InvalidParams(["params", CONTEXT], "this name is the handler's context", "reserved")
        self._validate_json(_encode_params(params) if text is None else text)
        return params

    def parse_arguments(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of the handler for params that were stored as JSON."""
        if not params and not self._required:
            return {}
        return self._validate_json(to_json(params))

    def coerce_text(self, pairs: Mapping[str, str]) -> dict[str, Any]:
        """Return the values of `key=value` arguments as JSON values; `validate` rejects those that do not fit."""
        return {name: _parse_text_value(text, self._hints.get(name, self._extra)) for name, text in pairs.items()}

    def get_schema(self) -> dict[str, Any]:
        return copy.deepcopy(self._schema)

    def _build_adapter(self, title: str) -> TypeAdapter[Any]:
        # A TypedDict, not a model: any name may be a parameter (copy, json, _x), and the result is ready to call with.
        fields = {name: NotRequired[hint] if name in self._defaults else hint for name, hint in self._hints.items()}
        closed = self._extra is None
        kind: Any = _typed_dict(title, fields) if closed else _typed_dict(title, fields, extra_items=self._extra)
        kind.__pydantic_config__ = ConfigDict(extra="forbid" if closed else "allow")
        return TypeAdapter(kind)

    def _build_schema(self) -> dict[str, Any]:
        schema = self._adapter.json_schema()
        for name, default in self._defaults.items():
            try:
                value = to_jsonable_python(default)
                _JSON.encode(value)
            except ValueError:
                continue  # a default that JSON cannot represent is left out of the schema
            schema["properties"][name]["default"] = value
        return schema

    def _validate_json(self, text: str | bytes) -> dict[str, Any]:
        try:
            typed: dict[str, Any] = self._adapter.validator.validate_json(text, strict=True)
        except ValidationError as error:
            details = error.errors(include_url=False, include_context=False, include_input=False)
            errors = [{"loc": ["params", *item["loc"]], "msg": item["msg"], "type": item["type"]} for item in details]
            raise InvalidParams.from_errors(errors) from None
        return typed


def _list_parameters(func: Callable[..., Any]) -> tuple[bool, list[Parameter]]:
    """Return whether the handler takes `ctx`, and its other parameters, which are all passed by name."""
    parameters = list(inspect.signature(func).parameters.values())
    takes_ctx = bool(parameters) and parameters[0].name == CONTEXT
    if takes_ctx and parameters[0].kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
        parameters = parameters[1:]
    path = f"{func.__module__}.{func.__qualname__}"
    for name, kind in ((parameter.name, parameter.kind) for parameter in parameters):
        if name == CONTEXT:
            raise TypeError(f"{path}: `{CONTEXT}` must be the first, positional parameter")
        if kind is Parameter.VAR_POSITIONAL:
            raise TypeError(f"{path}: a handler is called by name and cannot take *{name}")
        if kind is Parameter.POSITIONAL_ONLY:
            raise TypeError(f"{path}: a handler is called by name, so `{name}` cannot be positional-only")
    return takes_ctx, parameters


def _resolve_annotation(func: Callable[..., Any], parameter: Parameter) -> Any:
    """Return the type of a parameter. Other annotations are not evaluated: they may exist for type checkers only."""
    if parameter.annotation is Parameter.empty:
        return Any
    holder = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    names = getattr(inspect.unwrap(func), "__globals__", {})
    try:
        return get_type_hints(holder, globalns=names, include_extras=True)[parameter.name]
    except Exception as error:
        raise _build_annotation_error(func, parameter.name, error) from error


def _find_unsupported(func: Callable[..., Any], hints: dict[str, Any], error: Exception) -> TypeError:
    """Build the error that names the parameter whose type pydantic does not support."""
    for name, hint in hints.items():
        try:
            TypeAdapter(hint).json_schema()
        except (PydanticUserError, NameError, TypeError) as reason:
            return _build_annotation_error(func, name, reason)
    return _build_annotation_error(func, ", ".join(hints), error)


def _build_annotation_error(func: Callable[..., Any], name: str, error: Exception) -> TypeError:
    reason = str(error).partition("\n")[0].partition(". ")[0]  # the rest is about pydantic's settings
    path = f"{func.__module__}.{func.__qualname__}"
    return TypeError(f"{path}: `{name}` is not annotated with a type that JSON can represent: {reason}")


def _encode_params(params: dict[str, Any]) -> str:
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
    raise InvalidParams.from_errors(errors)


def _parse_text_value(text: str, hint: Any) -> Any:
    """Parse one argument: text as it is if the parameter accepts text, JSON if it accepts any value."""
    adapter = TypeAdapter(Any if hint is None else hint)
    try:
        parsed = json.loads(text)
        _JSON.encode(parsed)  # NaN, and 1e999 which became Infinity
    except (ValueError, RecursionError):
        parsed = text
    if all(_is_valid(adapter, value) for value in _SAMPLE_VALUES):
        return parsed
    if parsed is None and _is_valid(adapter, None):
        return None
    if _is_valid(adapter, text):
        return text
    if _is_valid(adapter, parsed):
        return parsed
    # Accept yes, on, +5, 1_000 for booleans and numbers. Other wrong values stay as they are, so that the error names
    # the real problem: a number out of range is still a number.
    try:
        value = adapter.dump_python(adapter.validate_strings(text), mode="json")
    except ValueError:
        return parsed
    return value if _is_valid(adapter, value) else parsed


def _is_valid(adapter: TypeAdapter[Any], value: Any) -> bool:
    try:
        adapter.validate_json(_JSON.encode(value), strict=True)
    except ValueError:
        return False
    return True
