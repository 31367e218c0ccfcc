"""`/api/stats` counts live jobs exactly and ended jobs for ever, and shows a tenant its own figures only."""

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


def get_stats(tenant: str | None = None, path: str = "/stats") -> dict[str, Any]:
    response = ApiClient("read", tenant=tenant).get(path)
    assert response.status_code == 200, response.content
    document: dict[str, Any] = response.json()
    return document


def test_all_nine_statuses_are_there_even_at_zero() -> None:
    assert get_stats()["jobs"] == dict.fromkeys(map(str, Status), 0)
    assert get_stats()["oldest_queued_age_sec"] is None
    assert (get_stats()["by_type"], get_stats()["by_addon"]) == ({}, {})


def test_live_jobs_are_counted_by_status_type_and_addon() -> None:
    for status in Status:
        job_in(status)
        job_in(status, job_type="tests.anything", addon_id="addon-1")
    stats = get_stats()

    assert {name: stats["jobs"][name] for name in ("PENDING", "QUEUED", "DISPATCHING", "RUNNING", "PAUSED")} == {
        "PENDING": 2,
        "QUEUED": 2,
        "DISPATCHING": 2,
        "RUNNING": 2,
        "PAUSED": 2,
    }
    assert stats["by_type"] == {NOTE: {"queued": 2, "running": 1}, "tests.anything": {"queued": 2, "running": 1}}
    assert stats["by_addon"] == {"addon-1": {"queued": 2, "running": 1}}


def test_ended_jobs_are_a_total_of_all_time_that_pruning_keeps() -> None:
    jobs = [job_services.enqueue(NOTE, {"text": "a"}) for _ in range(3)]
    for job in jobs[:2]:
        job_services.cancel(job.pk)
    before = get_stats()["jobs"]
    Job.objects.filter(pk=jobs[0].pk)._raw_delete("default")

    assert (before["CANCELLED"], before["QUEUED"]) == (2, 1)
    assert get_stats()["jobs"] == before


def test_the_age_is_that_of_jobs_waiting_for_a_slot_or_their_target() -> None:
    now = datetime.now(UTC)
    JobFactory.create(created_at=now - timedelta(hours=9), not_before=now + timedelta(hours=1))
    JobFactory.create(created_at=now - timedelta(hours=2), in_lane=True)
    JobFactory.create(created_at=now - timedelta(hours=1))
    assert 7100 < get_stats()["oldest_queued_age_sec"] < 7300


def test_expired_leases_are_counted_until_recovery() -> None:
    expired_at = datetime.now(UTC) - timedelta(hours=1)
    JobFactory.create(running=True, lease_expires_at=expired_at, heartbeat_at=expired_at)
    JobFactory.create(running=True)
    assert (get_stats()["expired_leases"], get_stats()["recovered_24h"]) == (1, 0)


def test_recoveries_count_for_a_day_and_ever_in_the_tenant_they_happened_in() -> None:
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    JobMinuteFactory(minute=now, tenant="one", recovered=2, outcome="FAILED")
    JobMinuteFactory(minute=now - timedelta(hours=23), tenant="two", recovered=3, outcome="FAILED")
    JobMinuteFactory(minute=now - timedelta(hours=25), tenant="one", recovered=4, outcome="FAILED")
    assert get_stats()["recovered_24h"] == 5
    assert get_stats("one")["recovered_24h"] == 2


def test_a_recovery_is_counted_when_it_happens() -> None:
    expired_at = datetime.now(UTC) - timedelta(hours=1)
    long_ago = f"{read_boot_id()}/-10000"  # the monotonic clock decides where the database has no clock of its own
    JobFactory.create(running=True, lease_expires_at=expired_at, beat_clock=long_ago, max_retries=3)
    assert LeaseReaper().run_round() == 1
    stats = get_stats()
    assert (stats["recovered_24h"], stats["jobs"]["FAILED"], stats["jobs"]["QUEUED"]) == (1, 1, 1)


def test_workers_and_their_slots() -> None:
    WorkerFactory(slots=4, busy=2, stuck=1)
    WorkerFactory(slots=8, state="QUIET")
    WorkerFactory(slots=16, heartbeat_at=datetime.now(UTC) - timedelta(minutes=10))
    WorkerFactory(slots=32, state="STOPPED")
    stats = get_stats("default")
    assert stats["workers"] == {"RUNNING": 1, "QUIET": 1, "STOPPING": 0, "SILENT": 1}
    assert stats["slots"] == {"total": 12, "busy": 2, "stuck": 1}


