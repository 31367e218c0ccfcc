"""DEC-003: cron expressions by a library, triggers by rows of our own; a trigger only ever makes our job."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobs.errors import InvalidInput
from jobs.models import Job
from schedules import services
from schedules.cron import CronError, parse_expression
from schedules.firing import fire_due
from schedules.models import Schedule, ScheduleFire
from tests.support.schedules import NOON, create_due_schedule, list_fire_times, list_minutes
from tests.support.snapshots import dump_tables


def test_dec_003_unit_five_fields_and_names_are_understood() -> None:
    assert parse_expression("@daily") == parse_expression("0 0 * * *") == "0 0 * * *"
    with pytest.raises(CronError):
        parse_expression("0 0 * * * *")


@pytest.mark.django_db
def test_dec_003_integration_a_trigger_lives_in_our_tables_and_makes_our_job() -> None:
    row = create_due_schedule(misfire_grace_sec=3600)
    assert fire_due(NOON + timedelta(minutes=2)) == 3
    assert list_fire_times(row) == list_minutes(NOON, 3)
    assert set(Job.objects.values_list("schedule_id", flat=True)) == {row.pk}
    assert set(ScheduleFire.objects.values_list("job_id", flat=True)) == set(Job.objects.values_list("pk", flat=True))


@pytest.mark.django_db
@pytest.mark.parametrize("cron", ["0 0 31 2 *", "61 * * * *", "@reboot", "nightly"])
def test_dec_003_error_what_never_comes_or_makes_no_sense_is_refused(cron: str) -> None:
    before = dump_tables()
    with pytest.raises(InvalidInput) as refused:
        services.create({"name": "nightly", "cron": cron, "job_type": "tests.anything"})
    assert refused.value.errors[0]["loc"] == ["cron"]
    assert dump_tables() == before
    assert not Schedule.objects.exists()
