"""Lists for diagnostics: runs, events, log lines, rollups, leases; in the words and units of a reader."""

from __future__ import annotations

import re
from typing import Any

from django.test import Client
from django.utils.html import strip_tags

from jobs.models import JobEvent, JobLog, JobMinute, JobRun, Lease, SystemSnapshot
from tests.factories import (
    JobEventFactory,
    JobFactory,
    JobLogFactory,
    JobMinuteFactory,
    JobRunFactory,
    LeaseFactory,
)
from tests.support.admin_pages import get_list_url, get_page_url

TRACEBACK = 'Traceback (most recent call last):\n  File "mail.py", line 3, in send\nOSError: no route to host\n'
CLOCK = r"\d\d:\d\d:\d\d\.\d{3}"


def read_list(client: Client, model: Any) -> str:
    page = client.get(get_list_url(model)).content.decode()
    return " ".join(strip_tags(page.split('id="result_list"')[1].split("</table>")[0]).split())


def test_a_run_shows_the_last_line_of_its_traceback_and_no_column_of_keys(boss: Client) -> None:
    job = JobRunFactory.create(job=JobFactory.create(failed=True, started=False), error=TRACEBACK).job
    text = read_list(boss, JobRun)
    assert ("OSError: no route to host" in text, "Traceback" in text) == (True, False)
    assert (" PK " in text, str(job.pk) in text, str(job.pk)[-12:] in text) == (False, False, True)


def test_events_and_log_lines_have_milliseconds_and_short_ids(boss: Client) -> None:
    event, line = JobEventFactory.create(), JobLogFactory.create()
    for row, model in ((event, JobEvent), (line, JobLog)):
        for text in (read_list(boss, model), boss.get(get_page_url(row)).content.decode()):
            assert re.search(CLOCK, text), text
        text = read_list(boss, model)
        assert (str(row.job_id) in text, str(row.job_id)[-12:] in text) == (False, True)


def test_figures_have_a_unit_and_no_long_fraction(boss: Client) -> None:
    minute = JobMinuteFactory.create(wait_sec=3.0771550000000003, run_sec=200.00000001)
    SystemSnapshot.objects.update_or_create(pk=1, defaults={"load": 0.123456789, "cpu": 0.5, "memory": 0.25})
    text = read_list(boss, JobMinute)
    assert ("3.08 s" in text, "3 min 20 s" in text, "077" in text) == (True, True, False)
    assert "3.08 s" in boss.get(get_page_url(minute)).content.decode()
    text = read_list(boss, SystemSnapshot)
    assert ("0.12" in text, "50 %" in text, "0.1234" in text) == (True, True, False)


def test_a_lease_is_named_by_the_end_of_its_id(boss: Client) -> None:
    lease = LeaseFactory.create()
    text = read_list(boss, Lease)
    assert (str(lease.pk) in text, str(lease.pk)[-12:] in text) == (False, True)
