"""Bad input is refused at the front door: by name, with the field that is wrong, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone

from jobs.errors import InvalidInput, InvalidParams, JobSchedulerError, NotFound, UnknownJobType
from jobs.services import jobs as job_services
from tests.factories import JobFactory, JobTemplateFactory
from tests.sample_app import job_types
from tests.support.snapshots import dump_tables

pytestmark = pytest.mark.django_db

NOBODY = UUID("0192f62e-536a-741b-8a96-ab5ca7eee76a")  # the id of no job
NOTE, ANY, AT = job_types.note.name, job_types.anything.name, job_types.at.name
NUL, LONE = "a\0b", "a\ud800b"
SOON = timezone.now() + timedelta(hours=1)
NAIVE = datetime(2031, 1, 1)
Loc = list[str | int]
Kind = type[JobSchedulerError]


def note(**extra: Any) -> dict[str, Any]:
    return {"job_type": NOTE, "params": {"text": "a"}, **extra}


def anything(value: Any) -> dict[str, Any]:
    return {"job_type": ANY, "params": {"x": value}}


def deep(levels: int) -> Any:
    return [] if levels == 0 else [deep(levels - 1)]


# what is submitted → the error, and where it points
SUBMISSIONS: list[tuple[str, dict[str, Any], Kind, Loc]] = [
    # what
    ("an unknown type", {"job_type": "tests.nosuch"}, UnknownJobType, ["job_type"]),
    ("no type", {}, InvalidInput, ["job_type"]),
    ("an empty type", {"job_type": ""}, InvalidInput, ["job_type"]),
    ("a type that is no text", {"job_type": 7}, InvalidInput, ["job_type"]),
    ("a type with a line break", {"job_type": "tests.note\n"}, InvalidInput, ["job_type"]),
    ("a type and a template", note(template="t"), InvalidInput, ["job_type"]),
    ("an unknown template", {"template": "nosuch"}, InvalidInput, ["template"]),
    # params against the handler
    ("a missing param", {"job_type": NOTE, "params": {}}, InvalidParams, ["params", "text"]),
    ("no params where some are needed", {"job_type": NOTE}, InvalidParams, ["params", "text"]),
    ("an extra param", note(params={"text": "a", "colour": 1}), InvalidParams, ["params", "colour"]),
    ("a number for a text", note(params={"text": 1}), InvalidParams, ["params", "text"]),
    ("a text for a number", note(params={"text": "a", "times": "2"}), InvalidParams, ["params", "times"]),
    ("a boolean for a number", note(params={"text": "a", "times": True}), InvalidParams, ["params", "times"]),
    ("a fraction for a whole number", note(params={"text": "a", "times": 1.5}), InvalidParams, ["params", "times"]),
    ("null for a text", note(params={"text": None}), InvalidParams, ["params", "text"]),
    ("a day that is none", {"job_type": AT, "params": {"when": "2031-02-30"}}, InvalidParams, ["params", "when"]),
    # params that no database could store
    ("a list of params", note(params=["a"]), InvalidInput, ["params"]),
    ("a text of params", note(params="a"), InvalidInput, ["params"]),
    ("NUL in a param", note(params={"text": NUL}), InvalidInput, ["params", "text"]),
    ("NUL deep in a param", anything([{"y": NUL}]), InvalidInput, ["params", "x", 0, "y"]),
    ("NUL in a name", {"job_type": ANY, "params": {NUL: 1}}, InvalidInput, ["params"]),
    ("half a surrogate pair in a param", note(params={"text": LONE}), InvalidInput, ["params", "text"]),
    ("half a surrogate pair in a name", {"job_type": ANY, "params": {LONE: 1}}, InvalidInput, ["params"]),
    ("NaN in a param", anything(float("nan")), InvalidInput, ["params", "x"]),
    ("infinity in a param", anything([float("-inf")]), InvalidInput, ["params", "x", 0]),
    ("more than 64 bits in a param", anything(2**63), InvalidInput, ["params", "x"]),
    ("less than 64 bits in a param", anything(-(2**63) - 1), InvalidInput, ["params", "x"]),
    ("a naive time in a param", anything(NAIVE), InvalidInput, ["params", "x"]),
    ("bytes in a param", anything(b"x"), InvalidInput, ["params", "x"]),
    ("a set in a param", anything({1}), InvalidInput, ["params", "x"]),
    ("NaN as a decimal", anything(Decimal("NaN")), InvalidInput, ["params", "x"]),
    ("a number as a name", {"job_type": ANY, "params": {1: "x"}}, InvalidInput, ["params"]),
    ("params nested too deeply", anything(deep(40)), InvalidInput, ["params"]),
    ("params larger than a megabyte", anything("x" * 1_100_000), InvalidInput, ["params"]),
    # fields
    ("a field that does not exist", note(colour="red"), InvalidInput, ["colour"]),
    ("a priority above all", note(priority=101), InvalidInput, ["priority"]),
    ("a priority below all", note(priority=-1), InvalidInput, ["priority"]),
    ("an unknown name of a priority", note(priority="SOON"), InvalidInput, ["priority"]),
    ("a fraction of a priority", note(priority=50.0), InvalidInput, ["priority"]),
    ("a boolean priority", note(priority=True), InvalidInput, ["priority"]),
    ("a position beyond the numbers", note(position=2**63), InvalidInput, ["position"]),
    ("a naive start", note(not_before=NAIVE), InvalidInput, ["not_before"]),
    ("a naive start as text", note(not_before="2031-01-01T00:00:00"), InvalidInput, ["not_before"]),
    ("a start that is no time", note(not_before="tomorrow"), InvalidInput, ["not_before"]),
    ("a start as a number", note(not_before=1_900_000_000), InvalidInput, ["not_before"]),
    ("a naive deadline", note(deadline_at=NAIVE), InvalidInput, ["deadline_at"]),
    ("a deadline before the start", note(not_before=SOON, deadline_at=timezone.now()), InvalidInput, ["deadline_at"]),
    ("a deadline at the start", note(not_before=SOON, deadline_at=SOON), InvalidInput, ["deadline_at"]),
    ("time-sensitive without a deadline", note(time_sensitive=True), InvalidInput, ["time_sensitive"]),
    ("a tenant with a slash", note(tenant="a/b"), InvalidInput, ["tenant"]),
    ("an empty tenant", note(tenant=""), InvalidInput, ["tenant"]),
    ("a tenant that is too long", note(tenant="x" * 65), InvalidInput, ["tenant"]),
    ("a target with a slash", note(target="a/b"), InvalidInput, ["target"]),
    ("an empty target", note(target=""), InvalidInput, ["target"]),
    ("a target with NUL", note(target=NUL), InvalidInput, ["target"]),
    ("a target that is too long", note(target="x" * 201), InvalidInput, ["target"]),
    ("a resource with half a surrogate pair", note(resource=LONE), InvalidInput, ["resource"]),
    ("tags that are one text", note(tags="red"), InvalidInput, ["tags"]),
    ("a tag that is no text", note(tags=["red", 1]), InvalidInput, ["tags", 1]),
    ("an unknown constraint", note(constraints={"gpu": True}), InvalidInput, ["constraints", "gpu"]),
    ("a constraint that is no boolean", note(constraints={"cpu_heavy": 1}), InvalidInput, ["constraints", "cpu_heavy"]),
    ("no runtime at all", note(max_runtime_sec=0), InvalidInput, ["max_runtime_sec"]),
    ("a runtime of NaN", note(max_runtime_sec=float("nan")), InvalidInput, ["max_runtime_sec"]),
    ("a runtime without end", note(max_runtime_sec=float("inf")), InvalidInput, ["max_runtime_sec"]),
    ("a negative duration", note(expected_duration_sec=-1), InvalidInput, ["expected_duration_sec"]),
    ("a cost beyond the machine", note(cost_units=101), InvalidInput, ["cost_units"]),
    ("a negative token limit", note(token_limit=-1), InvalidInput, ["token_limit"]),
    ("a token limit beyond 64 bits", note(token_limit=2**63), InvalidInput, ["token_limit"]),
    ("negative retries", note(max_retries=-1), InvalidInput, ["max_retries"]),
    ("endless retries", note(max_retries=10**6), InvalidInput, ["max_retries"]),
    ("a hold that is no boolean", note(hold="yes"), InvalidInput, ["hold"]),
    ("an empty idempotency key", note(idempotency_key=""), InvalidInput, ["idempotency_key"]),
    ("an idempotency key beyond ASCII", note(idempotency_key="ü"), InvalidInput, ["idempotency_key"]),
    ("an idempotency key that is too long", note(idempotency_key="x" * 256), InvalidInput, ["idempotency_key"]),
]
NOT_ANYBODYS: dict[str, Any] = {
    "status": "COMPLETED",
    "lease_token": str(NOBODY),
    "lease_owner": "me",
    "retry_of": str(NOBODY),
    "retry_of_id": str(NOBODY),
    "attempt": 9,
    "id": str(NOBODY),
    "gate": 3,
    "dispatched_at": SOON,
    "resolved_at": SOON,
    "group": str(NOBODY),
    "schedule": str(NOBODY),
    "holds_lane": True,
    "base_priority": 1,
    "tokens_used": 0,
    "created_at": SOON,
}
SUBMISSIONS += [
    (f"{name} as a field", note(**{name: value}), InvalidInput, [name]) for name, value in NOT_ANYBODYS.items()
]


CASES = [pytest.param(*case[1:], id=case[0]) for case in SUBMISSIONS]


def _points_at(refusal: JobSchedulerError, loc: Loc) -> bool:
    assert isinstance(refusal, InvalidInput)
    return any(error["loc"][: len(loc)] == loc for error in refusal.errors)


@pytest.mark.parametrize(("fields", "kind", "loc"), CASES)
def test_a_bad_submission_is_refused_by_field(fields: dict[str, Any], kind: Kind, loc: Loc) -> None:
    before = dump_tables()
    with pytest.raises(kind) as refusal:
        job_services.enqueue(**fields)
    assert _points_at(refusal.value, loc)
    assert str(refusal.value).isprintable(), "what somebody sent does not travel on in the message"
    assert dump_tables() == before


@pytest.mark.parametrize(("fields", "kind", "loc"), CASES)
def test_a_bad_item_of_a_bulk_is_refused_by_place(fields: dict[str, Any], kind: Kind, loc: Loc) -> None:
    before = dump_tables()
    with pytest.raises(kind) as refusal:
        job_services.enqueue_many([note(), fields])
    assert _points_at(refusal.value, ["jobs", 1, *loc])
    assert dump_tables() == before


@pytest.mark.parametrize("item", [None, 7, "tests.note", ["tests.note"], [("job_type", "tests.note")]], ids=str)
def test_an_item_of_a_bulk_that_is_no_object_is_refused(item: Any) -> None:
    with pytest.raises(InvalidInput) as refusal:
        job_services.enqueue_many([note(), item])
    assert refusal.value.errors[0]["loc"] == ["jobs", 1]


@pytest.mark.parametrize("items", [None, 7, {"job_type": NOTE}, "tests.note"], ids=str)
def test_a_bulk_that_is_no_list_is_refused(items: Any) -> None:
    with pytest.raises(InvalidInput) as refusal:
        job_services.enqueue_many(items)
    assert refusal.value.errors[0]["loc"][0] == "jobs"


def test_a_template_that_no_longer_fits_its_handler_is_refused() -> None:
    JobTemplateFactory.create(name="old", job_type=NOTE, params={"words": 1})
    before = dump_tables()
    with pytest.raises(InvalidParams):
        job_services.enqueue(template="old")
    assert dump_tables() == before


VERBS: dict[str, Callable[..., Any]] = {
    "cancel": job_services.cancel,
    "pause": job_services.pause,
    "resume": job_services.resume,
    "retry": job_services.retry,
    "resolve": job_services.resolve,
    "release": job_services.release,
    "move": lambda job_id, **extra: job_services.move(job_id, to="top", **extra),
    "update": lambda job_id, **extra: job_services.update(job_id, {"tags": ["x"]}, **extra),
}
NO_IDS = ["", "x", "0" * 31, "0" * 33, "123e4567", 7, None, b"x", ["x"], NUL, str(NOBODY) + "\n", NOBODY]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("job_id", NO_IDS, ids=repr)
def test_an_id_of_no_job_is_not_found(verb: str, job_id: Any) -> None:
    JobFactory.create()
    before = dump_tables()
    with pytest.raises(NotFound):
        VERBS[verb](job_id)
    assert dump_tables() == before


BAD_REASONS = {"NUL": NUL, "surrogate": LONE, "too long": "x" * 2001, "number": 7, "list": ["x"], "true": True}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("reason", BAD_REASONS)
def test_a_bad_reason_is_refused_before_anything_moves(verb: str, reason: str) -> None:
    job = JobFactory.create(queued=True)
    before = dump_tables()
    with pytest.raises(InvalidInput) as refusal:
        VERBS[verb](job.pk, reason=BAD_REASONS[reason])
    assert refusal.value.errors[0]["loc"] == ["reason"]
    assert dump_tables() == before


@pytest.mark.parametrize("reason", BAD_REASONS)
def test_a_bad_reason_of_a_submission_is_refused(reason: str) -> None:
    before = dump_tables()
    for submit in (lambda **extra: job_services.enqueue(NOTE, {"text": "a"}, **extra), _many):
        with pytest.raises(InvalidInput) as refusal:
            submit(reason=BAD_REASONS[reason])
        assert refusal.value.errors[0]["loc"] == ["reason"]
    assert dump_tables() == before


def _many(**extra: Any) -> Any:
    return job_services.enqueue_many([note()], **extra)


@pytest.mark.parametrize("fresh", ["yes", 1, None, 0])
def test_a_retry_is_fresh_or_not(fresh: Any) -> None:
    job = JobFactory.create(failed=True)
    before = dump_tables()
    with pytest.raises(InvalidInput) as refusal:
        job_services.retry(job.pk, fresh=fresh)
    assert refusal.value.errors[0]["loc"] == ["fresh"]
    assert dump_tables() == before


@pytest.mark.parametrize(
    "where",
    [
        {},
        {"to": "middle"},
        {"to": 1},
        {"to": ""},
        {"to": "top", "before": "other"},
        {"before": "other", "after": "other"},
    ],
    ids=str,
)
def test_a_move_says_one_place(where: dict[str, Any]) -> None:
    job, other = JobFactory.create(), JobFactory.create()
    fields: dict[str, Any] = {name: other.pk if value == "other" else value for name, value in where.items()}
    before = dump_tables()
    with pytest.raises(InvalidInput):
        job_services.move(job.pk, **fields)
    assert dump_tables() == before


@pytest.mark.parametrize("way", ["before", "after"])
@pytest.mark.parametrize("neighbour", ["x", "", 7, NUL], ids=repr)
def test_a_neighbour_that_is_no_id_is_not_found(way: str, neighbour: Any) -> None:
    job = JobFactory.create()
    before = dump_tables()
    with pytest.raises(NotFound):
        job_services.move(job.pk, **{way: neighbour})
    assert dump_tables() == before


@pytest.mark.parametrize("changes", [None, [], "tags", 7], ids=repr)
def test_an_edit_that_is_no_object_is_refused(changes: Any) -> None:
    job = JobFactory.create()
    with pytest.raises(InvalidInput):
        job_services.update(job.pk, changes)


def test_there_are_enough_of_them() -> None:
    assert len(SUBMISSIONS) >= 40
    assert len({case[0] for case in SUBMISSIONS}) == len(SUBMISSIONS)
    assert all(isinstance(case[1], Mapping) for case in SUBMISSIONS)
