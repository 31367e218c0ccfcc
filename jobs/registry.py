"""The handlers this process knows: `@job` makes one of a function, autodiscovery finds them in every app."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext as _

from jobs.conf import configured, read
from jobs.conf.rules import YEAR_SEC
from jobs.errors import InvalidInput, UnknownJobType
from jobs.signature import Signature
from jobs.validation import fields as parsing

if TYPE_CHECKING:
    from jobs.models import Job

P = ParamSpec("P")
R = TypeVar("R")
ExceptionKinds = type[Exception] | tuple[type[Exception], ...]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a handler says of its own jobs. None leaves it to the settings; templates and submissions win over both."""

    resource: str = "default"
    priority: int | None = None
    max_retries: int | None = None
    retry_on: tuple[type[Exception], ...] | None = None
    max_runtime_sec: float | None = None
    token_limit: int | None = None
    cost_units: int | None = None
    constraints: Mapping[str, bool] | None = None
    tags: tuple[str, ...] = ()
    remote: bool = False
    aliases: tuple[str, ...] = ()
    cron: str | None = None
    timezone: str | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """The options as written in `@job(...)`, each through the gate."""
        unknown = given.keys() - _GATES.keys()
        if unknown:
            raise TypeError(f"@job has no option {', '.join(map(repr, sorted(unknown)))}")
        clean = {name: _GATES[name](value, name) for name, value in given.items() if value is not None}
        if "timezone" in clean and "cron" not in clean:
            raise TypeError("@job: timezone is for the option cron, which is not there")
        return cls(**clean)


def _retry_on(value: Any, where: str) -> tuple[type[Exception], ...]:
    kinds = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        raise InvalidInput(where, _("must be an exception class or a tuple of them"))
    return kinds


def _aliases(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise InvalidInput(where, _("must be a list"), "list_type")
    return tuple(parsing.identifier(alias, where) for alias in value)


_GATES: dict[str, Callable[[Any, str], Any]] = {
    "resource": parsing.identifier,
    "priority": parsing.priority,
    "max_retries": functools.partial(parsing.integer, minimum=0, maximum=1000),
    "retry_on": _retry_on,
    "max_runtime_sec": functools.partial(parsing.number, above=0, maximum=YEAR_SEC),
    "token_limit": functools.partial(parsing.integer, minimum=0),
    "cost_units": functools.partial(parsing.integer, minimum=0, maximum=100),
    "constraints": parsing.constraints,
    "tags": lambda value, where: tuple(parsing.tags(value, where)),
    "remote": parsing.boolean,
    "aliases": _aliases,
    "cron": parsing.identifier,  # whether it makes sense is for the app `schedules` to say
    "timezone": parsing.identifier,
}


@dataclass(frozen=True)
class Member:
    """A job yet to be submitted: one place of a group."""

    job_type: str
    params: dict[str, Any]
    fields: dict[str, Any] = field(default_factory=dict)

    def item(self) -> dict[str, Any]:
        return {"job_type": self.job_type, "params": self.params, **self.fields}


@dataclass(frozen=True)
class Bound:
    """A handler with submission fields (target, priority, not_before, …) chosen."""

    job_type: str
    fields: dict[str, Any] = field(default_factory=dict)

    def using(self, /, **fields: Any) -> Bound:
        return Bound(self.job_type, {**self.fields, **fields})

    def enqueue(self, /, **params: Any) -> Job:
        from jobs.services.jobs import enqueue  # the services import this module

        return enqueue(self.job_type, params, **self.fields)

    def s(self, /, **params: Any) -> Member:
        return Member(self.job_type, params, {**self.fields})


class Handler(Generic[P, R]):
    """A function that jobs run. Called directly, it is still that function."""

    __name__: str
    __qualname__: str
    __wrapped__: Callable[P, R]

    def __init__(self, func: Callable[P, R], name: str | None, options: Options) -> None:
        if not inspect.isfunction(func):
            raise TypeError(f"@job goes on a function, not on {func!r}")
        if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
            raise TypeError(f"{func.__module__}.{func.__qualname__} yields: calling it would run nothing")
        functools.update_wrapper(self, func)
        self.name = parsing.identifier(self.place if name is None else name, "name")
        self.options = options
        self.signature = Signature(func)
        self.takes_ctx = self.signature.takes_ctx
        self.is_async = inspect.iscoroutinefunction(func)
        self.doc = inspect.getdoc(func) or ""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.__wrapped__(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Handler {self.name}: {self.place}>"

    @property
    def place(self) -> str:
        return f"{self.__module__}.{self.__qualname__}"

    def using(self, /, **fields: Any) -> Bound:
        """The same handler for a job with these submission fields, e.g. `using(target="book-1").enqueue(…)`."""
        return Bound(self.name, fields)

    def enqueue(self, /, **params: Any) -> Job:
        return Bound(self.name).enqueue(**params)

    def s(self, /, **params: Any) -> Member:
        return Bound(self.name).s(**params)


class Registry:
    def __init__(self) -> None:
        self._handlers: dict[str, Handler[..., Any]] = {}

    def add(self, handler: Handler[..., Any]) -> None:
        """Make a handler known under its name and aliases. The same function, imported again, takes its own place."""
        names = (handler.name, *handler.options.aliases)
        holders = {id(known): known for name in names if (known := self._handlers.get(name))}.values()
        for known in holders:
            if known.place != handler.place:
                raise ImproperlyConfigured(f"Two handlers share a job type: {known!r} and {handler!r}.")
        kept = {name: known for name, known in self._handlers.items() if known not in holders}
        self._handlers = kept | dict.fromkeys(names, handler)

    def get(self, name: str) -> Handler[..., Any]:
        handler = self._handlers.get(name)
        if handler is None:
            message = _("There is no job type “%s”.") % name[:200]
            near = difflib.get_close_matches(name[:200], self._handlers, 1)
            if near:
                message += " " + _("Did you mean “%s”?") % near[0]
            raise UnknownJobType("job_type", message, "unknown_job_type")
        return handler

    def names(self) -> list[str]:
        """Every job type, by its present name."""
        return sorted({handler.name for handler in self._handlers.values()})

    def local_names(self) -> list[str]:
        """What a worker of this process can run; old names too, for rows that were queued under them."""
        return sorted(name for name, handler in self._handlers.items() if not handler.options.remote)

    def autodiscover(self) -> None:
        """Import `jobs.py` and `tasks.py` of every installed app."""
        found, _problems = read(configured())  # what is wrong with the settings is for the system checks to say
        autodiscover_modules(*found.AUTODISCOVER)


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
    max_runtime_sec: float | None = None,
    token_limit: int | None = None,
    cost_units: int | None = None,
    constraints: Mapping[str, bool] | None = None,
    tags: list[str] | tuple[str, ...] = (),
    remote: bool = False,
    aliases: list[str] | tuple[str, ...] = (),
    cron: str | None = None,
    timezone: str | None = None,
) -> Callable[[Callable[P, R]], Handler[P, R]]: ...


def job(name: Any = None, **options: Any) -> Any:
    """Make a job type of a function: `@job`, `@job("story.generate")` or `@job("story.generate", max_retries=5)`.

    Without a name, it is the function's own path. Give one where rows may outlive a move of the module.
    """
    if callable(name):
        return job(**options)(name)

    def decorate(func: Callable[P, R]) -> Handler[P, R]:
        handler = Handler(func, name, Options.of(options))
        registry.add(handler)
        return handler

    return decorate
