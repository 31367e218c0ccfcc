"""Forecasts, as the source documents require them; without an admission policy, under which there are none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from jobs.services import tokens
from tests.source_documents.conftest import COMMAND, Scheduler
from tests.support.product import run_product
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet


def test_273_the_forecast_uses_expected_durations(fleet: Fleet) -> None:
    _, token = tokens.create("client", tenant=None, scopes=["read", "submit", "operate", "admin"])
    with run_product(fleet, *COMMAND, settings=LONG_LEASE_SETTINGS) as product:
        scheduler = Scheduler(product, fleet, token)
        scheduler.send("PUT", "/api/limits", {"scope": "resource", "key": "press", "max": 1})
        first = scheduler.submit("sample.sleepy", {"seconds": 60}, resource="press", expected_duration_sec=100)
        scheduler.wait_for(first, "RUNNING")
        second = scheduler.submit("sample.sleepy", {"seconds": 60}, resource="press")
        explained = scheduler.get(f"/api/jobs/{second}/explain")
        expected = datetime.fromisoformat(explained["predicted_start_at"])
        assert timedelta(seconds=10) < expected - datetime.now(UTC) < timedelta(seconds=110), explained
        for job_id in (second, first):
            scheduler.post(f"/api/jobs/{job_id}/cancel")
