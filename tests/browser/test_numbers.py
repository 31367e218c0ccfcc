"""Every number of the console is that of the list to which it leads, with the data of the demo."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import User
from django.db.models import Model
from django.test import Client
from django.utils import timezone
from django.utils.html import strip_tags

from jobs import demo
from jobs.actors import Actor, ActorKind
from jobs.admin.queue import PAGE_SIZE
from jobs.models import ConcurrencyLimit, Job, JobGroup, Target, Worker, WorkerState
from jobs.services import groups
from jobs.services import jobs as job_services
from jobs.states import Status
from jobs.stats import live_counts
from schedules.models import Schedule, ScheduleFire
from tests.browser.paths import get_screen_path
from tests.factories import JobFactory, WorkerFactory
from tests.support.admin_pages import get_list_url, get_page_url
from tests.support.admin_users import log_in
from webhooks.models import WebhookDelivery, WebhookEndpoint

pytestmark = [pytest.mark.once, pytest.mark.django_db(transaction=True)]
NUMBER = re.compile(r"[\d,]+")
# "8", "2 ready", "demo.fax (1)", but no duration.
COUNTED = re.compile(r"[\d,]+( (?!(ms|s|min|h|d)$)[a-z ]+)?|.*\([\d,]+\)")
BAR = re.compile(r": ([\d,]+) completed, ([\d,]+) failed, ([\d,]+) skipped")
LEAST_LINKS = 20  # of the overview of the demo: a page without links would prove nothing


@dataclass
class Link:
    url: str
    text: str = ""
    classes: list[str] = field(default_factory=list)

    @property
    def number(self) -> int:
        """Return the first number of a text such as "8" or "2 ready"; of a bar what its title says of its status."""
        if bar := BAR.search(self.text):
            completed, failed, others = (int(number.replace(",", "")) for number in bar.groups())
            by_status = {"status=COMPLETED": completed, "status=FAILED": failed, "status=": others}
            chosen = next((name for name in by_status if name in self.url), None)
            return by_status[chosen] if chosen else completed + failed + others
        found = NUMBER.search(self.text)
        assert found is not None, self.text
        return int(found[0].replace(",", ""))


class LinkParser(HTMLParser):
    """Collects the links of a page with their texts; the text of a bar is its title."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[Link] = []
        self.current: Link | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "a":
            self.current = Link(values.get("href") or values.get("xlink:href") or "")
            self.links.append(self.current)
        elif self.current is not None:
            self.current.classes += (values.get("class") or "").split()

    def handle_endtag(self, tag: str) -> None:
        if tag == "a":
            self.current = None

    def handle_data(self, data: str) -> None:
        if self.current is not None:
            self.current.text += data


def read_links(html: str) -> list[Link]:
    parser = LinkParser()
    parser.feed(html)
    return parser.links


def is_counted(link: Link) -> bool:
    """Return whether the link says how many jobs it leads to. A bar without jobs leads to none."""
    if BAR.search(link.text):
        return link.number > 0
    return "/job/?" in link.url and COUNTED.fullmatch(link.text.strip()) is not None


def count_listed(client: Client, url: str) -> int:
    response = client.get(url)
    assert response.status_code == 200, url
    found: int = response.context["cl"].result_count
    return found


def list_wrong(client: Client, links: Iterable[Link]) -> Iterator[str]:
    for link in links:
        listed = count_listed(client, link.url)
        if listed != link.number:
            yield f"{link.text.strip()!r} leads to {listed} at {link.url}"


@pytest.fixture
def client(transactional_db: None) -> Client:
    """Return the browser of a superuser, with the demo's data."""
    demo.fill(actor=Actor(ActorKind.CLI, "ada"))
    live_counts.clear_cache()
    WorkerFactory.create(slots=4, serves={"types": ["system.sleep"], "resources": None, "tenant": None})
    return log_in(User.objects.create_superuser("boss"))


