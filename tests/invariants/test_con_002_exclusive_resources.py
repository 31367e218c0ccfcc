"""CON-002: a resource that serves one at a time gets one at a time; others do not wait for it."""

from __future__ import annotations

import pytest
from django.test import override_settings

from jobs.conf import LimitValues, conf
from jobs.engine.selection import limits
from jobs.errors import InvalidInput
from jobs.models import Job
from jobs.services import jobs as job_services
from tests.sample_app import job_types
from tests.support import executor
from tests.support.snapshots import dump_tables

TYPE = job_types.anything.name
OLLAMA_ALONE = {"LIMITS": {"global": None, "resource": {"ollama": 1}}}


@override_settings(JOBSCHEDULER=OLLAMA_ALONE)
def test_con_002_unit_a_resource_can_have_its_own_limit() -> None:
    assert dict(conf.LIMITS.items()) == {("resource", "ollama"): LimitValues(1)}


@pytest.mark.django_db
@override_settings(JOBSCHEDULER=OLLAMA_ALONE)
def test_con_002_integration_jobs_of_another_resource_pass_those_that_wait() -> None:
    limits.sync_limits()
    ids = job_services.enqueue_many(
        [{"job_type": TYPE, "resource": name} for name in ("ollama", "ollama", "api", "api")]
    )
    first, second, *free = (Job.objects.get(pk=job_id) for job_id in ids)
    running = executor.claim(first)
    for job in free:
        executor.claim(job)
    assert executor.claim_next() is None
    executor.complete(running)
    executor.claim(second)


@pytest.mark.django_db
@override_settings(JOBSCHEDULER=OLLAMA_ALONE)
def test_con_002_error_a_busy_resource_starts_nothing_and_a_nameless_one_is_refused() -> None:
    limits.sync_limits()
    executor.claim(job_services.enqueue(TYPE, resource="ollama"))
    job_services.enqueue(TYPE, resource="ollama", priority="URGENT")
    before = dump_tables()
    assert executor.claim_next() is None
    with pytest.raises(InvalidInput):
        job_services.enqueue(TYPE, resource="")
    assert dump_tables() == before