def test_a_tenant_sees_its_own_figures_only() -> None:
    JobFactory.create(tenant="one", addon_id="a1")
    JobFactory.create_batch(2, tenant="two", running=True, addon_id="a2", job_type="tests.anything")
    job_services.cancel(job_services.enqueue(NOTE, {"text": "a"}, tenant="two").pk)
    one, two, all_tenants = get_stats("one"), get_stats("two"), get_stats(None)

    assert (one["jobs"]["QUEUED"], one["jobs"]["RUNNING"], one["jobs"]["CANCELLED"]) == (1, 0, 0)
    assert (two["jobs"]["QUEUED"], two["jobs"]["RUNNING"], two["jobs"]["CANCELLED"]) == (0, 2, 1)
    assert (one["by_addon"], two["by_type"]) == (
        {"a1": {"queued": 1, "running": 0}},
        {"tests.anything": {"queued": 0, "running": 2}},
    )
    assert all_tenants["jobs"]["CANCELLED"] == 1
    assert get_stats(None, "/stats?tenant=two")["jobs"] == two["jobs"]
    assert get_stats("two", "/stats?tenant=two")["jobs"] == two["jobs"]


def test_other_tenants_figures_require_a_token_of_all_tenants() -> None:
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


# ---------------------------------------------------------------------- cached counts


@pytest.fixture
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Count two jobs as few, advance the clock by 0.1 s per counted job, and return the clock."""
    clock = [1000.0]
    count_jobs = live_counts._query_counts

    def count_slowly(tenant: str | None) -> live_counts.JobCounts:
        counts = count_jobs(tenant)
        clock[0] += 0.1 * sum(kind.jobs for kind in counts.live)
        return counts

    monkeypatch.setattr(cache, "SMALL_COUNT", 2)
    monkeypatch.setattr(cache.RateLimitedCache, "_caches", [live_counts._cache])  # others have entries of another clock
    monkeypatch.setattr(cache, "monotonic", lambda: clock[0])
    monkeypatch.setattr(live_counts, "_query_counts", count_slowly)
    live_counts.clear_cache()
    yield clock
    live_counts.clear_cache()


def test_few_live_jobs_are_counted_for_every_response(fake_clock: list[float]) -> None:
    JobFactory.create()
    assert live_counts.count_jobs().by_status()["QUEUED"] == 1
    JobFactory.create()
    assert live_counts.count_jobs().by_status()["QUEUED"] == 2


def test_many_live_jobs_are_counted_once_for_a_while_that_grows_with_them(fake_clock: list[float]) -> None:
    JobFactory.create_batch(3)
    assert live_counts.count_jobs().by_status()["QUEUED"] == 3  # cached for 3 s from the start of the count
    JobFactory.create(tenant="one")
    fake_clock[0] += 2.5
    assert live_counts.count_jobs().by_status()["QUEUED"] == 3
    assert live_counts.count_jobs("one").by_status()["QUEUED"] == 1, "each tenant has its own count"
    fake_clock[0] += 0.2
    assert live_counts.count_jobs().by_status()["QUEUED"] == 4


def test_all_cached_counts_together_take_a_tenth_of_the_time(fake_clock: list[float]) -> None:
    JobFactory.create_batch(3, tenant="one")
    live_counts.count_jobs()  # it took 0.3 s
    live_counts.count_jobs("one")  # it took 0.3 s, and is cached for 5 s, not 3: beside the other one
    JobFactory.create(tenant="one")
    fake_clock[0] += 4
    assert live_counts.count_jobs().by_status()["QUEUED"] == 4
    assert live_counts.count_jobs("one").by_status()["QUEUED"] == 3


def test_no_count_is_older_than_the_maximum_age(fake_clock: list[float]) -> None:
    JobFactory.create_batch(100)
    started_at = fake_clock[0]
    assert live_counts.count_jobs().by_status()["QUEUED"] == 100
    job_services.enqueue(NOTE, {"text": "a"})
    fake_clock[0] = started_at + cache.MAX_AGE_SEC - 0.1
    assert live_counts.count_jobs().by_status()["QUEUED"] == 100
    fake_clock[0] = started_at + cache.MAX_AGE_SEC + 0.1
    assert live_counts.count_jobs().by_status()["QUEUED"] == 101


def test_a_tenant_sees_the_workers_that_serve_it() -> None:
    for tenant, slots in ((None, 4), ("acme", 2), ("globex", 8)):
        WorkerFactory.create(slots=slots, busy=1, serves={"types": [NOTE], "resources": None, "tenant": tenant})
    by_tenant = {tenant: get_stats(tenant) for tenant in (None, "acme", "initech")}
    assert {tenant: stats["workers"]["RUNNING"] for tenant, stats in by_tenant.items()} == {
        None: 3,
        "acme": 2,
        "initech": 1,
    }
    assert [stats["slots"]["total"] for stats in by_tenant.values()] == [14, 6, 4]
    assert [stats["slots"]["busy"] for stats in by_tenant.values()] == [3, 2, 1]
