"""The services for schedules: validation, the next fire after edits, enabling, skipping, triggering and previews."""

from __future__ import annotations

import cProfile
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from jobs.errors import InvalidInput, NotFound
from jobs.models import Job
from jobs.services.templates import NameTaken
from schedules import history, services
from schedules.cron import Cron, get_zone
from schedules.firing import fire_due
from schedules.models import Schedule, ScheduleFire
from schedules.validation import BrokenSchedule
from tests.factories import JobTemplateFactory, ScheduleFactory
from tests.support.api_client import ApiClient
from tests.support.schedules import (
    NOON,
    TYPE,
    create_due_schedule,
    create_schedule,
    list_fire_times,
    list_jobs,
    list_minutes,
    make_due,
)
from tests.support.snapshots import dump_tables

pytestmark = pytest.mark.django_db

NIGHTLY = {"name": "nightly", "job_type": TYPE, "cron": "0 3 * * *"}


def test_absent_fields_have_the_documented_defaults() -> None:
    row = services.create(NIGHTLY)
    assert (row.timezone, row.enabled, row.catch_up, row.catch_up_max) == ("UTC", True, "latest", 10)
    assert (row.overlap, row.misfire_grace_sec, row.jitter_sec, row.max_fires) == ("allow", 60, 0, None)
    assert row.next_fire_at is not None
    assert timezone.now() < row.next_fire_at < timezone.now() + timedelta(days=1, seconds=1)
    assert (row.last_fire_at, row.fire_count) == (None, 0)


BAD_FIELDS: list[tuple[dict[str, Any], list[Any]]] = [
    ({"name": None}, ["name"]),
    ({"name": ""}, ["name"]),
    ({"name": "a\nb"}, ["name"]),
    ({"name": "x" * 201}, ["name"]),
    ({"cron": "61 * * * *"}, ["cron"]),
    ({"cron": "0 0 31 2 *"}, ["cron"]),
    ({"cron": 5}, ["cron"]),
    ({"cron": "0 3 * * *\0"}, ["cron"]),
    ({"cron": "* " * 200}, ["cron"]),
    ({"cron": None}, ["cron"]),
    ({"every_sec": 60}, ["every_sec"]),
    ({"cron": None, "every_sec": 0}, ["every_sec"]),
    ({"cron": None, "every_sec": 0.5}, ["every_sec"]),
    ({"cron": None, "every_sec": 1.5}, ["every_sec"]),
    ({"cron": None, "every_sec": True}, ["every_sec"]),
    ({"cron": None, "every_sec": float("nan")}, ["every_sec"]),
    ({"cron": None, "every_sec": 10**12}, ["every_sec"]),
    ({"cron": None, "every_sec": 60, "anchor_at": "2026-01-01T00:00:00"}, ["anchor_at"]),
    ({"anchor_at": "2026-01-01T00:00:00Z"}, ["anchor_at"]),
    ({"cron": None, "run_at": "2020-01-01T00:00:00Z"}, ["run_at"]),
    ({"cron": None, "run_at": "tomorrow"}, ["run_at"]),
    ({"timezone": "Mars/Phobos"}, ["timezone"]),
    ({"timezone": "../../etc/passwd"}, ["timezone"]),
    ({"timezone": ""}, ["timezone"]),
    ({"timezone": 1}, ["timezone"]),
    ({"timezone": "Europe/Berlin\0"}, ["timezone"]),
    ({"max_fires": 0}, ["max_fires"]),
    ({"enabled": "yes"}, ["enabled"]),
    ({"job_type": "no.such.type"}, ["job_type"]),
    ({"job_type": None}, ["job_type"]),
    ({"template": "none such"}, ["template"]),
    ({"job_type": None, "template": "none such"}, ["template"]),
    ({"params": []}, ["params"]),
    ({"job_type": "tests.note", "params": {"text": 1}}, ["params", "text"]),
    ({"job_type": "tests.note", "params": {}}, ["params", "text"]),
    ({"fire_time_param": "text", "job_type": "tests.nothing"}, ["params", "text"]),
    ({"priority": 101}, ["priority"]),
    ({"target": "a/b"}, ["target"]),
    ({"resource": "a\tb"}, ["resource"]),
    ({"catch_up": "some"}, ["catch_up"]),
    ({"catch_up": ["all"]}, ["catch_up"]),
    ({"catch_up_max": 0}, ["catch_up_max"]),
    ({"catch_up_max": 1001}, ["catch_up_max"]),
    ({"overlap": "maybe"}, ["overlap"]),
    ({"misfire_grace_sec": -1}, ["misfire_grace_sec"]),
    ({"jitter_sec": 10**6}, ["jitter_sec"]),
    ({"next_fire_at": "2026-01-01T00:00:00Z"}, ["next_fire_at"]),
    ({"source": "mine"}, ["source"]),
    ({"id": "x"}, ["id"]),
]


