"""`/api/stats`: exact for what lives, lasting for what has ended, and nobody's but the tenant's own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.engine.maintenance.recovery import LeaseReaper
from jobs.models import Job
from jobs.process_identity import read_boot_id
from jobs.services import jobs as job_services
from jobs.states import Status
from jobs.stats import cache, live_counts
from tests.factories import JobFactory, JobMinuteFactory, WorkerFactory, job_in
from tests.sample_app import job_types
from tests.support.api_client import ApiClient, read_error_locations

pytestmark = pytest.mark.django_db
NOTE = job_types.note.name


def stats(tenant: str | None = None, path: str = "/stats") -> dict[str, Any]:
    answer = ApiClient("read", tenant=tenant).get(path)
    assert answer.status_code == 200, answer.content
    document: dict[str, Any] = answer.json()
    return document


def test_all_nine_statuses_are_there_even_at_nought() -> None:
    assert stats()["jobs"] == dict.fromkeys(map(str, Status), 0)
    assert stats()["oldest_queued_age_sec"] is None
    assert (stats()["by_type"], stats()["by_addon"]) == ({}, {})


def test_live_jobs_are_counted_where_they_are() -> None:
    for status in Status:
        job_in(status)
        job_in(status, job_type="tests.anything", addon_id="addon-1")
    found = stats()

    assert {name: found["jobs"][name] for name in ("PENDING", "QUEUED", "DISPATCHING", "RUNNING", "PAUSED")} == {
        "PENDING": 2,
        "QUEUED": 2,
        "DISPATCHING": 2,
        "RUNNING": 2,
        "PAUSED": 2,
    }
    assert found["by_type"] == {NOTE: {"queued": 2, "running": 1}, "tests.anything": {"queued": 2, "running": 1}}
    assert found["by_addon"] == {"addon-1": {"queued": 2, "running": 1}}


def test_what_has_ended_is_a_total_of_all_time_that_pruning_keeps() -> None:
    jobs = [job_services.enqueue(NOTE, {"text": "a"}) for _ in range(3)]
    for job in jobs[:2]:
        job_services.cancel(job.pk)
    before = stats()["jobs"]
    Job.objects.filter(pk=jobs[0].pk)._raw_delete("default")

    assert (before["CANCELLED"], before["QUEUED"]) == (2, 1)
    assert stats()["jobs"] == before


def test_an_age_is_that_of_what_waits_for_a_slot_or_its_target() -> None:
    now = datetime.now(UTC)
    JobFactory.create(created_at=now - timedelta(hours=9), not_before=now + timedelta(hours=1))
    JobFactory.create(created_at=now - timedelta(hours=2), in_lane=True)
    JobFactory.create(created_at=now - timedelta(hours=1))
    assert 7100 < stats()["oldest_queued_age_sec"] < 7300


def test_leases_that_are_over_show_until_recovery_has_ended_their_jobs() -> None:
    over = datetime.now(UTC) - timedelta(hours=1)
    JobFactory.create(running=True, lease_expires_at=over, heartbeat_at=over)
    JobFactory.create(running=True)
    assert (stats()["expired_leases"], stats()["recovered_24h"]) == (1, 0)


def test_recoveries_count_for_a_day_and_ever_in_the_tenant_they_happened_in() -> None:
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    JobMinuteFactory(minute=now, tenant="one", recovered=2, outcome="FAILED")
    JobMinuteFactory(minute=now - timedelta(hours=23), tenant="two", recovered=3, outcome="FAILED")
    JobMinuteFactory(minute=now - timedelta(hours=25), tenant="one", recovered=4, outcome="FAILED")
    assert stats()["recovered_24h"] == 5
    assert stats("one")["recovered_24h"] == 2


def test_a_recovery_is_counted_when_it_happens() -> None:
    over = datetime.now(UTC) - timedelta(hours=1)
    long_ago = f"{read_boot_id()}/-10000"  # by the steady clock, which is what counts where the database has none
    JobFactory.create(running=True, lease_expires_at=over, beat_clock=long_ago, max_retries=3)
    assert LeaseReaper().run_round() == 1
    found = stats()
    assert (found["recovered_24h"], found["jobs"]["FAILED"], found["jobs"]["QUEUED"]) == (1, 1, 1)


def test_workers_and_their_slots() -> None:
    WorkerFactory(slots=4, busy=2, stuck=1)
    WorkerFactory(slots=8, state="QUIET")
    WorkerFactory(slots=16, heartbeat_at=datetime.now(UTC) - timedelta(minutes=10))
    WorkerFactory(slots=32, state="STOPPED")
    found = stats("default")
    assert found["workers"] == {"RUNNING": 1, "QUIET": 1, "STOPPING": 0, "SILENT": 1}
    assert found["slots"] == {"total": 12, "busy": 2, "stuck": 1}


def test_a_tenant_sees_its_own_figures_only() -> None:
    JobFactory.create(tenant="one", addon_id="a1")
    JobFactory.create_batch(2, tenant="two", running=True, addon_id="a2", job_type="tests.anything")
    job_services.cancel(job_services.enqueue(NOTE, {"text": "a"}, tenant="two").pk)
    one, two, all_of_them = stats("one"), stats("two"), stats(None)

    assert (one["jobs"]["QUEUED"], one["jobs"]["RUNNING"], one["jobs"]["CANCELLED"]) == (1, 0, 0)
    assert (two["jobs"]["QUEUED"], two["jobs"]["RUNNING"], two["jobs"]["CANCELLED"]) == (0, 2, 1)
    assert (one["by_addon"], two["by_type"]) == (
        {"a1": {"queued": 1, "running": 0}},
        {"tests.anything": {"queued": 0, "running": 2}},
    )
    assert all_of_them["jobs"]["CANCELLED"] == 1
    assert stats(None, "/stats?tenant=two")["jobs"] == two["jobs"]
    assert stats("two", "/stats?tenant=two")["jobs"] == two["jobs"]


def test_other_tenants_figures_take_a_token_of_all() -> None:
    assert ApiClient("read", tenant="one").get("/stats?tenant=two").status_code == 403
    assert read_error_locations(ApiClient("read").get("/stats?tenant=a%20b")) == [["query", "tenant"]]
    assert read_error_locations(ApiClient("read").get("/stats?since=1h")) == [["query", "since"]]
    assert ApiClient("submit", "operate", "work").get("/stats").status_code == 403


def test_the_number_of_statements_does_not_depend_on_the_rows() -> None:
    api = ApiClient("read", tenant=None)
    api.get("/stats")

    def count_statements() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert api.get("/stats").status_code == 200
        return len(queries)

    baseline = count_statements()
    for status in Status:
        job_in(status, job_type=f"type of {status}", addon_id=f"addon of {status}")
        JobMinuteFactory(job_type=str(status))
    assert count_statements() == baseline <= 8


# ----------------------------------------------------------------------------- a large census is kept for a moment


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two live jobs are few; the time is what the test says it is, and counting a job takes a tenth of a second."""
    clock = [1000.0]
    count_jobs = live_counts._query_counts

    def slowly(tenant: str | None) -> live_counts.JobCounts:
        found = count_jobs(tenant)
        clock[0] += 0.1 * sum(kind.jobs for kind in found.live)
        return found

    monkeypatch.setattr(cache, "SMALL_COUNT", 2)
    monkeypatch.setattr(cache, "monotonic", lambda: clock[0])
    monkeypatch.setattr(live_counts, "_query_counts", slowly)
    live_counts.clear_cache()
    yield clock
    live_counts.clear_cache()


