"""DEC-010: each schedule has a timezone, UTC unless said; a change of it counts from the next fire."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from jobs.errors import InvalidInput
from jobs.models import Job
from schedules import services
from schedules.cron import Cron, UnknownZone, get_zone
from schedules.firing import fire_due
from tests.support.schedules import create_schedule, list_fire_times, make_due
from tests.support.snapshots import dump_tables


def test_dec_010_unit_an_expression_is_read_in_its_own_zone() -> None:
    midnight = datetime(2026, 7, 1, tzinfo=UTC)
    hours = {
        name: Cron("0 3 * * *", get_zone(name)).next_after(midnight) for name in ("UTC", "Europe/Berlin", "Asia/Tokyo")
    }
    assert {name: due.hour for name, due in hours.items() if due} == {"UTC": 3, "Europe/Berlin": 1, "Asia/Tokyo": 18}


@pytest.mark.django_db
def test_dec_010_integration_utc_is_the_default_and_a_new_zone_counts_from_the_next_fire() -> None:
    row = create_schedule(cron="0 3 * * *")
    assert row.timezone == "UTC"
    make_due(row, datetime(2026, 7, 1, 3, tzinfo=UTC))
    fire_due(datetime(2026, 7, 1, 3, tzinfo=UTC))
    make_due(row, timezone.now() + timedelta(days=1))
    before = list(Job.objects.values())
    moved = services.update(row.pk, {"timezone": "Asia/Tokyo"})
    assert moved.next_fire_at is not None
    assert (moved.next_fire_at.hour, moved.next_fire_at.minute) == (18, 0)
    assert list(Job.objects.values()) == before
    assert list_fire_times(row) == [datetime(2026, 7, 1, 3, tzinfo=UTC)]


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["Mars/Phobos", "../../etc/passwd", "/etc/localtime", "europe/berlin", ""])
def test_dec_010_error_a_zone_that_there_is_not_is_refused(name: str) -> None:
    with pytest.raises(UnknownZone):
        get_zone(name)
    row = create_schedule()
    before = dump_tables()
    with pytest.raises(InvalidInput) as refused:
        services.update(row.pk, {"timezone": name})
    assert refused.value.errors[0]["loc"] == ["timezone"]
    assert dump_tables() == before
