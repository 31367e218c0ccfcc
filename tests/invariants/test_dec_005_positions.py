"""DEC-005: within a priority, the order is a position that can be changed."""

from __future__ import annotations

import pytest

from jobs.engine.ordering import SPACING
from jobs.errors import InvalidInput, WrongState
from jobs.models import Job
from jobs.services import jobs as job_services
from tests.sample_app import job_types
from tests.support import executor
from tests.support.snapshots import dump_tables

pytestmark = pytest.mark.django_db

TYPE = job_types.anything.name


def test_dec_005_unit_positions_are_whole_numbers_with_room_between_them() -> None:
    first, second = job_services.enqueue(TYPE), job_services.enqueue(TYPE)
    assert isinstance(first.position, int)
    assert second.position - first.position >= SPACING
    assert job_services.move(second.pk, before=first.pk).position == first.position - SPACING


def test_dec_005_integration_jobs_start_in_the_order_they_were_moved_into() -> None:
    a, b, c, d = (Job.objects.get(pk=job_id) for job_id in job_services.enqueue_many([{"job_type": TYPE}] * 4))
    job_services.move(d.pk, before=b.pk)
    job_services.move(a.pk, to="bottom")
    job_services.move(c.pk, to="top")
    for expected in (c, d, b, a):
        executor.complete(executor.claim(expected))


def test_dec_005_error_a_position_orders_within_its_priority_only() -> None:
    low, high = job_services.enqueue(TYPE, priority=1, position=0), job_services.enqueue(TYPE, priority=2, position=9)
    assert list(Job.objects.in_dispatch_order()) == [high, low]
    before = dump_tables()
    with pytest.raises(WrongState):
        job_services.move(low.pk, before=high.pk)
    with pytest.raises(InvalidInput):
        job_services.enqueue(TYPE, position="first")  # type: ignore[arg-type]
    assert dump_tables() == before