def test_few_live_jobs_are_counted_for_every_answer(small: list[float]) -> None:
    JobFactory.create()
    assert live_counts.count_jobs().by_status()["QUEUED"] == 1
    JobFactory.create()
    assert live_counts.count_jobs().by_status()["QUEUED"] == 2


def test_many_live_jobs_are_counted_once_for_a_while_that_grows_with_them(small: list[float]) -> None:
    JobFactory.create_batch(3)
    assert live_counts.count_jobs().by_status()["QUEUED"] == 3  # good for 3 s from when it was begun
    JobFactory.create(tenant="one")
    small[0] += 2.5
    assert live_counts.count_jobs().by_status()["QUEUED"] == 3
    assert live_counts.count_jobs("one").by_status()["QUEUED"] == 1, "of each tenant its own"
    small[0] += 0.2
    assert live_counts.count_jobs().by_status()["QUEUED"] == 4


def test_no_census_gets_old(small: list[float]) -> None:
    JobFactory.create_batch(100)
    began = small[0]
    assert live_counts.count_jobs().by_status()["QUEUED"] == 100
    job_services.enqueue(NOTE, {"text": "a"})
    small[0] = began + cache.MAX_AGE_SEC - 0.1
    assert live_counts.count_jobs().by_status()["QUEUED"] == 100
    small[0] = began + cache.MAX_AGE_SEC + 0.1
    assert live_counts.count_jobs().by_status()["QUEUED"] == 101