@pytest.mark.timeout(300)  # some hundred lists
def test_each_number_of_the_overview_and_of_performance_is_that_of_its_list(client: Client) -> None:
    for name, least in (("overview", LEAST_LINKS), ("performance", 5)):
        for window in ("1h", "24h", "7d"):
            page = client.get(f"{get_screen_path(name)}?window={window}").content.decode()
            content = page.split('id="content-main"')[-1].split('id="jc"')[-1]
            links = {(link.url, link.number): link for link in read_links(content) if is_counted(link)}
            assert len(links) >= least, [link.text for link in links.values()]
            assert name == "performance" or any(BAR.search(link.text) for link in links.values())
            assert list(list_wrong(client, links.values())) == [], (name, window)


def test_each_count_of_the_tabs_is_that_of_their_lists(client: Client) -> None:
    for search in ("", "type:demo.mail"):
        counts = client.get(get_screen_path("counts"), {"q": search}).json()
        assert len(counts) > 8
        for tab, count in counts.items():
            listed = client.get(get_list_url(Job), {"q": search, "status": tab}).context["cl"].result_count
            assert str(count).replace(",", "") == str(listed), (tab, search)


def test_each_count_of_the_queue_is_that_of_the_rows_it_shows(client: Client) -> None:
    job_services.enqueue_many([{"job_type": "system.sleep", "params": {"seconds": 1}}] * (PAGE_SIZE + 1))
    queues = client.get(get_screen_path("queue")).context["queues"]
    assert len(queues) > 1
    for queue in queues:
        assert count_queued(client, queue["url"]) == queue["jobs"], queue
        assert client.get(queue["url"]).context["total"] == queue["jobs"]


def count_queued(client: Client, url: str) -> int:
    """Count the rows of all pages of a queue."""
    rows = 0
    while url:
        context = client.get(url).context
        rows += len(context["rows"])
        url = context["next_url"]
    return rows


def test_each_count_of_groups_targets_workers_and_limits_is_that_of_their_pages(client: Client) -> None:
    groups.retry(JobGroup.objects.get(name="demo: one chapter lost").pk)
    worker = Worker.objects.get(state=WorkerState.RUNNING)
    for slot in range(5):
        owner = f"{worker.identity.process_key}#{slot}"
        JobFactory.create(running=True, job_type="system.sleep", resource="demo-gpu", lease_owner=owner)
    for group, text in read_column(client, JobGroup, "members").items():
        ended, total = map(int, re.findall(r"(\d+) of (\d+) finished", text)[0])
        jobs = list(groups.get_latest_attempts(group.pk))
        assert count_table_rows(client, group) == total == len(jobs), group
        assert sum(job.is_terminal for job in jobs) == ended
    links = read_links(client.get(get_list_url(JobGroup)).content.decode())
    sizes = {link.url: int(found[1]) for link in links if (found := re.search(r"of (\d+) finished", link.text))}
    assert sizes == {url: len(client.get(url).context["tables"][0]["rows"]) for url in sizes}
    assert len(sizes) == 3
    for target, text in read_column(client, Target, "queued_jobs").items():
        query = {"tenant": target.tenant, "target": target.key}
        queued = count_queued(client, f"{get_screen_path('queue')}?{urlencode(query)}")
        assert read_number(text) == count_table_rows(client, target) == queued, target
    shown = read_column(client, Worker, "current_jobs")[worker]
    assert shown.count("system.sleep") + read_number(shown.partition("and")[2]) == 5 == count_table_rows(client, worker)
    limits = read_column(client, ConcurrencyLimit, "in_use")
    resources = {limit.key: read_number(text) for limit, text in limits.items() if limit.scope == "resource"}
    jobs_url = f"{get_list_url(Job)}?status=running&q=resource:"
    assert resources == {key: count_listed(client, f"{jobs_url}{key}") for key in resources}
    assert resources["demo-gpu"] == 5