@pytest.mark.parametrize(("fields", "loc"), BAD_FIELDS)
def test_bad_input_is_refused_by_name_and_changes_nothing(fields: dict[str, Any], loc: list[Any]) -> None:
    with pytest.raises(InvalidInput) as refused:
        services.create({**NIGHTLY, **fields})
    assert refused.value.errors[0]["loc"] == loc
    assert not Schedule.objects.exists()
    row = services.create(NIGHTLY)
    before = dump_tables()
    with pytest.raises(InvalidInput) as refused:
        services.update(row.pk, fields)
    assert refused.value.errors[0]["loc"] == loc
    assert dump_tables() == before


def test_two_schedules_of_a_tenant_cannot_share_a_name() -> None:
    services.create(NIGHTLY)
    other = services.create({**NIGHTLY, "name": "other"})
    services.create(NIGHTLY, tenant="acme")
    with pytest.raises(NameTaken):
        services.create(NIGHTLY)
    with pytest.raises(NameTaken):
        services.update(other.pk, {"name": "nightly"})


def test_a_template_must_be_of_the_same_tenant() -> None:
    JobTemplateFactory.create(name="nightly", tenant="acme")
    with pytest.raises(InvalidInput, match="There is no template"):
        services.create({"name": "n", "cron": "@daily", "template": "nightly", "params": {"text": "x"}})
    row = services.create(
        {"name": "n", "cron": "@daily", "template": "nightly", "params": {"text": "x"}}, tenant="acme"
    )
    assert (row.template is not None, row.job_type) == (True, "")


@pytest.mark.parametrize("key", ["nonsense", "0" * 40, "01a1e33e-ba9f-733c-8ec0-2fc2de9456a4"])
def test_an_unknown_schedule_is_not_found(key: str) -> None:
    for verb in (services.get, services.enable, services.disable, services.skip_next, services.trigger):
        with pytest.raises(NotFound):
            verb(key)
    for call in (lambda: services.delete(key), lambda: services.update(key, {})):
        with pytest.raises(NotFound):
            call()


def test_another_tenants_schedule_is_not_found() -> None:
    row = services.create(NIGHTLY, tenant="acme")
    for verb in (
        services.get,
        services.enable,
        services.disable,
        services.skip_next,
        services.trigger,
        services.delete,
    ):
        with pytest.raises(NotFound):
            verb(row.pk, tenant="default")
    with pytest.raises(NotFound):
        services.update(row.pk, {}, tenant="default")


def test_a_new_cron_or_timezone_counts_from_the_next_fire() -> None:
    row = create_schedule(cron="0 3 * * *", timezone="Europe/Berlin")
    updated = services.update(row.pk, {"timezone": "America/New_York"})
    assert updated.next_fire_at is not None
    assert f"{updated.next_fire_at.astimezone(get_zone('America/New_York')):%H:%M}" == "03:00"
    assert updated.next_fire_at > timezone.now()
    updated = services.update(row.pk, {"cron": "30 4 * * *", "timezone": None})
    assert updated.next_fire_at is not None
    assert (f"{updated.next_fire_at:%H:%M}", updated.timezone) == ("04:30", "UTC")
    assert not Job.objects.exists()


def test_a_time_due_when_the_rule_changes_is_fired_by_the_old_rule() -> None:
    row = create_schedule(cron="* * * * *", params={"then": 1})
    now = timezone.now().replace(second=0, microsecond=0)
    make_due(row, now)
    services.update(row.pk, {"cron": "0 3 * * *", "params": {"now": 2}})
    assert list_fire_times(row) == [now]
    assert list_jobs(row)[0].params == {"then": 1}
    row.refresh_from_db()
    assert (row.fire_count, row.next_fire_at is not None and row.next_fire_at > now) == (1, True)


