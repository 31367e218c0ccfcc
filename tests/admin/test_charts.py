"""The charts of the overview: one scale of time, gaps where nothing started, and a table with all that they show."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from html import unescape

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from jobs.states import Status
from tests.factories import JobMinuteFactory, WorkerFactory

LEFT = 44  # where the time begins in each chart
CHARTS = {"880": 880 - LEFT - 8, "430": 430 - LEFT - 34}  # the width of its time, by the width of a chart
HIT = re.compile(r'<rect class="jc-hit" x="([\d.]+)" [^>]*?width="([\d.]+)" [^>]*><title>([^<]+?)–')


def count_minute(minutes_ago: int, **fields: object) -> datetime:
    """Count a job in the rollup, and return the minute."""
    minute = timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=minutes_ago)
    JobMinuteFactory.create(minute=minute, wait_bucket=2, run_bucket=3, **fields)
    return minute


def read_charts(client: Client) -> list[str]:
    page = client.get(reverse("admin:jobscheduler_jobs_overview"), {"window": "1h"}).content.decode()
    return re.findall(r'<svg class="jc-plot".*?</svg>', page, re.DOTALL)


def find_slots(chart: str) -> dict[str, tuple[float, float]]:
    """Return start and end of each slot by its time, as shares of the chart's time."""
    width = CHARTS[re.findall(r'viewBox="0 0 (\d+)', chart)[0]]
    slots = ((float(x) - LEFT, float(length), clock) for x, length, clock in HIT.findall(unescape(chart)))
    return {clock: (round(x / width, 3), round((x + length) / width, 3)) for x, length, clock in slots}


def test_a_moment_has_one_place_in_all_charts(boss: Client) -> None:
    last = max(count_minute(40), count_minute(20))
    WorkerFactory.create(started_at=last + timedelta(seconds=30), version="1.2.3")
    finished, waits, runs = read_charts(boss)
    slots = find_slots(finished)
    assert len(slots) == 2
    for chart in (waits, runs):
        assert find_slots(chart) == {clock: pytest.approx(place, abs=0.003) for clock, place in slots.items()}
    deploy_x = float(re.findall(r'class="jc-deploy" x1="([\d.]+)"', finished)[0])
    start, end = max(slots.values())
    assert start < (deploy_x - LEFT) / CHARTS["880"] < end


def test_a_line_of_latency_has_a_gap_where_no_job_started(boss: Client) -> None:
    for minutes in (40, 39, 20):
        count_minute(minutes)
    for chart in read_charts(boss)[1:]:
        for css_class in ("jc-p50", "jc-p95"):
            (line,) = re.findall(rf'<path class="{css_class}" d="([^"]+)"', chart)
            assert line.count("M") == 2
        assert len(re.findall("<title>[^<]*p50 ≤ [^<]*p95 ≤ [^<]*, 1 job</title>", chart)) == 3
        assert len(re.findall(r'text-anchor="end">[\d.]+ (?:ms|s|min|h)</text>', chart)) >= 2  # labels of its scale


def test_the_table_of_the_charts_has_each_slot_and_each_series(boss: Client) -> None:
    for outcome in (Status.COMPLETED, Status.FAILED, Status.SKIPPED, Status.CANCELLED):
        count_minute(20, outcome=str(outcome))
    page = boss.get(reverse("admin:jobscheduler_jobs_overview"), {"window": "1h"}).content.decode()
    table = page[page.index('id="jc-numbers"') :].partition("</table>")[0]
    names = re.findall(r'<th scope="col"[^>]*>([^<]+)', table)
    assert names[1:] == ["Completed", "Failed", "Skipped", "Cancelled", "Wait p50", "Wait p95", "Run p50", "Run p95"]
    rows = [
        re.findall(r"<td[^>]*>(?:<a[^>]*>)?([^<]*)", row) for row in re.findall(r'<tr><th scope="row".*?</tr>', table)
    ]
    assert len(rows) in (60, 61)
    assert [row for row in rows if row[:4] == ["1", "1", "1", "1"]] == [row for row in rows if row[:4] != ["0"] * 4]
