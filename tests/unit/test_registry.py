"""`@job`: what it makes of a function, what it refuses, and how handlers are found."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import tomllib
import typing
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

import jobs
from jobs import job
from jobs.errors import InvalidInput, UnknownJobType
from jobs.registry import BoundHandler, GroupMember, HandlerOptions, Registry, registry

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def _own_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(registry, "_handlers", dict(registry._handlers))


def generate(ctx: Any, topic: str, words: int = 500) -> dict[str, Any]:
    """Write a story.

    With a plot.
    """
    return {"topic": topic, "words": words, "ctx": ctx}


# the three spellings


def test_a_bare_job_is_named_by_the_path_of_its_function() -> None:
    handler = job(generate)
    assert handler.name == "tests.unit.test_registry.generate"
    assert registry.get("tests.unit.test_registry.generate") is handler


def test_job_with_options_and_no_name_is_named_by_the_path_of_its_function() -> None:
    handler = job(priority="HIGH")(generate)
    assert handler.name == "tests.unit.test_registry.generate"
    assert handler.options.priority == 75


def test_job_with_a_name_keeps_that_name() -> None:
    assert job("story.generate")(generate).name == "story.generate"
    assert job(name="story.generate")(generate).name == "story.generate"


def test_job_called_with_a_function_and_options_drops_none_of_them() -> None:
    assert job(generate, priority="HIGH").options.priority == 75  # type: ignore[call-overload]


# what a handler is


def test_a_handler_is_still_its_function() -> None:
    handler = job("story.generate")(generate)
    assert handler("here", "sea", words=3) == {"topic": "sea", "words": 3, "ctx": "here"}
    assert (handler.__name__, handler.__doc__, handler.__module__) == ("generate", generate.__doc__, __name__)
    assert handler.__wrapped__ is generate
    assert inspect.signature(handler) == inspect.signature(generate)


def test_a_handler_knows_what_a_worker_must_know_to_call_it() -> None:
    handler = job("story.generate")(generate)
    assert handler.takes_ctx
    assert not handler.is_async
    assert handler.doc == "Write a story.\n\nWith a plot."
    assert handler.signature.parse_arguments({"topic": "sea"}) == {"topic": "sea"}


def test_an_async_function_makes_an_async_handler() -> None:
    @job("story.async")
    async def handler(topic: str) -> str:
        return topic

    assert handler.is_async
    assert not handler.takes_ctx
    assert handler.doc == ""
    assert asyncio.run(handler("sea")) == "sea"


def test_the_options_of_a_handler_are_those_of_its_decorator() -> None:
    handler = job(
        "story.generate",
        resource="ollama",
        priority="HIGH",
        max_retries=0,
        retry_on=ConnectionError,
        max_runtime_sec=600,
        token_limit=10_000,
        cost_units=5,
        constraints={"cpu_heavy": True},
        tags=["story"],
        remote=True,
        aliases=["story.write"],
    )(generate)
    assert handler.options == HandlerOptions(
        resource="ollama",
        priority=75,
        max_retries=0,
        retry_on=(ConnectionError,),
        max_runtime_sec=600,
        token_limit=10_000,
        cost_units=5,
        constraints={"cpu_heavy": True},
        tags=("story",),
        remote=True,
        aliases=("story.write",),
    )


def test_what_a_handler_does_not_say_is_left_to_the_settings() -> None:
    options = job("story.generate", max_retries=None)(generate).options
    assert options == HandlerOptions()
    assert (options.resource, options.remote) == ("default", False)
    left_open = ("priority", "max_retries", "retry_on", "max_runtime_sec", "token_limit", "cost_units", "constraints")
    assert all(getattr(options, name) is None for name in left_open)


def test_every_option_is_a_keyword_of_job_that_type_checkers_know() -> None:
    spelled_out = inspect.signature(typing.get_overloads(job)[1]).parameters
    assert set(spelled_out) - {"name"} == {field.name for field in fields(HandlerOptions)}


# what is refused at decoration


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("resource", ""),
        ("resource", "a\0b"),
        ("priority", 101),
        ("priority", "HIGHEST"),
        ("priority", True),
        ("max_retries", -1),
        ("max_retries", "3"),
        ("max_retries", 1.5),
        ("retry_on", "ConnectionError"),
        ("retry_on", (ConnectionError, "TimeoutError")),
        ("retry_on", KeyboardInterrupt),
        ("max_runtime_sec", 0),
        ("max_runtime_sec", float("inf")),
        ("max_runtime_sec", 1e12),
        ("token_limit", -1),
        ("token_limit", 2**63),
        ("cost_units", 101),
        ("constraints", {"gpu_heavy": True}),
        ("constraints", {"cpu_heavy": 1}),
        ("tags", "story"),
        ("tags", ["x" * 65]),
        ("remote", "yes"),
        ("direct", "yes"),
        ("aliases", "story.write"),
        ("aliases", [""]),
    ],
)
def test_a_wrong_option_is_refused_by_name_and_registers_nothing(option: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=option):
        job("story.generate", **{option: value})(generate)
    assert "story.generate" not in registry.names()


@pytest.mark.parametrize("name", ["", "   ", "x" * 201, "a\nb", 5])
def test_a_wrong_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidInput, match="name"):
        job(name)(generate)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="no option 'max_retrys'"):
        job("story.generate", max_retrys=3)(generate)  # type: ignore[call-overload]


def test_a_remote_handler_cannot_be_called_directly() -> None:
    with pytest.raises(TypeError, match="direct excludes the option remote"):
        job("story.generate", direct=True, remote=True)(generate)


class NotAFunction:
    def method(self) -> None: ...


@pytest.mark.parametrize("thing", [NotAFunction, NotAFunction().method, print, len, staticmethod(generate), 5])
def test_what_is_no_function_is_refused(thing: Any) -> None:
    with pytest.raises(TypeError, match="@job decorates functions"):
        job("story.generate")(thing)


def test_a_generator_is_refused_because_calling_it_runs_nothing() -> None:
    def pages() -> Any:
        yield 1

    async def async_pages() -> Any:
        yield 1

    for func in (pages, async_pages):
        with pytest.raises(TypeError, match="is a generator"):
            job("story.pages")(func)


def test_a_parameter_that_params_cannot_fill_is_refused() -> None:
    def handler(*topics: str) -> None: ...

    with pytest.raises(TypeError, match=r"cannot take \*topics"):
        job("story.generate")(handler)
    assert "story.generate" not in registry.names()


# names


def test_an_unknown_job_type_is_refused_with_a_near_one_named() -> None:
    job("story.generate")(generate)
    with pytest.raises(UnknownJobType, match=r"“story\.genrate”.* Did you mean “story\.generate”") as caught:
        registry.get("story.genrate")
    assert caught.value.errors[0]["loc"] == ["job_type"]


def test_an_unknown_job_type_with_nothing_near_is_refused_without_a_guess() -> None:
    with pytest.raises(UnknownJobType) as caught:
        Registry().get("story.generate")
    assert "Did you mean" not in str(caught.value)


def test_an_enormous_unknown_name_is_refused_in_short() -> None:
    with pytest.raises(UnknownJobType) as caught:
        registry.get("x" * 1_000_000)
    assert len(str(caught.value)) < 500


def test_a_job_queued_under_an_old_name_still_finds_its_handler() -> None:
    handler = job("story.generate", aliases=["story.write"])(generate)
    assert registry.get("story.write") is handler
    assert {"story.generate", "story.write"} <= set(registry.local_names())
    assert "story.write" not in registry.names()


def test_a_remote_type_is_known_but_not_run_here() -> None:
    handler = job("addon.scan", remote=True, aliases=["addon.old"])(generate)
    assert registry.get("addon.scan") is handler
    assert "addon.scan" in registry.names()
    assert not {"addon.scan", "addon.old"} & set(registry.local_names())


def other(topic: str) -> None: ...


@pytest.mark.parametrize(
    "second", [{"name": "story.generate"}, {"name": "story.write"}, {"name": "story.other", "aliases": ["story.write"]}]
)
def test_two_functions_cannot_share_a_job_type(second: dict[str, Any]) -> None:
    first = job("story.generate", aliases=["story.write"])(generate)
    with pytest.raises(ImproperlyConfigured, match=r"test_registry\.generate.*test_registry\.other"):
        job(**second)(other)
    assert registry.get("story.generate") is registry.get("story.write") is first
    assert "story.other" not in registry.names()


def test_the_same_function_imported_again_takes_its_own_place() -> None:
    job("story.generate", aliases=["story.write"])(generate)
    again = job("story.generate", aliases=["story.tell"])(generate)
    assert registry.get("story.generate") is registry.get("story.tell") is again
    with pytest.raises(UnknownJobType):
        registry.get("story.write")


# bound handlers


def test_using_adds_fields_and_the_later_ones_win() -> None:
    handler = job("story.generate")(generate)
    first = handler.using(target="book-1", priority="LOW")
    assert first.using(priority="HIGH", tags=["x"]) == BoundHandler(
        "story.generate", {"target": "book-1", "priority": "HIGH", "tags": ["x"]}
    )
    assert first == BoundHandler("story.generate", {"target": "book-1", "priority": "LOW"})
    with pytest.raises(FrozenInstanceError):
        first.job_type = "other"  # type: ignore[misc]


def test_a_member_of_a_group_carries_its_type_params_and_fields() -> None:
    handler = job("story.generate")(generate)
    assert handler.s(topic="sea") == GroupMember("story.generate", {"topic": "sea"})
    assert handler.using(priority=7).s(topic="sea") == GroupMember("story.generate", {"topic": "sea"}, {"priority": 7})


# discovery


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Write an app `shop_for_discovery` and make it importable."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(**modules: str) -> None:
        package = tmp_path / "shop_for_discovery"
        package.mkdir()
        for name, code in {"__init__": "", **modules}.items():
            (package / f"{name}.py").write_text(code)

    yield write
    for name in [name for name in sys.modules if name.startswith("shop_for_discovery")]:
        del sys.modules[name]


SEND = "from jobs import job\n@job\ndef {}(to: str): ...\n"


def start_site() -> None:
    """Load the apps as a starting process does."""
    with override_settings(INSTALLED_APPS=["jobs", "shop_for_discovery"]):
        pass


def test_handlers_are_found_in_jobs_and_tasks_of_installed_apps(shop: Callable[..., None]) -> None:
    shop(jobs=SEND.format("send"), tasks=SEND.format("call"), views=SEND.format("hidden"))
    start_site()
    assert {"shop_for_discovery.jobs.send", "shop_for_discovery.tasks.call"} <= set(registry.names())
    assert "shop_for_discovery.views.hidden" not in registry.names()


@override_settings(JOBSCHEDULER={"AUTODISCOVER": ["work"]})
def test_the_modules_to_look_in_are_a_setting(shop: Callable[..., None]) -> None:
    shop(jobs=SEND.format("send"), work=SEND.format("dig"))
    start_site()
    assert "shop_for_discovery.work.dig" in registry.names()
    assert "shop_for_discovery.jobs.send" not in registry.names()


def test_a_module_that_fails_to_import_is_not_passed_over_in_silence(shop: Callable[..., None]) -> None:
    shop(jobs="import nowhere_at_all\n")
    with pytest.raises(ImportError, match="nowhere_at_all"):
        start_site()


@override_settings(JOBSCHEDULER={"LEASE_SEK": 5})
def test_wrong_settings_do_not_keep_the_apps_from_loading(shop: Callable[..., None]) -> None:
    shop(jobs=SEND.format("send"))
    start_site()
    assert "shop_for_discovery.jobs.send" in registry.names()


# the package


def test_importing_the_package_loads_no_models_and_needs_no_settings() -> None:
    code = (
        "from jobs import job, Skip, NoRetry\n"
        "job('a.b', priority='HIGH')(lambda topic: None)\n"
        "import sys; sys.exit('jobs.models' in sys.modules or 'jobs.services.jobs' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(jobs.__file__).parents[1]
    )
    assert done.returncode == 0, done.stderr


def test_every_name_that_the_package_offers_is_there() -> None:
    from jobs.services import jobs as job_services

    assert all(getattr(jobs, name) for name in jobs.__all__)
    assert jobs.enqueue is job_services.enqueue
    with pytest.raises(AttributeError, match="no attribute 'enqeue'"):
        jobs.enqeue  # noqa: B018


def test_the_version_of_the_package_is_that_of_the_distribution() -> None:
    project = tomllib.loads((Path(jobs.__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert jobs.__version__ == project["version"]