def test_edits_that_leave_the_rule_alone_leave_the_next_fire_alone() -> None:
    row = create_due_schedule(NOON)
    for change in ({"name": "new"}, {"params": {"a": 1}}, {"cron": "*  * * * *"}, {"priority": 3}, {}):
        assert services.update(row.pk, change).next_fire_at == NOON
    assert services.update(row.pk, {"cron": "@hourly"}).next_fire_at != NOON


def test_a_schedule_may_change_its_kind_of_rule() -> None:
    row = create_schedule(every_sec=60)
    assert services.update(row.pk, {"every_sec": None, "cron": "@daily"}).anchor_at is None
    updated = services.update(row.pk, {"cron": None, "every_sec": 90})
    assert (updated.every_sec, updated.anchor_at is not None, updated.next_fire_at is not None) == (90, True, True)


def test_a_broken_schedule_can_be_repaired() -> None:
    row = ScheduleFactory.create(job_type="no.such.type", next_fire_at=NOON)
    fire_due(NOON)
    with pytest.raises(InvalidInput, match=r"no\.such\.type"):
        services.enable(row.pk)
    repaired = services.update(row.pk, {"job_type": TYPE, "enabled": True})
    assert (repaired.enabled, repaired.disabled_reason) == (True, "")
    assert repaired.next_fire_at is not None


def test_a_broken_row_is_a_conflict_and_no_crash() -> None:
    row = ScheduleFactory.create(cron="nonsense", next_fire_at=NOON)
    for call in (lambda: services.skip_next(row.pk), lambda: history.preview_schedule(row)):
        with pytest.raises(BrokenSchedule, match="is broken"):
            call()
    services.disable(row.pk)
    services.delete(row.pk)


class TestEnabling:
    def test_disabling_and_enabling_never_fires_at_once(self) -> None:
        row = make_due(create_schedule(catch_up="all"), timezone.now() - timedelta(minutes=3))
        disabled = services.disable(row.pk, reason="too loud")
        assert (disabled.enabled, disabled.disabled_reason, disabled.next_fire_at) == (False, "too loud", None)
        enabled = services.enable(row.pk)
        assert (enabled.enabled, enabled.disabled_reason) == (True, "")
        assert enabled.next_fire_at is not None
        assert enabled.next_fire_at > timezone.now() - timedelta(seconds=1)
        assert fire_due(timezone.now() - timedelta(seconds=1)) == 0
        assert not Job.objects.exists()

    def test_repeating_either_changes_nothing(self) -> None:
        row = create_due_schedule(NOON)
        assert services.enable(row.pk).next_fire_at == NOON
        services.disable(row.pk, reason="why")
        assert services.disable(row.pk).disabled_reason == "why"

    def test_a_patch_does_the_same(self) -> None:
        row = create_due_schedule(NOON)
        assert services.update(row.pk, {"enabled": False}).next_fire_at is None
        enabled = services.update(row.pk, {"enabled": True})
        assert enabled.next_fire_at is not None
        assert enabled.next_fire_at > timezone.now() - timedelta(seconds=1)

    def test_a_past_or_exhausted_schedule_has_no_next_fire(self) -> None:
        once = create_schedule(run_at=timezone.now() + timedelta(days=1))
        services.disable(once.pk)
        Schedule.objects.filter(pk=once.pk).update(run_at=timezone.now() - timedelta(seconds=1))
        assert services.enable(once.pk).next_fire_at is None
        exhausted = make_due(create_schedule(max_fires=1), NOON, fire_count=1)
        services.disable(exhausted.pk)
        assert services.enable(exhausted.pk).next_fire_at is None
        updated = services.update(exhausted.pk, {"max_fires": 2})
        assert updated.next_fire_at is not None

    def test_a_schedule_created_disabled_has_no_next_fire(self) -> None:
        assert create_schedule(enabled=False).next_fire_at is None


