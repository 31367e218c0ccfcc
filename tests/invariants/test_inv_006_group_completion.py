"""INV-006: a group is terminal only when all its members are, in the transaction of the last one's end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from jobs.engine import groups
from jobs.models import GroupStatus, Job, JobGroup
from jobs.services import jobs as job_services
from jobs.states import LIVE, Status
from tests.factories import JobFactory, JobGroupFactory, job_in
from tests.sample_app import job_types
from tests.support import executor
from tests.support.snapshots import dump_tables

pytestmark = pytest.mark.django_db

assert job_types.note.name == "tests.note"  # the type of the factories' jobs can be claimed
C, F, S, X = Status.COMPLETED, Status.FAILED, Status.SKIPPED, Status.CANCELLED


@pytest.mark.parametrize(
    ("members", "asked_to_cancel", "status"),
    [
        ([C, C], False, "COMPLETED"),
        ([C, S], False, "COMPLETED"),
        ([S, S], False, "COMPLETED"),
        ([F, F], False, "FAILED"),
        ([F, C], False, "PARTIAL"),
        ([F, X, X], False, "PARTIAL"),
        ([C, X], False, "PARTIAL"),
        ([F, S], False, "PARTIAL"),
        ([X, X], False, "CANCELLED"),
        ([C, X], True, "CANCELLED"),
        ([F, X], True, "CANCELLED"),
        ([C, C], True, "COMPLETED"),
        ([F, F], True, "FAILED"),
    ],
)
def test_inv_006_unit_the_status_is_that_of_all_members(
    members: list[Status], asked_to_cancel: bool, status: str
) -> None:
    group = JobGroupFactory.create(cancel_requested=asked_to_cancel)
    for index, member in enumerate(members):
        job_in(member, group=group, group_index=index)
    assert groups._final_status(group) == status


def test_inv_006_unit_of_a_retry_chain_only_the_end_counts() -> None:
    group = JobGroupFactory.create()
    failed = JobFactory.create(failed=True, group=group, group_index=0)
    JobFactory.create(completed=True, group=group, group_index=0, retry_of=failed, attempt=2)
    assert groups._final_status(group) == GroupStatus.COMPLETED


def test_inv_006_integration_a_group_ends_with_its_last_member_and_not_before() -> None:
    group = JobGroupFactory.create()
    first, second = (JobFactory.create(group=group, group_index=index) for index in range(2))
    executor.complete(executor.claim(first))
    failed = executor.fail(executor.claim(second), retry_in=3600)
    group.refresh_from_db()
    assert not group.is_terminal, "its retry waits"
    executor.complete(executor.claim(job_services.retry(failed.pk)))
    group.refresh_from_db()
    assert (group.status, group.finished_at is not None) == (GroupStatus.COMPLETED, True)


@pytest.mark.parametrize("live", sorted(LIVE))
@pytest.mark.parametrize("ended", ["COMPLETED", "FAILED", "PARTIAL", "CANCELLED"])
def test_inv_006_error_a_group_cannot_end_over_a_live_member(live: Status, ended: str) -> None:
    group = JobGroupFactory.create()
    job_in(live, group=group, group_index=0)
    before = dump_tables()
    with pytest.raises(IntegrityError, match="INV-006"), transaction.atomic():
        JobGroup.objects.filter(pk=group.pk).update(status=ended, finished_at=timezone.now())
    assert dump_tables() == before


@pytest.mark.parametrize("how", ["born", "moved"])
def test_inv_006_error_nothing_live_joins_an_ended_group(how: str) -> None:
    group = JobGroupFactory.create(status=GroupStatus.COMPLETED, finished_at=timezone.now())
    outsider = Job.objects.filter(pk=JobFactory.create().pk)
    join: Callable[..., Any] = JobFactory.create if how == "born" else outsider.update
    before = dump_tables()
    with pytest.raises(IntegrityError, match="INV-006"), transaction.atomic():
        join(group=group, group_index=3)
    assert dump_tables() == before
