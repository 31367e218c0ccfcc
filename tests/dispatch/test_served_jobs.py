"""Which jobs a worker claims: those of its types, resources and tenant, whatever characters their names have."""

from __future__ import annotations

import pytest

from jobs.engine.claim import Claimer, ServedJobs
from jobs.services import jobs as job_services
from tests.sample_app import job_types

pytestmark = pytest.mark.django_db
TYPE = job_types.anything.name
RESOURCE_NAMES = ["plain", "two words", "comma,brace{}", 'a "quoted" one', "back\\slash", "NULL", "", "ünïcode"]


@pytest.mark.parametrize("name", RESOURCE_NAMES)
def test_a_worker_of_one_resource_claims_its_jobs_and_no_others(name: str) -> None:
    ids = {other: job_services.enqueue(TYPE, resource=other).id for other in RESOURCE_NAMES if other}
    claimer = Claimer("w", ServedJobs((TYPE,), resources=(name,)), process_key="w@1")
    claims = [claim.id for _ in range(2) for claim in claimer.claim([1, 2], lease_sec=60)]
    assert claims == ([ids[name]] if name else [])
