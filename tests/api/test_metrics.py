"""The output of `/metrics` is valid and correct, has a bounded number of series, and counters never decrease."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from jobs import metrics
from jobs.engine.maintenance import rollup_compaction
from jobs.models import Job, JobMinute, SystemSnapshot
from jobs.models.rollup import BUCKETS_SEC
from jobs.policies.admission import State
from jobs.services import jobs as job_services
from jobs.states import TERMINAL, Status
from schedules.firing import BROKEN_PREFIX, fire_due
from schedules.models import Schedule
from tests.factories import (
    SAMPLE_TYPE,
    JobFactory,
    JobMinuteFactory,
    LeaseFactory,
    ScheduleFactory,
    WebhookDeliveryFactory,
    WebhookEndpointFactory,
    WebhookMessageFactory,
    WorkerFactory,
    job_in,
)
from tests.sample_app import job_types
from tests.support.api_client import ApiClient
from webhooks.circuit_breaker import FAILURE_THRESHOLD

pytestmark = pytest.mark.django_db
assert job_types.note.name == SAMPLE_TYPE  # the import registers its job types
Labels = frozenset[tuple[str, str]]
TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def render_text() -> str:
    return metrics.render().body.decode()


def parse_families(text: str) -> dict[str, Metric]:
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families), "a family is repeated"
    return {family.name: family for family in families}


def parse_samples(text: str) -> dict[tuple[str, Labels], float]:
    samples: dict[tuple[str, Labels], float] = {}
    for family in parse_families(text).values():
        for sample in family.samples:
            series = (sample.name, frozenset(sample.labels.items()))
            assert series not in samples, f"a series is repeated: {series}"
            samples[series] = sample.value
    return samples


def get_value(text: str, name: str, **labels: str) -> float:
    return parse_samples(text)[name, frozenset(labels.items())]


def create_jobs_and_minutes() -> None:
    """Create jobs in each state, of a known and of an unknown type, and minutes of both."""
    for status in Status:
        job_in(status)
        job_in(status, job_type="gone", resource="nowhere", addon_id="addon-1")
    JobMinuteFactory(jobs=7, resource="default", tenant="default", wait_bucket=2, run_bucket=10, wait_sec=2.5)
    JobMinuteFactory(jobs=2, resource="nowhere", job_type="gone", outcome="FAILED", retried=1, recovered=2)
    JobMinuteFactory(jobs=1, outcome="CANCELLED", wait_bucket=-1, run_bucket=-1)
    WorkerFactory(slots=4, busy=3, stuck=1)


def test_prometheus_can_parse_the_output() -> None:
    create_jobs_and_minutes()
    families = parse_families(render_text())

    for name, family in families.items():
        assert family.documentation, name
        assert family.type in ("counter", "gauge", "histogram"), name
        assert name.startswith("jobs_")
    lines = render_text().splitlines()
    assert all(line.startswith(("#", "jobs_")) for line in lines)
    assert render_text().endswith("\n")


def test_every_series_belongs_to_its_family_and_follows_it() -> None:
    create_jobs_and_minutes()
    family = ""
    for line in render_text().splitlines():
        if line.startswith("# TYPE"):
            family = line.split()[2]
        elif not line.startswith("#"):
            assert line.startswith(family), line


def test_histograms_add_up_from_bucket_to_bucket() -> None:
    create_jobs_and_minutes()
    text = render_text()

    for name in ("jobs_wait_seconds", "jobs_attempt_duration_seconds"):
        bounds = [*(f"{bound:g}" for bound in BUCKETS_SEC), "+Inf"]
        counts = [get_value(text, f"{name}_bucket", job_type=SAMPLE_TYPE, le=bound) for bound in bounds]
        assert counts == sorted(counts)
        assert counts[-1] == get_value(text, f"{name}_count", job_type=SAMPLE_TYPE) == 7
    assert get_value(text, "jobs_wait_seconds_bucket", job_type=SAMPLE_TYPE, le="0.1") == 0
    assert get_value(text, "jobs_wait_seconds_bucket", job_type=SAMPLE_TYPE, le="0.5") == 7
    assert get_value(text, "jobs_wait_seconds_sum", job_type=SAMPLE_TYPE) == 2.5
    assert get_value(text, "jobs_attempt_duration_seconds_bucket", job_type=SAMPLE_TYPE, le="7200") == 0


def test_a_job_that_never_started_is_in_no_histogram() -> None:
    JobMinuteFactory(jobs=3, outcome="CANCELLED", wait_bucket=-1, run_bucket=-1)
    assert not any(name.startswith("jobs_wait_seconds") for name, _ in parse_samples(render_text()))


def test_live_jobs_are_counted_by_status_resource_and_addon() -> None:
    create_jobs_and_minutes()
    text = render_text()

    assert get_value(text, "jobs_live", status="PAUSED") == 2
    assert get_value(text, "jobs_running", resource="default") == 1
    assert get_value(text, "jobs_running", resource="other") == 1
    assert get_value(text, "jobs_ready", resource="default") == 1
    assert get_value(text, "jobs_queued", addon="") == 2  # one is DISPATCHING to a remote worker
    assert get_value(text, "jobs_queued", addon="addon-1") == 2
    assert get_value(text, "jobs_finished_total", resource="default", job_type=SAMPLE_TYPE, outcome="COMPLETED") == 7
    assert get_value(text, "jobs_retries_total", job_type="other") == 1
    assert get_value(text, "jobs_recovered_total") == 2
    assert get_value(text, "jobs_workers", state="RUNNING") == 1
    assert get_value(text, "jobs_worker_slots") == 4
    assert get_value(text, "jobs_worker_slots_busy") == 3
    assert get_value(text, "jobs_worker_slots_stuck") == 1


def test_ages_are_counted_from_when_a_job_could_have_started() -> None:
    ago = datetime.now(UTC) - timedelta(hours=2)
    JobFactory.create(created_at=ago, not_before=ago + timedelta(hours=1))
    age = get_value(render_text(), "jobs_oldest_ready_age_seconds", resource="default")
    assert 3500 < age < 3700


def test_expired_leases_and_blocked_targets_are_counted() -> None:
    JobFactory.create(running=True, lease_expires_at=datetime.now(UTC) - timedelta(seconds=5))
    JobFactory.create(failed=True, in_lane=True)
    assert get_value(render_text(), "jobs_expired_leases") == 1
    assert get_value(render_text(), "jobs_blocked_targets") == 1


def test_submitted_jobs_are_counted_alive_and_ended() -> None:
    before = get_value(render_text(), "jobs_enqueued_total", resource="default", job_type=SAMPLE_TYPE)
    job = job_services.enqueue(SAMPLE_TYPE, {"text": "a"})
    job_services.enqueue(SAMPLE_TYPE, {"text": "b"})
    after = get_value(render_text(), "jobs_enqueued_total", resource="default", job_type=SAMPLE_TYPE)
    job_services.cancel(job.pk)
    ended = get_value(render_text(), "jobs_enqueued_total", resource="default", job_type=SAMPLE_TYPE)

    assert (before, after, ended) == (0, 2, 2)


def test_schedules_are_counted_as_overdue_disabled_and_missed() -> None:
    now = timezone.now()
    ScheduleFactory.create(next_fire_at=now - timedelta(minutes=2))
    ScheduleFactory.create(next_fire_at=now - timedelta(seconds=30))
    ScheduleFactory.create(enabled=False)
    ScheduleFactory.create_batch(2, enabled=False, disabled_reason=f"{BROKEN_PREFIX}cron is gone")
    text = render_text()
    assert get_value(text, "jobs_schedules_overdue") == 1
    assert get_value(text, "jobs_schedules_disabled", cause="other") == 1
    assert get_value(text, "jobs_schedules_disabled", cause="broken") == 2
    assert get_value(text, "jobs_schedules_missed") == 0

    late = ScheduleFactory.create(next_fire_at=now - timedelta(hours=30), catch_up="none", tenant="acme")
    fire_due(now)
    late.refresh_from_db()
    text = render_text()
    assert late.note.startswith("missed: ")
    assert [get_value(text, f"jobs_schedules_{name}") for name in ("overdue", "missed")] == [0, 1]
    assert get_value(metrics.render("default").body.decode(), "jobs_schedules_missed") == 0
    Schedule.objects.update(missed_at=now - timedelta(hours=25))
    assert get_value(render_text(), "jobs_schedules_missed") == 0


def test_webhooks_are_counted_by_what_they_wait_for() -> None:
    endpoint = WebhookEndpointFactory.create(failures=FAILURE_THRESHOLD)
    WebhookEndpointFactory.create(enabled=False, failures=FAILURE_THRESHOLD, tenant="acme")
    message = WebhookMessageFactory.create(fanned_out_at=timezone.now(), body=b"{}")
    WebhookDeliveryFactory.create_batch(3, endpoint=endpoint, message=message)
    WebhookDeliveryFactory.create_batch(2, endpoint=endpoint, message=message, failed=True)
    WebhookDeliveryFactory.create(endpoint=endpoint, message=message, delivered=True)
    WebhookMessageFactory.create(fanned_out_at=None)

    def read(tenant: str | None) -> list[float]:
        text = metrics.render(tenant).body.decode()
        names = ("jobs_webhooks_failed", "jobs_webhook_circuits_open", "jobs_webhook_endpoints_disabled")
        stages = [get_value(text, "jobs_webhooks_pending", stage=stage) for stage in ("fan_out", "delivery")]
        return [*stages, *(get_value(text, name) for name in names)]

    assert read(None) == [1, 3, 2, 1, 1]
    assert read("default") == [1, 3, 2, 1, 0]
    assert read("acme") == [0, 0, 0, 0, 1]


def test_admission_is_exported_where_a_policy_decides() -> None:
    JobFactory.create(running=True, cost_units=30)
    LeaseFactory.create(kind="ADMISSION", granted_at=timezone.now(), cost_units=20)

    def list_names() -> set[str]:
        return {name for name, _ in parse_samples(render_text()) if name.startswith("jobs_admission")}

    assert list_names() == {"jobs_admission_state"}
    policy = {"ADMISSION_POLICY": "jobs.policies.admission.Capacity", "ADMISSION": {"capacity_max": 80}}
    with override_settings(JOBSCHEDULER=policy):
        assert get_value(render_text(), "jobs_admission_capacity") == 80, "nothing was measured yet"
        SystemSnapshot.objects.update_or_create(
            pk=1, defaults={"state": "BUSY", "load": 9.0, "taken_at": timezone.now()}
        )
        text = render_text()
        assert [get_value(text, "jobs_admission_state", state=str(state)) for state in State] == [0, 0, 1]
        assert get_value(text, "jobs_admission_capacity") == 20
        assert get_value(text, "jobs_admission_cost_in_use") == 50
        assert "jobs_admission" not in metrics.render("default").body.decode(), "tenants share the machine"


@pytest.fixture
def counters() -> Iterator[list[dict[tuple[str, Labels], float]]]:
    """Collect readings of the counters; fail if one decreases from a reading to the next."""
    readings: list[dict[tuple[str, Labels], float]] = []
    yield readings
    for earlier, later in pairwise(readings):
        for series, before in earlier.items():
            assert later[series] >= before, series


def read_counters() -> dict[tuple[str, Labels], float]:
    families = [family for family in parse_families(render_text()).values() if family.type in ("counter", "histogram")]
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def test_counters_survive_folding_and_pruning(counters: list[Any]) -> None:
    long_ago = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(days=40)
    for minute in range(60):
        at = long_ago + timedelta(minutes=minute)
        JobMinuteFactory(minute=at, jobs=3, wait_sec=minute / 7, run_sec=minute / 3, run_bucket=minute % 5, retried=1)
    job = job_services.enqueue(SAMPLE_TYPE, {"text": "a"})
    job_services.cancel(job.pk)
    counters.append(read_counters())
    while rollup_compaction.compact_oldest_day(datetime.now(UTC)):
        counters.append(read_counters())
    Job.objects.filter(pk=job.pk).update(retry_of=None)
    Job.objects.filter(pk=job.pk)._raw_delete("default")
    counters.append(read_counters())


def test_old_minutes_become_hours_and_then_days(counters: list[Any]) -> None:
    now = datetime.now(UTC).replace(minute=30, second=0, microsecond=0)
    ages = [timedelta(hours=hours) for hours in (0, 25, 30, 30, 24 * 20, 24 * 50)]
    for number, age in enumerate(ages):
        for minute in (0, 1):
            at = now - age + timedelta(minutes=minute)
            JobMinuteFactory(minute=at, worker=f"w{number}", jobs=2, wait_sec=1 / 3, run_sec=1 / 7, recovered=1)
    counters.append(read_counters())
    assert rollup_compaction.run_round() == "3 hours, 1 days"
    counters.append(read_counters())
    assert rollup_compaction.run_round() == "0 hours, 0 days"

    rows = [(row.worker, row.jobs) for row in JobMinute.objects.order_by("-minute", "worker")]
    assert rows[:4] == [("w0", 2), ("w0", 2), ("w1", 2), ("w1", 2)]
    assert rows[4:] == [("@hour", 8), ("@hour", 4), ("@day", 4)]


def test_undeclared_names_share_one_label() -> None:
    for number in range(150):
        JobFactory.create(job_type=f"made-up-{number}", resource=f"pool-{number}", addon_id=f"addon-{number}")
        JobMinuteFactory(job_type=f"made-up-{number}", resource=f"pool-{number}")
    text = render_text()

    assert get_value(text, "jobs_ready", resource="other") == 150
    assert get_value(text, "jobs_enqueued_total", resource="other", job_type="other") == 300
    assert "made-up" not in text
    assert "pool-" not in text
    addons = [labels for name, labels in parse_samples(text) if name == "jobs_queued"]
    assert len(addons) == count_addon_labels()
    assert get_value(text, "jobs_queued", addon="other") == 150 - metrics.MAX_ADDONS


def count_addon_labels() -> int:
    return metrics.MAX_ADDONS + len(["", "other"])


def test_a_type_is_known_by_its_present_name() -> None:
    from jobs import job
    from jobs.registry import registry

    before = dict(registry._handlers)
    try:

        @job("tests.renamed", aliases=["tests.old-name"])
        def do_nothing() -> None: ...

        JobFactory.create(job_type="tests.old-name")
        assert get_value(render_text(), "jobs_enqueued_total", resource="default", job_type="tests.renamed") == 1
    finally:
        registry._handlers = before


def test_label_values_are_escaped() -> None:
    JobFactory.create(addon_id='a"b\\c d')
    text = render_text()
    assert r'addon="a\"b\\c d"' in text
    assert get_value(text, "jobs_queued", addon='a"b\\c d') == 1


def test_a_metric_starts_at_zero() -> None:
    text = render_text()
    for outcome in TERMINAL:
        assert (
            get_value(text, "jobs_finished_total", resource="default", job_type=SAMPLE_TYPE, outcome=str(outcome)) == 0
        )
    assert get_value(text, "jobs_recovered_total") == 0
    assert get_value(text, "jobs_queued", addon="") == 0


def test_the_number_of_statements_does_not_depend_on_the_rows() -> None:
    def count_statements() -> int:
        with CaptureQueriesContext(connection) as queries:
            render_text()
        return len(queries)

    baseline = count_statements()
    create_jobs_and_minutes()
    assert count_statements() == baseline <= 14


# ---------------------------------------------------------------------- formats


def test_openmetrics_has_the_same_series_as_the_text_format() -> None:
    create_jobs_and_minutes()
    openmetrics = metrics.render(as_openmetrics=True).body.decode()
    assert normalize_samples(openmetrics_families(openmetrics)) == normalize_samples(
        text_string_to_metric_families(render_text())
    )


def normalize_samples(families: Iterable[Metric]) -> set[tuple[str, Labels, float]]:
    """Return all samples but ages, with bounds as numbers: the formats write them differently."""
    return {
        (sample.name, frozenset((k, str(float(v)) if k == "le" else v) for k, v in sample.labels.items()), sample.value)
        for family in families
        for sample in family.samples
        if family.name != "jobs_oldest_ready_age_seconds"
    }


PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@override_settings(JOBSCHEDULER={"METRICS_PUBLIC": True})
@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("application/openmetrics-text", OPENMETRICS),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", OPENMETRICS),
        (PROMETHEUS_3, OPENMETRICS),
        ("*/*, application/openmetrics-text;q=0.5", TEXT),
        ("text/plain, application/openmetrics-text;q=0.9", TEXT),
        ("application/openmetrics-text;q=0", TEXT),
        ("application/openmetrics-text;version=0.0.1,text/plain;q=0.5", TEXT),
        ("application/openmetrics-text;version=x", TEXT),
        ("text/plain;version=x", TEXT),
        ("text/html", TEXT),
        ("*/*", TEXT),
        ("", TEXT),
    ],
)
def test_the_caller_chooses_the_format(accept: str, content_type: str) -> None:
    response = Client().get("/metrics", headers={"Accept": accept})
    assert response.status_code == 200
    assert response["Content-Type"] == content_type
    assert "Accept" in response["Vary"].split(", ")
    assert response.content.endswith(b"# EOF\n") == (content_type == OPENMETRICS)


# ---------------------------------------------------------------------- credentials


def test_without_credentials_it_is_401() -> None:
    response = Client().get("/metrics")
    assert response.status_code == 401
    assert response["Content-Type"] == "application/problem+json"
    assert response["WWW-Authenticate"] == "Bearer"


def test_a_token_needs_the_scope_read() -> None:
    response = ApiClient("read", tenant=None).get_page("/metrics")
    assert response.status_code == 200
    assert response["Content-Type"] == TEXT
    assert parse_families(response.content.decode())
    assert ApiClient("submit").get_page("/metrics").status_code == 403


@override_settings(JOBSCHEDULER={"METRICS_PUBLIC": True})
def test_a_setting_makes_it_public() -> None:
    assert Client().get("/metrics").status_code == 200


def test_only_get_and_head_are_allowed() -> None:
    response = Client().post("/metrics")
    assert response.status_code == 405
    assert response["Allow"] == "GET, HEAD"
    assert Client().head("/metrics").status_code == 401


def test_a_tenants_token_reads_the_figures_of_its_own_jobs_only() -> None:
    JobFactory.create(tenant="one")
    JobFactory.create(tenant="two", job_type="tests.anything")
    JobMinuteFactory(tenant="two", jobs=9, resource="default")
    WorkerFactory()
    text = ApiClient("read", tenant="one").get_page("/metrics").content.decode()

    assert get_value(text, "jobs_live", status="QUEUED") == 1
    assert get_value(text, "jobs_enqueued_total", resource="default", job_type="tests.anything") == 0
    assert get_value(text, "jobs_finished_total", resource="default", job_type=SAMPLE_TYPE, outcome="COMPLETED") == 0
    assert get_value(text, "jobs_workers", state="RUNNING") == 1
