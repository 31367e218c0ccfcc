"""Handlers enqueue jobs of their type, with their own options as defaults."""

from __future__ import annotations

from typing import Any

import pytest

from jobs import job
from jobs.errors import InvalidParams
from jobs.models import Job
from jobs.registry import registry
from jobs.states import Status

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _own_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the handlers that a test registers."""
    monkeypatch.setattr(registry, "_handlers", dict(registry._handlers))


def generate(ctx: Any, topic: str, words: int = 500) -> dict[str, Any]:
    return {"topic": topic, "words": words, "ctx": ctx}


def test_a_handler_enqueues_a_job_of_its_type() -> None:
    handler = job("story.generate", resource="ollama", priority="HIGH")(generate)
    saved = Job.objects.get(pk=handler.enqueue(topic="sea").pk)
    assert (saved.job_type, saved.params, saved.status) == ("story.generate", {"topic": "sea"}, Status.QUEUED)
    assert (saved.resource, saved.priority) == ("ollama", 75)


def test_a_submission_wins_over_its_handler() -> None:
    handler = job("story.generate", priority="HIGH", max_retries=1)(generate)
    made = handler.using(target="book-1", priority="LOW").using(max_retries=7).enqueue(topic="sea")
    saved = Job.objects.get(pk=made.pk)
    assert (saved.target, saved.priority, saved.max_retries) == ("book-1", 25, 7)


def test_params_that_do_not_fit_a_remote_type_are_refused_too() -> None:
    handler = job("addon.scan", remote=True)(generate)
    with pytest.raises(InvalidParams, match=r"params\.topic"):
        handler.enqueue(topic=5)
    assert not Job.objects.exists()


def test_a_parameter_may_be_called_as_the_methods_own_arguments_are() -> None:
    @job("odd.names")
    def handler(self: int, params: int, name: str) -> None: ...

    assert handler.enqueue(self=1, params=2, name="x").params == {"self": 1, "params": 2, "name": "x"}
