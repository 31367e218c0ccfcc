"""DEC-012: in a sequential group a failure, its retries over, ends the rest; the group is PARTIAL."""

from __future__ import annotations

import pytest

from jobs.errors import WrongState
from jobs.models import GroupStatus, Job, JobGroup
from jobs.policies.groups import GroupFailureFacts, OnFailure
from jobs.services import jobs as job_services
from jobs.states import Status
from tests.factories import JobFactory, JobGroupFactory
from tests.sample_app import job_types
from tests.support import executor
from tests.support.snapshots import dump_tables

assert job_types.note.name == "tests.note"  # the type of the factories' jobs can be claimed


def _sequence() -> tuple[JobGroup, list[Job]]:
    group = JobGroupFactory.create(sequential=True)
    first = JobFactory.create(group=group, group_index=0)
    rest = [JobFactory.create(group=group, group_index=n, pending=True, hold=False) for n in (1, 2)]
    return group, [first, *rest]


@pytest.mark.parametrize("word", ["stop", "continue", "skip"])
def test_dec_012_unit_the_group_says_what_happens_and_stop_is_the_default(word: str) -> None:
    facts = GroupFailureFacts(on_failure=word, status=Status.FAILED, index=0, total=3)
    assert OnFailure().decide(facts) == word
    assert JobGroup._meta.get_field("on_failure").default == "stop"


@pytest.mark.django_db
def test_dec_012_integration_the_rest_is_cancelled_only_when_the_retries_are_over() -> None:
    group, (first, *rest) = _sequence()
    failed = executor.fail(executor.claim(first), retry_in=3600)
    assert [Job.objects.get(pk=job.pk).status for job in rest] == ["PENDING", "PENDING"]
    executor.fail(executor.claim(job_services.retry(failed.pk)))
    for job in rest:
        job.refresh_from_db()
        assert (job.status, job.status_reason) == (Status.CANCELLED, "predecessor failed")
    group.refresh_from_db()
    assert group.status == GroupStatus.PARTIAL


@pytest.mark.django_db
def test_dec_012_error_a_place_cannot_be_let_go_past_its_predecessor() -> None:
    _, (first, second, third) = _sequence()
    executor.claim(first)
    before = dump_tables()
    for job in (second, third):
        with pytest.raises(WrongState):
            job_services.release(job.pk)
    assert executor.claim_next() is None, "only the first place was in the queue"
    assert dump_tables() == before