class TestSkipNext:
    def test_the_next_fire_is_left_out_and_the_one_after_comes(self) -> None:
        row = create_due_schedule(NOON)
        skipped = services.skip_next(row.pk, reason="holiday")
        assert skipped.next_fire_at == NOON + timedelta(minutes=1)
        assert skipped.note == "skipped: the run of 2026-06-15T12:00:00Z, by python: holiday"
        fire_due(NOON + timedelta(minutes=2))
        assert list_fire_times(row) == list_minutes(NOON + timedelta(minutes=1), 2)

    def test_without_a_next_fire_there_is_none_to_skip(self) -> None:
        disabled = create_schedule(enabled=False)
        before = dump_tables()
        with pytest.raises(services.NothingToSkip):
            services.skip_next(disabled.pk)
        assert dump_tables() == before


class TestTrigger:
    def test_a_trigger_creates_a_job_and_no_fire(self) -> None:
        row = create_due_schedule(NOON, overlap="skip", params={"a": 1}, jitter_sec=60, target="book-1")
        services.disable(row.pk)
        before = Schedule.objects.values().get()
        job = services.trigger(row.pk, reason="just once")
        assert (job.status, job.params, job.schedule_id, job.fire_time, job.not_before, job.target) == (
            "QUEUED",
            {"a": 1},
            row.pk,
            None,
            None,
            "book-1",
        )
        assert not ScheduleFire.objects.exists()
        assert Schedule.objects.values().get() == before

    def test_triggering_a_broken_schedule_is_refused(self) -> None:
        row = ScheduleFactory.create(job_type="no.such.type")
        with pytest.raises(InvalidInput, match=r"no\.such\.type"):
            services.trigger(row.pk)


def test_deleting_a_schedule_deletes_its_fires_and_keeps_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "DETACH_BATCH_SIZE", 2)
    row, other = create_due_schedule(misfire_grace_sec=3600), create_due_schedule()
    fire_due(NOON + timedelta(minutes=4))
    jobs = {job.pk: job.params for job in list_jobs(row)}
    assert len(jobs) == 5
    services.delete(row.pk)
    assert {job.pk: job.params for job in Job.objects.filter(pk__in=jobs, schedule=None)} == jobs
    assert list(Schedule.objects.all()) == [other]
    assert set(ScheduleFire.objects.values_list("schedule_id", flat=True)) <= {other.pk}


def test_jobs_tell_their_schedule_and_due_time_after_it_is_deleted() -> None:
    row = create_due_schedule(name="nightly")
    fire_due(NOON)
    (fired,), triggered = list_jobs(row), services.trigger(row.pk)
    services.delete(row.pk)
    api = ApiClient("read")
    for job, fire_time in ((fired, "2026-06-15T12:00:00Z"), (triggered, None)):
        document = api.get(f"/jobs/{job.pk}").json()
        assert (document["schedule_id"], document["fire_time"]) == (None, fire_time)
        submitted = api.get(f"/jobs/{job.pk}/events").json()["items"][0]
        assert submitted["data"] == {"schedule": {"id": str(row.pk), "name": "nightly"}}


