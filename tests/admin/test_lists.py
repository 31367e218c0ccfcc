"""Lists: a bounded number of queries, a count that stops, and a search that only asks indexes and equalities."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import pytest
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django.utils.html import escape

from jobs.admin.base import CappedInt, CappedPaginator
from jobs.admin.job_detail import ROWS_SHOWN
from jobs.models import Job, JobEvent, JobGroup, JobRun, JobTemplate, Target, Worker
from jobs.states import Status
from schedules.models import Schedule
from tests import factories
from tests.admin.test_pages import SHOWN
from tests.factories import SAMPLE_TYPE, JobFactory, job_in
from tests.support.admin_pages import count_queries, get_list_url, get_page_url
from tests.support.admin_users import create_reader, log_in
from webhooks.models import WebhookDelivery


def search(client: Client, query: str, model: Any = Job) -> set[Any]:
    response = client.get(get_list_url(model), {"q": query})
    return {row.pk for row in response.context["cl"].result_list}


def test_the_job_list_takes_as_many_queries_for_100_rows_as_for_10(db: Any) -> None:
    client = log_in(create_reader("operator", "cancel_job", "view_payload"))
    for status in (Status.FAILED, Status.QUEUED):
        for _ in range(5):
            job_in(status, target=None)
    job_in(Status.RUNNING)
    baseline = count_queries(client, f"{get_list_url(Job)}?all=1")
    for _ in range(45):
        job_in(Status.FAILED)
        job_in(Status.RUNNING)
    assert client.get(f"{get_list_url(Job)}?all=1").context["cl"].result_count == 101
    assert count_queries(client, f"{get_list_url(Job)}?all=1") == baseline <= 20


@pytest.mark.parametrize(
    "make",
    [
        factories.JobEventFactory,
        factories.JobLogFactory,
        factories.JobRunFactory,
        factories.ScheduleFactory,
        factories.ScheduleFireFactory,
        factories.WebhookDeliveryFactory,
        factories.JobTemplateFactory,
    ],
)
def test_other_lists_take_a_constant_number_of_queries_too(make: Any, boss: Client) -> None:
    make.create_batch(3)
    baseline = count_queries(boss, get_list_url(make._meta.model))
    make.create_batch(20)
    assert count_queries(boss, get_list_url(make._meta.model)) == baseline <= 8


def test_a_job_page_takes_a_constant_number_of_queries(boss: Client) -> None:
    job = JobFactory.create(failed=True, in_lane=True)
    factories.JobEventFactory.create_batch(ROWS_SHOWN, job=job)  # with more events, the first one is read by itself
    baseline = count_queries(boss, get_page_url(job))
    factories.JobEventFactory.create_batch(100, job=job)
    factories.JobLogFactory.create_batch(100, job=job)
    assert count_queries(boss, get_page_url(job)) == baseline <= 17


@pytest.mark.parametrize("model", SHOWN)
def test_every_list_has_the_bar_and_its_filters_above_the_table(model: Any, boss: Client) -> None:
    page = boss.get(get_list_url(model))
    text = page.content.decode()
    assert ('class="jc-bar"' in text, "changelist-filter" in text) == (True, False)
    names = {spec.parameter_name for spec in page.context["cl"].filters}
    assert names <= set(re.findall(r'<select name="(\w+)"', text))


@pytest.mark.parametrize("model", [Job, JobGroup, Schedule, Target, Worker, WebhookDelivery])
def test_a_list_that_asks_for_itself_is_told_that_nothing_happened(model: Any, boss: Client) -> None:
    asked = {"X-Jobs-Live": "1"}
    first = boss.get(get_list_url(model), headers=asked)
    with CaptureQueriesContext(connection) as captured:
        again = boss.get(get_list_url(model), headers={**asked, "If-None-Match": first["ETag"]})
    assert (again.status_code, again.content) == (304, b"") or again["ETag"] != first["ETag"]
    assert again.status_code == 200 or len(captured) <= 4
    factories.JobEventFactory.create(), factories.WebhookAttemptFactory.create()
    assert boss.get(get_list_url(model), headers={**asked, "If-None-Match": first["ETag"]}).status_code == 200


def test_a_filter_keeps_what_the_address_says_besides(boss: Client) -> None:
    page = boss.get(f"{get_list_url(Job)}?status=FAILED&q=type:a&created=24h").content.decode()
    form = page[page.index("jc-filters") :].partition("</form>")[0]
    hidden = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form)
    assert dict(hidden) == {"status": "FAILED"}
    assert 'name="q" value="type:a"' in form
    assert '<option value="24h" selected>' in form


def test_a_list_loads_no_large_payload_nor_counts_the_whole_table(boss: Client) -> None:
    JobFactory.create(completed=True)
    with CaptureQueriesContext(connection) as captured:
        boss.get(get_list_url(Job))
    sql = [query["sql"] for query in captured if "jobscheduler_job" in query["sql"]]
    assert not any('"checkpoint"' in item or '"artifacts"' in item for item in sql)
    reads, counts = [item for item in sql if '"params"' in item], [item for item in sql if "COUNT(" in item]
    assert reads
    assert all("<= 2000" in item for item in reads)  # only of those that are small
    assert not any("DISTINCT" in item for item in sql)
    assert counts
    assert all("LIMIT 10001" in item for item in counts)


def test_counting_stops_at_the_cap_and_says_so(db: Any, settings: Any) -> None:
    JobFactory.create_batch(5)
    paginator = CappedPaginator(Job.objects.order_by("-pk"), 2)
    paginator.limit = 3
    assert (paginator.count, paginator.num_pages, str(paginator.count)) == (3, 2, "3+")
    settings.USE_THOUSAND_SEPARATOR = True
    assert str(CappedInt(10_000)) == "10000"


def test_a_capped_list_shows_its_plus(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CappedPaginator, "limit", 3)
    JobFactory.create_batch(5)
    assert "3+ jobs" in boss.get(get_list_url(Job)).content.decode()


def test_jobs_are_found_by_id_and_by_qualifier(boss: Client) -> None:
    job = JobFactory.create(
        job_type="mail.send", resource="smtp", tenant="acme", target="a b", idempotency_key="k-1", addon_id="shop"
    )
    JobFactory.create(in_group=True)
    one = {job.pk}
    assert search(boss, str(job.pk)) == search(boss, f"#{job.pk}") == search(boss, job.pk.hex) == one
    for query in (
        "type:mail.send",
        "type:mail.*",
        "TYPE:mail.*",
        "resource:smtp",
        "tenant:acme",
        "key:k-1",
        "addon:shop",
    ):
        assert search(boss, query) == one, query
    assert search(boss, 'target:"a b" tenant:acme') == one
    for query in ("type:mail", "type:%*", "nonsense", "tenant:acme resource:other", "status:FAILED"):
        assert search(boss, query) == set(), query


def test_jobs_are_found_by_their_group_and_their_schedule(boss: Client) -> None:
    schedule = factories.ScheduleFactory.create()
    grouped, scheduled = JobFactory.create(in_group=True), JobFactory.create(schedule=schedule)
    assert search(boss, f"group:{grouped.group_id}") == {grouped.pk}
    assert search(boss, f"schedule:{schedule.pk}") == {scheduled.pk}


def test_runs_and_events_are_found_by_their_job(boss: Client) -> None:
    job = JobFactory.create(failed=True)
    event = factories.JobEventFactory.create(job=job)
    factories.JobEventFactory.create(job=JobFactory.create(failed=True))
    assert search(boss, str(job.pk), JobRun) == {job.pk}
    assert search(boss, str(job.pk), JobEvent) == search(boss, str(event.pk), JobEvent) == {event.pk}


def test_things_with_names_are_found_by_the_beginning_of_the_name(boss: Client) -> None:
    worker = factories.WorkerFactory.create(name="mailer@1")
    template = factories.JobTemplateFactory.create(name="nightly report")
    factories.WorkerFactory.create(name="other@1")
    assert search(boss, "mailer", Worker) == {worker.pk}
    assert search(boss, '"nightly rep"', JobTemplate) == {template.pk}


@pytest.mark.parametrize("term", ["demo", "tag:demo", "unknown:demo", "type:demo*"])
def test_a_search_for_very_many_terms_is_refused_before_any_is_looked_for(term: str, boss: Client) -> None:
    """Each is a condition of the statement, of which the databases take so many, or a statement of its own."""
    JobFactory.create(tags=["unknown:demo"])
    for model in SHOWN:
        above, far_above = (f"{get_list_url(model)}?q={'+'.join([term] * count)}" for count in (21, 3000))
        assert count_queries(boss, far_above) == count_queries(boss, above), model
        response = boss.get(far_above)
        assert not response.context["cl"].result_list, model
        assert response.context["cl"].problem, model


def test_every_search_box_says_what_it_finds(boss: Client) -> None:
    for model in SHOWN:
        assert "Search by " in boss.get(get_list_url(model)).content.decode(), model
    assert '<option value="type:"></option>' in boss.get(get_list_url(Job)).content.decode()


def test_jobs_are_filtered_by_status_type_and_age(boss: Client) -> None:
    import tests.sample_app.job_types  # noqa: F401  the filter offers the types that are known

    long_ago = int((timezone.now() - timedelta(hours=2)).timestamp() * 1000)
    old = JobFactory.create(id=UUID(int=(long_ago << 80) | (7 << 76) | (2 << 62)))
    failed, other = job_in(Status.FAILED), JobFactory.create(job_type="tests.nothing")
    shown = lambda query: {job.pk for job in boss.get(f"{get_list_url(Job)}?{query}").context["cl"].result_list}  # noqa: E731
    assert shown("status=FAILED") == {failed.pk}
    assert shown("job_type=tests.nothing") == {other.pk}
    assert shown(f"job_type={SAMPLE_TYPE}&created=1h") == {failed.pk}
    assert old.pk in shown("created=24h")
    assert old.pk not in shown("created=1h")


def test_the_job_list_is_sorted_newest_first_and_by_no_column(boss: Client) -> None:
    jobs = JobFactory.create_batch(3)
    for query in ("", "?o=-2", "?o=1", "?sort=nonsense"):
        shown = boss.get(f"{get_list_url(Job)}{query}").context["cl"].result_list
        assert [job.pk for job in shown] == [job.pk for job in reversed(jobs)], query
    oldest = boss.get(f"{get_list_url(Job)}?sort=oldest").context["cl"].result_list
    assert [job.pk for job in oldest] == [job.pk for job in jobs]


def test_a_row_leads_to_its_page_with_the_filters_of_the_list(boss: Client) -> None:
    """As Django's own rows do, whose address is resolved and built anew for each row."""
    job = JobFactory.create()
    query = {"q": f"type:{SAMPLE_TYPE}", "status": "waiting"}
    page = boss.get(get_list_url(Job), query)
    filters = {"preserved_filters": urlencode({"_changelist_filters": urlencode(query)}), "opts": Job._meta}
    address = add_preserved_filters(filters, get_page_url(job))
    assert f'<a href="{escape(address)}">' in page.content.decode()
    box = f'<input type="checkbox" name="_selected_action" value="{job.pk}" class="action-select"'
    assert box in page.content.decode()


def test_search_and_filters_are_one_form_that_keeps_the_order(boss: Client) -> None:
    page = boss.get(f"{get_list_url(Target)}?q=book&paused=1&o=1").content.decode()
    form = page[page.index('id="changelist-search"') :].partition("</form>")[0]
    assert dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form)) == {"o": "1"}
    assert 'name="q" value="book"' in form
    assert '<option value="1" selected>' in form


def test_an_empty_list_offers_no_search_result_and_badges_begin_with_a_capital(boss: Client) -> None:
    assert "Show all" not in boss.get(get_list_url(Target)).content.decode()
    factories.TargetFactory.create()
    assert "</span> Idle</span>" in boss.get(get_list_url(Target)).content.decode()


def test_a_short_id_in_a_link_is_one_word(boss: Client) -> None:
    job = JobFactory.create(failed=True)
    factories.WebhookDeliveryFactory.create(job_id=job.pk)
    tail = f'<span class="jc-whole">…{str(job.pk)[-12:]}</span>'
    assert tail in boss.get(get_list_url(WebhookDelivery)).content.decode()
