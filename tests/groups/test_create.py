"""Groups by the front door: what is born, what is refused, and what a repeated submission gets."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from jobs import group
from jobs.errors import IdempotencyKeyReused, InvalidInput, UnknownJobType
from jobs.models import GroupStatus, Job, JobGroup
from jobs.services import groups
from jobs.states import Status
from tests.sample_app.jobs import add, noop
from tests.support.snapshots import dump_tables, list_event_kinds

pytestmark = pytest.mark.django_db

ITEM = {"job_type": "sample.noop"}


def statuses(made: JobGroup) -> list[str]:
    return list(groups.get_latest_attempts(made.pk).values_list("status", flat=True))


def test_a_sequence_lets_only_its_first_place_go() -> None:
    made = group([noop.s(), add.using(priority="HIGH").s(a=1, b=2), noop.s()], mode="sequential", name="book").enqueue()
    assert (made.status, made.mode, made.on_failure, made.name) == (GroupStatus.PENDING, "sequential", "stop", "book")
    assert statuses(made) == ["QUEUED", "PENDING", "PENDING"]
    second = groups.get_latest_attempts(made.pk)[1]
    assert (second.params, second.priority, second.group_index) == ({"a": 1, "b": 2}, 75, 1)
    assert list_event_kinds(second) == ["SUBMITTED", "HELD"]


def test_members_of_a_parallel_group_all_wait_in_the_queue_but_those_that_are_held() -> None:
    made = groups.create([ITEM, {**ITEM, "hold": True}, ITEM])
    assert statuses(made) == ["QUEUED", "PENDING", "QUEUED"]


@pytest.mark.parametrize("options", [{}, {"on_failure": None}, {"on_failure": "continue"}])
def test_a_parallel_group_says_what_it_does_on_failure(options: dict[str, Any]) -> None:
    assert groups.create([ITEM], **options).on_failure == "continue"
    assert group([noop.s()], **options).enqueue().on_failure == "continue"


def test_a_parallel_group_of_an_earlier_version_is_found_by_its_keys() -> None:
    first = groups.create(items_with_keys("a", "b"))
    JobGroup.objects.update(on_failure="stop")
    assert groups.create(items_with_keys("a", "b")).pk == first.pk


def test_members_belong_to_the_tenant_of_their_group() -> None:
    made = groups.create([{**ITEM, "target": "book-1"}], tenant="acme")
    assert set(Job.objects.values_list("tenant", flat=True)) == {"acme"} == {made.tenant}


def test_a_group_is_part_of_the_callers_transaction() -> None:
    with transaction.atomic():
        groups.create([ITEM, ITEM])
        transaction.set_rollback(True)
    assert not JobGroup.objects.exists()
    assert not Job.objects.exists()


def test_a_thousand_members_cost_as_many_statements_as_ten() -> None:
    with CaptureQueriesContext(connection) as baseline:
        groups.create([ITEM] * 10, mode="sequential")
    with CaptureQueriesContext(connection) as many:
        groups.create([ITEM] * 1000, mode="sequential")
    assert len(many) <= len(baseline)


BAD: dict[str, tuple[Any, dict[str, Any], list[str | int]]] = {
    "no members": ([], {}, ["jobs"]),
    "members that are no list": ({"job_type": "sample.noop"}, {}, ["jobs"]),
    "members that are null": (None, {}, ["jobs"]),
    "a member that is no object": ([ITEM, 7], {}, ["jobs", 1]),
    "a member of no type": ([ITEM, {"params": {}}], {}, ["jobs", 1, "job_type"]),
    "a member's unknown type": ([{"job_type": "no.such"}], {}, ["jobs", 0, "job_type"]),
    "a member's bad params": ([ITEM, {"job_type": "sample.add", "params": {"a": "x", "b": 1}}], {}, ["jobs", 1]),
    "a member's unknown field": ([{**ITEM, "status": "COMPLETED"}], {}, ["jobs", 0, "status"]),
    "a member's own tenant": ([{**ITEM, "tenant": "acme"}], {}, ["jobs", 0, "tenant"]),
    "two members with one key": ([{**ITEM, "idempotency_key": "k"}] * 2, {}, ["jobs"]),
    "an unknown mode": ([ITEM], {"mode": "zigzag"}, ["mode"]),
    "a mode that is no text": ([ITEM], {"mode": 3}, ["mode"]),
    "an unknown word on failure": ([ITEM], {"on_failure": "panic"}, ["on_failure"]),
    "a failure that stops nothing": ([ITEM], {"on_failure": "stop"}, ["on_failure"]),
    "a failure that skips nothing": ([ITEM], {"mode": "parallel", "on_failure": "skip"}, ["on_failure"]),
    "a name with a NUL": ([ITEM], {"name": "a\0b"}, ["name"]),
    "a name that is too long": ([ITEM], {"name": "x" * 201}, ["name"]),
    "a bad tenant": ([ITEM], {"tenant": "a b"}, ["tenant"]),
}


@pytest.mark.parametrize("case", BAD)
def test_a_group_that_makes_no_sense_is_refused_by_field_and_changes_nothing(case: str) -> None:
    members, options, place = BAD[case]
    before = dump_tables()
    with pytest.raises(InvalidInput) as refusal:
        groups.create(members, **options)
    assert refusal.value.errors[0]["loc"][: len(place)] == place
    assert dump_tables() == before


def test_too_many_members_are_refused() -> None:
    with pytest.raises(InvalidInput, match="more than 2"):
        groups.create([ITEM] * 3, limit=2)


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(UnknownJobType, match=r"jobs\.0\.job_type"):
        groups.create([{"job_type": "no.such"}])


def items_with_keys(*keys: str, **extra: Any) -> list[dict[str, Any]]:
    return [{**ITEM, "idempotency_key": key, **extra} for key in keys]


def test_a_group_that_is_submitted_again_is_the_first_one() -> None:
    first = groups.create(items_with_keys("a", "b"), mode="sequential")
    assert groups.create(items_with_keys("a", "b"), mode="sequential").pk == first.pk
    assert Job.objects.count() == 2


@pytest.mark.parametrize(
    ("members", "options"),
    [
        (items_with_keys("a", "b"), {}),
        (items_with_keys("b", "a"), {"mode": "sequential"}),
        (items_with_keys("a"), {"mode": "sequential"}),
        (items_with_keys("a", "b", "c"), {"mode": "sequential"}),
        (items_with_keys("a", "b", priority=1), {"mode": "sequential"}),
        ([*items_with_keys("a"), ITEM], {"mode": "sequential"}),
    ],
)
def test_a_key_that_was_used_for_another_group_is_refused(members: Any, options: dict[str, Any]) -> None:
    groups.create(items_with_keys("a", "b"), mode="sequential")
    before = dump_tables()
    with pytest.raises(IdempotencyKeyReused):
        groups.create(members, **options)
    assert dump_tables() == before


def test_a_key_of_a_single_job_cannot_be_a_members() -> None:
    from jobs.services.jobs import enqueue

    enqueue("sample.noop", idempotency_key="a")
    with pytest.raises(IdempotencyKeyReused):
        groups.create(items_with_keys("a"))


def test_progress_counts_the_last_job_of_each_place() -> None:
    from jobs.services import jobs as job_services
    from tests.support import executor

    made = groups.create([ITEM, ITEM, ITEM])
    first, second, _third = groups.get_latest_attempts(made.pk)
    executor.complete(executor.claim(first))
    executor.fail(executor.claim(second))
    job_services.retry(second.pk)
    assert groups.count_progress([made.pk])[made.pk] == {
        "total": 3,
        "by_status": {Status.COMPLETED: 1, Status.QUEUED: 2},
    }