class TestPreview:
    def test_it_shows_the_next_fires_in_the_zone_of_the_schedule(self) -> None:
        fires = history.preview_cron("0 3 * * *", "Europe/Berlin", 3).fires
        assert [f"{fire.local:%H:%M}" for fire in fires] == ["03:00"] * 3
        assert all(fire.fire_at.utcoffset() == timedelta(0) for fire in fires)

    @pytest.mark.parametrize("count", [0, -1, 101, 1.5, True, "5"])
    def test_the_count_is_bounded(self, count: Any) -> None:
        with pytest.raises(InvalidInput) as refused:
            history.preview_cron("* * * * *", "UTC", count)
        assert refused.value.errors[0]["loc"] == ["count"]

    @pytest.mark.parametrize(("cron", "zone", "field"), [("x", "UTC", "cron"), ("* * * * *", "x", "timezone")])
    def test_bad_input_is_refused_by_name(self, cron: str, zone: str, field: str) -> None:
        with pytest.raises(InvalidInput) as refused:
            history.preview_cron(cron, zone)
        assert refused.value.errors[0]["loc"] == [field]

    def test_it_begins_with_the_next_fire(self) -> None:
        row = create_due_schedule(NOON)
        services.skip_next(row.pk)
        row.refresh_from_db()
        assert [fire.fire_at for fire in history.preview_schedule(row, 2).fires] == list_minutes(
            NOON + timedelta(minutes=1), 2
        )

    def test_it_shows_no_more_than_max_fires(self) -> None:
        row = make_due(create_schedule(max_fires=3), NOON, fire_count=1)
        assert history.preview_schedule(row, 50)[1:] == (False,)
        assert len(history.preview_schedule(row, 50).fires) == 2

    def test_a_disabled_schedule_shows_the_fires_it_would_have(self) -> None:
        row = create_schedule(enabled=False, cron="0 3 * * *")
        assert [f"{fire.fire_at:%H:%M}" for fire in history.preview_schedule(row, 2).fires] == ["03:00"] * 2

    def test_a_preview_of_a_schedule_may_have_a_thousand_fires(self) -> None:
        row = create_schedule(enabled=False, cron="*/5 * * * *", timezone="Australia/Lord_Howe")
        fires, is_truncated = history.preview_schedule(row, 1000)
        assert (len(fires), is_truncated) == (1000, False)

    @pytest.mark.parametrize("zone", ["UTC", "Europe/Dublin", "America/New_York"])
    @pytest.mark.parametrize("cron", ["0 */23 29 2 */7", "*/59 0 29 2 */7", "0 0 * 2 FRI#5"])
    def test_a_preview_of_a_rare_expression_ends_after_a_century(self, cron: str, zone: str) -> None:
        fires, is_truncated = history.preview_cron(cron, zone, 100)
        assert is_truncated
        assert 1 < len(fires) < 100
        assert fires[-1].fire_at - fires[0].fire_at <= history.HORIZON

    def test_a_due_time_decades_away_is_searched_once_not_once_per_clock_change(self) -> None:
        rare = Cron("*/59 0 29 2 */7", get_zone("Europe/Dublin"))
        profile = cProfile.Profile()
        profile.runcall(rare.next_after, datetime(2026, 3, 1, tzinfo=UTC))  # 2032, after 12 clock changes
        searches = [entry.callcount for entry in profile.getstats() if "_next_local_time" in str(entry.code)]
        assert searches == [1]

    def test_a_single_time_beyond_the_horizon_is_shown(self) -> None:
        row = create_schedule(cron=None, run_at=datetime(3000, 1, 1, tzinfo=UTC))
        fires, is_truncated = history.preview_schedule(row, 5)
        assert ([fire.fire_at.year for fire in fires], is_truncated) == ([3000], False)

    @pytest.mark.parametrize(
        ("cron", "zone", "start", "local", "note"),
        [
            (
                "30 2 * * *",
                "Europe/Berlin",
                datetime(2027, 3, 27, 12),
                "2027-03-28T03:00:00+02:00",
                "02:30 does not exist on this day: clocks go forward at 02:00, and it runs right after",
            ),
            (
                "0 12 * * *",
                "Europe/Berlin",
                datetime(2027, 3, 27, 12),
                "2027-03-28T12:00:00+02:00",
                "clocks go forward on this day, from 02:00 to 03:00",
            ),
            (
                "30 2 * * *",
                "Europe/Berlin",
                datetime(2027, 10, 30, 12),
                "2027-10-31T02:30:00+02:00",
                "02:30 comes twice on this day: it runs the first time only",
            ),
            (
                "30 * 31 10 *",
                "Europe/Berlin",
                datetime(2027, 10, 31, 0, 35),
                "2027-10-31T02:30:00+01:00",
                "02:30 comes twice on this day: this is the second",
            ),
            (
                "45 */1 4 4 *",
                "Australia/Lord_Howe",
                datetime(2027, 4, 3, 14, 30),
                "2027-04-04T01:45:00+11:00",
                "01:45 comes twice on this day: this is the first",
            ),
            (
                "0 12 * * *",
                "Africa/Cairo",
                datetime(2026, 10, 28, 12),
                "2026-10-29T12:00:00+03:00",
                "clocks go back on this day, from 00:00 to 23:00",
            ),
            ("0 12 * * *", "Europe/Berlin", datetime(2027, 3, 28, 12), "2027-03-29T12:00:00+02:00", None),
        ],
    )
    def test_days_on_which_clocks_change_are_marked(
        self, cron: str, zone: str, start: datetime, local: str, note: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(history.clock, "now", lambda: start.replace(tzinfo=UTC))
        ((fire,), _is_truncated) = history.preview_cron(cron, zone, 1)
        assert (fire.local.isoformat(), fire.note) == (local, note)
