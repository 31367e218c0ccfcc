"""New jobs from the console: a form that the handler's signature makes, for any job type and for templates."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse
from pydantic import Field

from jobs.models import Job, JobTemplate
from jobs.redaction import MASK
from jobs.registry import job, registry
from jobs.states import Status
from tests.factories import JobTemplateFactory, WorkerFactory
from tests.support.admin_pages import get_page_url
from tests.support.admin_users import create_reader, log_in
from tests.support.snapshots import dump_tables, list_events

KIND = "tests.typed"


class Size(enum.StrEnum):
    SMALL = "small"
    LARGE = "large"


@pytest.fixture(autouse=True)
def typed() -> Iterator[None]:
    before = dict(registry._handlers)

    @job(KIND)
    def take_each_kind(
        ctx: Any,
        title: str,
        count: Annotated[int, Field(ge=1, le=9)],
        ratio: float = 0.5,
        loud: bool = False,
        size: Size = Size.SMALL,
        colour: Literal["red", "green"] | None = None,
        options: dict[str, Any] | None = None,
        names: list[str] = [],  # noqa: B006  never changed
        note: str | None = None,
    ) -> None:
        """Takes one of each."""

    @job("tests.open")
    def anything(ctx: Any, **extra: Any) -> None:
        """Takes whatever there is."""

    yield
    registry._handlers = before


def place() -> str:
    return reverse("admin:jobscheduler_jobs_enqueue")


def run_of(template: Any) -> str:
    return reverse("admin:jobscheduler_jobs_template-run", args=[template.pk])


def params(**typed: str) -> dict[str, str]:
    return {f"param-{name}": value for name, value in typed.items()}


def post(client: Client, **fields: str) -> Any:
    return client.post(place(), {"job_type": KIND, **fields})


def test_the_form_shows_each_parameter_with_its_type_bounds_and_default(boss: Client) -> None:
    page = boss.get(f"{place()}?job_type={KIND}").content.decode()
    for name in ("title", "count", "ratio", "loud", "size", "colour", "options", "names", "note"):
        assert f'name="param-{name}"' in page, name
    for text in ("Takes one of each.", "integer, ≥ 1, ≤ 9", "Default: 0.5", '<option value="large">'):
        assert text in page, text


def test_what_is_typed_is_read_as_the_handler_declares_it(boss: Client) -> None:
    typed = params(title="12", count="3", ratio="1e-1", loud="true", size="large", options='{"a": [1]}', names='["x"]')
    answer = post(boss, **typed, target="book-1", priority="HIGH", tags="a, b", reason="to see", tenant="acme")
    made = Job.objects.get()
    assert answer["Location"] == get_page_url(made)
    assert made.params == {
        "title": "12",
        "count": 3,
        "ratio": 0.1,
        "loud": True,
        "size": "large",
        "options": {"a": [1]},
        "names": ["x"],
    }
    assert (made.target, made.priority, made.tags, made.tenant) == ("book-1", 75, ["a", "b"], "acme")
    (event,) = list_events(made)
    assert (event.actor_kind, event.actor_name, event.reason) == ("user", "boss", "to see")
    assert LogEntry.objects.get().object_id == str(made.pk)


def test_what_is_left_empty_is_not_said(boss: Client) -> None:
    post(boss, **params(title="t", count="1", note=""), not_before="2099-01-01T10:00", hold="on")
    made = Job.objects.get()
    assert (made.params, made.status, made.hold) == ({"title": "t", "count": 1}, Status.PENDING, True)
    assert made.not_before is not None
    assert made.not_before.year == 2099


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (params(title="t"), "This field is required."),
        (params(title="t", count="0"), "greater than or equal to 1"),
        (params(title="t", count="many"), "valid integer"),
        (params(title="t", count="1", loud="perhaps"), "not one of the available choices"),
        (params(title="t", count="1", colour="blue"), "red"),
        (params(title="t", count="1", options="{broken"), "should be an object"),
        (params(title="t", count="1", names='[1, "x"]'), "0: "),
        (params(title="\0", count="1"), "Null characters"),
        ({**params(title="t", count="1"), "target": "a/b"}, "target"),
        ({**params(title="t", count="1"), "tenant": "a b"}, "tenant"),
        ({**params(title="t", count="1"), "priority": "9000"}, "not one of the available choices"),
        ({**params(title="t", count="1"), "not_before": "soon"}, "valid date/time"),
        ({**params(title="t", count="1"), "tags": "x" * 300}, "tags"),
        ({**params(title="t", count="1"), "idempotency_key": "ü"}, "idempotency"),
    ],
)
def test_bad_input_is_told_beside_its_field_and_nothing_is_made(boss: Client, fields: Any, text: str) -> None:
    page = post(boss, **fields)
    assert (page.status_code, text in page.content.decode()) == (200, True)
    assert "errorlist" in page.content.decode()
    assert not Job.objects.exists()


def test_a_key_that_was_used_for_something_else_is_a_word_in_the_form(boss: Client) -> None:
    post(boss, **params(title="a", count="1"), idempotency_key="k")
    assert post(boss, **params(title="a", count="1"), idempotency_key="k").status_code == 302
    page = post(boss, **params(title="b", count="1"), idempotency_key="k")
    assert (page.status_code, "was used for another submission" in page.content.decode()) == (200, True)
    assert Job.objects.count() == 1


def test_a_handler_that_takes_anything_takes_an_object(boss: Client) -> None:
    post(boss, job_type="tests.open", more_params='{"a": 1}')
    assert Job.objects.get().params == {"a": 1}
    for wrong in ("[1]", "{", "[" * 5000):
        assert "errorlist" in post(boss, job_type="tests.open", more_params=wrong).content.decode()
    assert Job.objects.count() == 1


def test_an_unknown_job_type_is_told(boss: Client) -> None:
    for answer in (boss.get(f"{place()}?job_type=tests.typo"), boss.post(place(), {"job_type": "tests.typo"})):
        assert (answer.status_code, "There is no job type" in answer.content.decode()) == (200, True)
    assert boss.post(place(), {}).status_code == boss.get(place()).status_code == 200


def test_it_takes_the_permission_to_add_jobs(looker: Client) -> None:
    before = dump_tables()
    assert looker.get(place()).status_code == post(looker, **params(title="t", count="1")).status_code == 403
    assert place() not in looker.get(reverse("admin:index")).content.decode()
    assert dump_tables() == before


def test_every_job_type_that_is_known_has_a_form(boss: Client) -> None:
    for name in registry.names():
        assert boss.get(place(), {"job_type": name}).status_code == 200, name


def test_a_template_runs_as_it_stands_and_with_what_is_changed(boss: Client) -> None:
    template = JobTemplateFactory.create(job_type=KIND, params={"title": "t", "count": 2, "options": {"token": "x"}})
    assert run_of(template) in boss.get(get_page_url(template)).content.decode()
    page = boss.get(run_of(template)).content.decode()
    assert ('value="2"' in page, MASK in page) == (True, True)
    shown = '{\r\n  "token": "' + MASK + '"\r\n}'
    boss.post(run_of(template), params(title="t", count="2", options=shown))
    changed = boss.post(run_of(template), params(title="t", count="2", options='{"token": "' + MASK + '", "b": 1}'))
    assert "write its value in again" in changed.content.decode()
    beside = boss.post(run_of(template), params(title="u", count="2", options=shown))
    assert "cannot be set in a run of this template" in str(beside.context["form"].errors["param-title"])
    JobTemplate.objects.update(overridable=["title"])
    boss.post(run_of(template), params(title="u", count="2"))
    last, first = Job.objects.order_by("-pk")
    assert first.params == template.params
    assert last.params == {"title": "u", "count": 2, "options": {"token": "x"}}
    assert {first.template_id, last.template_id} == {template.pk}


def test_params_that_one_may_not_see_stay_hidden_and_are_used(db: Any) -> None:
    client = log_in(create_reader("runner", "run_jobtemplate"))
    template = JobTemplateFactory.create(job_type=KIND, params={"title": "only-for-some", "count": 2})
    assert "only-for-some" not in client.get(run_of(template)).content.decode()
    assert client.post(run_of(template), {}).status_code == 302
    assert Job.objects.get().params == template.params


def test_running_a_template_takes_its_permission(looker: Client) -> None:
    template = JobTemplateFactory.create(job_type=KIND, params={"title": "t", "count": 2})
    assert looker.get(run_of(template)).status_code == looker.post(run_of(template), {}).status_code == 403
    assert run_of(template) not in looker.get(get_page_url(template)).content.decode()
    assert not Job.objects.exists()


def test_a_template_of_an_unknown_type_or_that_is_gone_is_told(boss: Client) -> None:
    template = JobTemplateFactory.create(job_type="tests.gone")
    assert "There is no job type" in boss.get(run_of(template)).content.decode()
    assert boss.post(run_of(template), {}).status_code == 200
    template.delete()
    assert boss.get(run_of(JobTemplateFactory.build())).status_code == 404


def test_the_form_warns_where_no_running_worker_handles_the_type(boss: Client) -> None:
    assert 'id="no-worker"' in boss.get(place(), {"job_type": KIND}).content.decode()
    WorkerFactory(serves={"types": [KIND]})
    assert 'id="no-worker"' not in boss.get(place(), {"job_type": KIND}).content.decode()