def test_each_count_of_schedules_endpoints_and_deliveries_is_that_of_their_rows(client: Client) -> None:
    for schedule, text in read_column(client, Schedule, "latest_fires").items():
        if not (found := re.search(r'aria-label="The last (\d+) runs, (\d+) of them failed"', text)):
            continue
        runs = client.get(f"{get_list_url(ScheduleFire)}?q=schedule:{schedule.pk}").context["cl"].result_list
        latest = [run.latest_attempt for run in runs][:30]
        failed = [job for job in latest if job is not None and job.status == Status.FAILED]
        assert (len(latest), len(failed)) == (int(found[1]), int(found[2])) == (30, 3)
    deliveries = get_list_url(WebhookDelivery)
    for endpoint, text in read_column(client, WebhookEndpoint, "success_rate").items():
        own = f"{deliveries}?created=24h&q=endpoint:{endpoint.pk}"
        percent, sent = map(int, re.findall(r"(\d+) % of (\d+)", text)[0])
        assert sent == count_listed(client, own) > 0
        assert percent == 100 * count_listed(client, f"{own}&status=DELIVERED") // sent
    for delivery, text in list(read_column(client, WebhookDelivery, "attempts").items())[::5]:
        assert int(text) == len(client.get(get_page_url(delivery)).context["attempts"]), delivery


def test_each_count_of_a_jobs_page_is_that_of_what_it_leads_to(client: Client) -> None:
    blocking = Job.objects.get(status=Status.FAILED, holds_lane=True)
    context = client.get(get_page_url(blocking)).context
    target = Target.objects.get(key=blocking.target)
    assert context["behind"].jobs == count_table_rows(client, target) == 1
    assert context["similar"].jobs == count_listed(client, context["similar"].url) > 1
    report = Job.objects.filter(job_type="demo.report").latest("pk")
    context = client.get(get_page_url(report)).context
    assert len(context["logs"]) == count_listed(client, context["logs_url"]) > 1


def read_column(client: Client, model: type[Model], column: str) -> dict[Any, str]:
    """Return the rows of a list with what one column shows of each."""
    changelist = client.get(get_list_url(model)).context["cl"]
    rows = list(changelist.result_list)
    assert rows
    show = getattr(changelist.model_admin, column, None)
    return {row: str(show(row) if show else getattr(row, column)) for row in rows}


def read_number(html: str) -> int:
    """Return the first number that a column shows."""
    found = NUMBER.search(strip_tags(html))
    assert found is not None, html
    return int(found[0].replace(",", ""))


def count_table_rows(client: Client, row: Model) -> int:
    """Count the rows of the table on a page."""
    (table,) = client.get(get_page_url(row)).context["tables"]
    return len(table["rows"])


def test_each_count_of_the_navigation_is_that_of_what_needs_attention(client: Client) -> None:
    schedule = Schedule.objects.filter(enabled=True)[:1]
    Schedule.objects.filter(pk__in=schedule).update(next_fire_at=timezone.now() - timedelta(minutes=10))
    page = client.get(f"{get_screen_path('overview')}?window=7d").content.decode()
    counted = dict(re.findall(r'data-live="count-(\w+)">(?:([\d,]+)[^<]*)?</span>', page))
    jobs = get_list_url(Job)
    lists = {
        "jobs": f"{jobs}?attention=unhandled",
        "limits": f"{get_list_url(ConcurrencyLimit)}?paused=1",
        "targets": f"{jobs}?attention=blocking",
        "workers": f"{get_list_url(Worker)}?present=1",
        "endpoints": f"{get_list_url(WebhookEndpoint)}?enabled=failed",
        "schedules": f"{get_list_url(Schedule)}?overdue=1",
    }
    queued = client.get(get_screen_path("queue")).context["queues"]
    assert int(counted.pop("queue")) == sum(queue["jobs"] for queue in queued) > 0
    assert counted == {name: str(count_listed(client, url)) for name, url in lists.items()}
    assert "0" not in counted.values()


def test_each_number_of_the_alerts_is_that_of_its_list(client: Client) -> None:
    alerts = client.get(get_screen_path("overview")).context["alerts"]
    numbers = {alert.badge: (read_number(alert.message), count_listed(client, alert.url)) for alert in alerts}
    assert {"Blocked", "No worker", "Paused", "Webhook"} <= numbers.keys()
    assert [badge for badge, (number, listed) in numbers.items() if number != listed] == []
