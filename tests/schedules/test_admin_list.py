"""Schedules in the console: rules in plain language, a preview before saving, and the last fires in the list."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from jobs.states import Status
from schedules.admin import fires
from schedules.describe import describe_cron, describe_interval
from schedules.models import MANY_SKIPS, Schedule, ScheduleFire
from tests.factories import JobFactory, ScheduleFactory, job_in
from tests.support.admin_pages import count_queries, get_list_url, get_page_url
from tests.support.admin_users import create_reader, log_in
from tests.support.schedules import NOON, create_due_schedule
from tests.support.snapshots import dump_tables


def get_preview_url() -> str:
    return reverse("admin:jobscheduler_schedules_schedule_preview")


def fetch_preview(client: Client, **fields: str) -> str:
    response = client.get(get_preview_url(), {"fragment": "1", **fields})
    assert response.status_code == 200
    return response.content.decode()


@pytest.mark.parametrize(
    ("cron", "description"),
    [
        ("0 9 * * 1-5", "At 09:00 on Monday through Friday"),
        ("@daily", "At 00:00 every day"),
        ("nonsense", ""),
        ("0 0 31 2 *", ""),
    ],
)
def test_a_cron_expression_is_described_in_plain_language(cron: str, description: str) -> None:
    assert describe_cron(cron) == description


@pytest.mark.parametrize(
    ("seconds", "description"),
    [(1, "Every second"), (90, "Every 90 seconds"), (60, "Every 1 min"), (7200, "Every 2 h"), (86_400, "Every 1 d")],
)
def test_an_interval_is_described_in_its_largest_unit(seconds: int, description: str) -> None:
    assert describe_interval(seconds) == description


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"cron": "0 9 * * 1-5", "timezone": "Europe/Berlin"}, "At 09:00 on Monday through Friday"),
        ({"cron": "@monthly"}, "At 00:00 on the first day of every month"),
        ({"every_sec": "90"}, "Every 90 seconds"),
        ({"run_at_0": "2099-01-01", "run_at_1": "10:00"}, "2099-01-01 10:00:00"),
        ({"cron": "61 * * * *"}, "has a bad field: minute"),
        ({"cron": "0 0 31 2 *"}, "never comes due"),
        ({"cron": "* * * * *", "timezone": "Mars/Phobos"}, "There is no time zone"),
        ({"cron": "* * * * *", "timezone": "../../etc/passwd"}, "There is no time zone"),
        ({"cron": "* * * * *", "every_sec": "5"}, "one of them"),
        ({}, "one of them"),
        ({"every_sec": "soon"}, "invalid literal"),
        ({"every_sec": "0"}, "every_sec"),
        ({"every_sec": "9" * 99}, "every_sec"),
        ({"run_at_0": "2020-01-01", "run_at_1": "10:00"}, "No further runs."),
        ({"run_at_0": "perhaps", "run_at_1": "10:00"}, "run_at: "),
        ({"cron": "\0"}, "cron: "),
        ({"cron": "<script>alert(1)</script>"}, "is no cron expression"),
    ],
)
def test_the_preview_shows_the_fires_of_a_rule_or_its_error(boss: Client, fields: dict[str, str], text: str) -> None:
    page = fetch_preview(boss, **fields)
    assert text in page
    assert "<script" not in page


def test_the_preview_shows_five_fires_in_its_zone_and_in_utc_with_a_note_where_clocks_change(boss: Client) -> None:
    page = fetch_preview(boss, cron="30 2 * 3 0L", timezone="Europe/Berlin")  # the last Sunday of March, every year
    assert page.count("<time datetime=") == 10  # five fires, in the zone and as a countdown
    assert [page.count(text) for text in ("03:00:00 CEST", " 01:00:00<", "02:30 does not exist on this day")] == [5] * 3


def test_without_a_script_the_button_opens_the_preview_as_a_page_and_saves_nothing(boss: Client) -> None:
    row = create_due_schedule(cron="0 3 * * *")
    before = dump_tables()
    page = boss.get(get_page_url(row)).content.decode()
    assert f'formaction="{get_preview_url()}"' in page
    assert page.index('name="_save"') < page.index('name="_preview"')  # Enter saves
    response = boss.post(get_preview_url(), {"cron": "0 9 * * *", "timezone": "UTC", "name": "x", "_preview": "1"})
    assert (response.status_code, "At 09:00 every day" in response.content.decode()) == (200, True)
    assert "<html" in response.content.decode()
    assert boss.put(get_preview_url()).status_code == 405
    assert dump_tables() == before


def test_a_reader_is_offered_no_preview_but_sees_the_next_fires(looker: Client) -> None:
    row = create_due_schedule(cron="0 3 * * *")
    page = looker.get(get_page_url(row)).content.decode()
    assert ("_preview" in page, "At 03:00 every day" in page) == (False, True)
    assert log_in(create_reader("stranger")).get(get_preview_url()).status_code == 200
    client = Client()
    assert client.get(get_preview_url()).status_code == 302


def test_the_form_offers_every_time_zone_and_keeps_one_that_is_gone(boss: Client) -> None:
    row = ScheduleFactory.create(timezone="Mars/Phobos")
    page = boss.get(get_page_url(row)).content.decode()
    for zone in ("Europe/Berlin", "America/New_York", "UTC"):
        assert f'<option value="{zone}">' in page
    assert '<option value="Mars/Phobos" selected>' in page


def test_the_form_offers_no_alias_of_a_zone_but_keeps_a_stored_one(boss: Client) -> None:
    row = ScheduleFactory.create(timezone="Zulu")
    page = boss.get(get_page_url(row)).content.decode()
    assert '<option value="Zulu" selected>' in page
    assert not [zone for zone in ("W-SU", "GB-Eire", "Asia/Calcutta", "Etc/GMT+5") if f'value="{zone}"' in page]
    assert '<option value="Asia/Kolkata">' in page


def test_the_preview_stands_beside_the_rule(boss: Client) -> None:
    page = boss.get(f"{get_list_url(Schedule)}add/").content.decode()
    assert page.index('id="id_cron"') < page.index('id="schedule-preview"') < page.index('id="id_misfire_grace_sec"')
    assert "<noscript><p><button" in page


def test_the_preview_takes_the_fields_of_the_chosen_kind_of_rule(boss: Client) -> None:
    fields = {"cron": "0 9 * * *", "every_sec": "90"}
    assert "Every 90 seconds" in fetch_preview(boss, kind="every", **fields)
    assert "At 09:00 every day" in fetch_preview(boss, kind="cron", **fields)


def test_many_skipped_runs_are_marked_in_the_list_and_on_the_page_and_raise_an_alert(boss: Client) -> None:
    row = ScheduleFactory.create(name="crowded", last_fire_at=NOON, skips_in_a_row=MANY_SKIPS)
    ScheduleFactory.create(name="lucky", last_fire_at=NOON, skips_in_a_row=MANY_SKIPS - 1)
    page = boss.get(f"{get_list_url(Schedule)}?skipping=1").content.decode()
    assert ("Skipped 5 times in a row" in page, "crowded" in page, "lucky" in page) == (True, True, False)
    assert "The last 5 runs were skipped" in boss.get(get_page_url(row)).content.decode()
    overview = boss.get(reverse("admin:jobscheduler_jobs_overview")).content.decode()
    assert "Schedule “crowded” has skipped 5 runs in a row" in overview


def create_fires(schedule: Schedule, statuses: list[Any]) -> None:
    for minutes, status in enumerate(reversed(statuses)):
        job = None if status is None else job_in(status)
        ScheduleFire.objects.create(schedule=schedule, fire_time=NOON - timedelta(minutes=minutes), job=job)


def test_the_list_describes_the_rule_and_shows_the_last_fires_and_their_outcomes(boss: Client) -> None:
    row = ScheduleFactory.create(
        name="nightly", cron="30 2 * * *", timezone="Europe/Berlin", tenant="acme", last_fire_at=NOON
    )
    create_fires(row, [Status.COMPLETED, Status.FAILED, None, Status.RUNNING])
    page = boss.get(get_list_url(Schedule)).content.decode()
    for text in ("At 02:30 every day", "Europe/Berlin", "30 2 * * *", "acme"):
        assert text in page, text
    assert "The last 4 runs, 1 of them failed" in page
    kinds = ("jc-run-completed", "jc-run-failed", "jc-run-other", "jc-run-running")
    assert [page.count(kind) for kind in kinds] == [2] * 4  # in the legend, and in the chart
    assert "skipped or cancelled (low)" in page


def test_a_completed_retry_makes_its_fire_completed(db: Any) -> None:
    row = ScheduleFactory.create()
    failed = JobFactory.create(failed=True)
    JobFactory.create(completed=True, retry_of=failed, attempt=2)
    ScheduleFire.objects.create(schedule=row, fire_time=NOON, job=failed)
    assert fires.latest_fires([row.pk]) == {row.pk: [(NOON, "COMPLETED")]}


def test_only_the_last_thirty_fires_are_read(db: Any) -> None:
    busy, quiet, unfired = ScheduleFactory.create_batch(3)
    create_fires(busy, [None] * 40)
    create_fires(quiet, [None] * 2)
    fires_by_schedule = fires.latest_fires([busy.pk, quiet.pk, unfired.pk])
    assert {schedule_id: len(row_fires) for schedule_id, row_fires in fires_by_schedule.items()} == {
        busy.pk: 30,
        quiet.pk: 2,
    }
    assert fires_by_schedule[busy.pk][-1][0] == NOON


def test_the_list_takes_as_many_statements_for_many_schedules_and_fires_as_for_few(boss: Client) -> None:
    create_fires(ScheduleFactory.create(), [Status.COMPLETED])
    baseline = count_queries(boss, get_list_url(Schedule))
    for row in ScheduleFactory.create_batch(12):
        create_fires(row, [Status.COMPLETED] * 3)
    assert count_queries(boss, get_list_url(Schedule)) == baseline <= 12


def test_an_empty_list_and_a_filtered_list_say_why_they_are_empty(boss: Client) -> None:
    assert "No schedules yet." in boss.get(get_list_url(Schedule)).content.decode()
    assert "Nothing matches these filters." in boss.get(f"{get_list_url(Schedule)}?q=x").content.decode()
    assert "Nothing matches these filters." in boss.get(f"{get_list_url(Schedule)}?enabled=1").content.decode()
