"""The factories make rows that every constraint and trigger accepts."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from factory.django import DjangoModelFactory

from jobs.states import ACTIVE, TERMINAL, Status
from tests import factories
from tests.factories import job_in
from tests.support.snapshots import APP_LABELS

pytestmark = pytest.mark.django_db

FACTORIES = [
    item
    for item in vars(factories).values()
    if isinstance(item, type) and issubclass(item, DjangoModelFactory) and item is not DjangoModelFactory
]
STARTED = {Status.RUNNING, Status.PAUSED, Status.COMPLETED, Status.FAILED, Status.SKIPPED}


@pytest.mark.parametrize("factory", FACTORIES, ids=lambda factory: factory.__name__)
def test_a_row_of_every_entity_can_be_made_twice(factory: type[DjangoModelFactory[Any]]) -> None:
    first, second = factory.create(), factory.create()
    assert (first.pk != second.pk) or factory is factories.SystemSnapshotFactory


def test_every_entity_has_a_factory() -> None:
    models = {model for label in APP_LABELS for model in apps.get_app_config(label).get_models()}
    assert {factory._meta.model for factory in FACTORIES} == models


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("place", [{}, {"in_lane": True}, {"in_group": True}], ids=str)
def test_a_job_can_be_made_in_every_state(status: Status, place: dict[str, Any]) -> None:
    job = job_in(status, **place)
    job.refresh_from_db()
    assert job.status == status
    assert hasattr(job, "run") == (status in STARTED)
    assert (job.dispatched_at is not None) == (status in STARTED | ACTIVE)
    if hasattr(job, "run"):
        assert job.run.status == (status if status in TERMINAL else Status.RUNNING)
    assert (job.lane_id is not None, job.group_id is not None) == ("in_lane" in place, "in_group" in place)
