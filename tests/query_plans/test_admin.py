"""At 100,000 jobs, a tenth of them live: every screen takes few statements, and none of them walks the history."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from pytest_django import DjangoDbBlocker

from jobs.admin import filters
from jobs.admin.filters import TABS
from jobs.admin.formatting import format_count
from jobs.models import Job
from jobs.states import TERMINAL, Status
from jobs.stats import live_counts
from tests.query_plans.explain import explain_text, find_full_scans
from tests.query_plans.large_tables import LargeTables, delete_all_rows
from tests.support.admin_pages import get_list_url
from tests.support.admin_users import log_in

pytestmark = pytest.mark.django_db

JOBS, MOST_STATEMENTS = 100_000, 30
ENDS = sorted(TERMINAL)
SCREENS = (
    *(("overview", ""), ("overview", "?window=7d"), ("counts", "")),
    *(("queue", ""), ("queue", "?priority=50"), ("queue", "?target=target%2010")),
)
SORTS = ("oldest", "running", "due", "finished")
TERMS = (
    *("tag:rare", "tag:ra*", "tag:none", "target:target 10", "target:target*", "type:crowd.mail", "type:none"),
    *("resource:none", "tenant:other", "tenant:default", "status:waiting", "worker:crowd", "worker:none", "group:none"),
    *("schedule:none", "key:none", "error:none", "rare", "crowd.mail", "nonsense", "00000000abcd", "0189"),
)
NOW = timezone.now()
TIMES = tuple(
    f"{name}_from={(NOW - start).isoformat()}&{name}_to={(NOW - end).isoformat()}".replace("+", "%2B")
    for name in ("submitted", "ended")
    for start, end in ((timedelta(days=9), timedelta(days=8)), (timedelta(hours=9), timedelta(hours=8)))
)
LISTS = (
    *("", *(f"?status={status}" for status in Status), "?created=24h", "?created=7d&status=COMPLETED"),
    *(
        f"?ended={age}{extra}"
        for age in ("1h", "24h", "7d")
        for extra in ("", *(f"&status={status}" for status in ENDS))
    ),
    "?ended=24h&job_type=tests.note",
    *(f"?attention={item}" for item in ("unhandled", "blocking", "unserved", "stuck", "timed", "late")),
    *(f"?status={tab}" for tab in TABS),
    *(f"?sort={sort}{extra}" for sort in SORTS for extra in ("", *(f"&status={tab}" for tab in TABS))),
    *(f"?q={quote(term)}{extra}" for term in TERMS for extra in ("", "&sort=oldest", "&status=FAILED")),
    *(f"?{times}{extra}" for times in TIMES for extra in ("", "&status=FAILED", "&status=COMPLETED", "&sort=oldest")),
)


@pytest.fixture(scope="module")
def crowd(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[LargeTables]:
    with django_db_blocker.unblock():
        made = LargeTables(connection, JOBS)
        made.fill()
        yield made
        live_counts.clear_cache()
        delete_all_rows()


def record_statements(url: str) -> list[dict[str, Any]]:
    client = log_in(User.objects.create_superuser(f"boss-{User.objects.count()}"))
    client.get(url)
    live_counts.clear_cache()
    with CaptureQueriesContext(connection) as captured:
        assert client.get(url).status_code == 200
    return list(captured)


def urls(crowd: LargeTables) -> list[str]:
    pages = [f"{get_list_url(Job)}{crowd.id_of(n)}/change/" for n in (1, JOBS // 2, JOBS - 1, JOBS - JOBS // 20)]
    screens = [reverse(f"admin:jobscheduler_jobs_{name}") + query for name, query in SCREENS]
    return [*screens, *(f"{get_list_url(Job)}{query}" for query in LISTS), *pages]


def found_in_history(sql: str) -> list[str]:
    """Find full scans; a search for 10,000 completed jobs by id is none, because most rows of the history match."""
    return [] if "\"status\" = 'COMPLETED'" in sql else find_full_scans(sql)


def test_the_tabs_count_what_their_lists_show_and_say_where_counting_stopped(crowd: LargeTables) -> None:
    client = log_in(User.objects.create_superuser("boss"))
    document = client.get(reverse("admin:jobscheduler_jobs_counts")).json()
    lists = {name or "all": client.get(get_list_url(Job), {"status": name}) for name in ("", *TABS)}
    assert document == {name: format_count(page.context["cl"].result_count) for name, page in lists.items()}
    assert (document["COMPLETED"], document["FAILED"]) == ("10,000+", "900")
    notice = "More than 10,000 results."
    assert (notice in lists["COMPLETED"].content.decode(), notice in lists["FAILED"].content.decode()) == (True, False)


def test_where_a_time_begins_among_the_events_is_found_without_a_walk(crowd: LargeTables) -> None:
    with CaptureQueriesContext(connection) as captured:
        filters.find_first_event_id(timezone.now())
    (sql,) = (statement["sql"] for statement in captured)
    assert find_full_scans(sql) == []
    if connection.vendor == "sqlite":  # which walks an index for min and max, if they are asked for together
        assert not [step for step in explain_text(sql).splitlines() if step.startswith("SCAN jobscheduler")]


def test_no_screen_walks_the_history(crowd: LargeTables) -> None:
    wrong = []
    for url in urls(crowd):
        statements = record_statements(url)
        wrong += [f"{url}: {len(statements)} statements"] * (len(statements) > MOST_STATEMENTS)
        wrong += [
            f"{url}: {statement['sql'][:400]} {found}"
            for statement in statements
            if (found := found_in_history(statement["sql"]))
        ]
    assert "\n".join(wrong) == ""
