"""Every number of the console is that of the list to which it leads, with the data of the demo."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

import pytest
from django.contrib.auth.models import User
from django.test import Client

from jobs import demo
from jobs.actors import Actor, ActorKind
from jobs.models import ConcurrencyLimit, Job, JobGroup, Worker
from jobs.stats import live_counts
from tests.browser.paths import get_screen_path
from tests.factories import WorkerFactory
from tests.support.admin_pages import get_list_url
from tests.support.admin_users import log_in
from webhooks.models import WebhookEndpoint

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


def test_each_count_of_tabs_queues_and_groups_is_that_of_what_they_show(client: Client) -> None:
    for search in ("", "type:demo.mail"):
        counts = client.get(get_screen_path("counts"), {"q": search}).json()
        assert len(counts) > 8
        for tab, count in counts.items():
            listed = client.get(get_list_url(Job), {"q": search, "status": tab}).context["cl"].result_count
            assert str(count).replace(",", "") == str(listed), (tab, search)
    queues = client.get(get_screen_path("queue")).context["queues"]
    assert [client.get(queue["url"]).context["total"] for queue in queues] == [queue["jobs"] for queue in queues]
    groups = read_links(client.get(get_list_url(JobGroup)).content.decode())
    sizes = {link.url: int(found[1]) for link in groups if (found := re.search(r"of (\d+) finished", link.text))}
    assert sizes == {url: count_listed(client, url) for url in sizes}
    assert len(sizes) == 3


def test_each_count_of_the_navigation_is_that_of_what_needs_attention(client: Client) -> None:
    page = client.get(f"{get_screen_path('overview')}?window=7d").content.decode()
    counted = dict(re.findall(r'data-live="count-(\w+)">(?:([\d,]+)[^<]*)?</span>', page))
    jobs = get_list_url(Job)
    lists = {
        "jobs": next(link.url for link in read_links(page) if link.text.endswith("unhandled")),
        "limits": f"{get_list_url(ConcurrencyLimit)}?paused=1",
        "targets": f"{jobs}?attention=blocking",
        "workers": f"{get_list_url(Worker)}?present=1",
        "endpoints": f"{get_list_url(WebhookEndpoint)}?enabled=0",
    }
    queued = client.get(get_screen_path("queue")).context["queues"]
    assert int(counted.pop("queue")) == sum(queue["jobs"] for queue in queued) > 0
    assert counted.pop("schedules") == ""  # none is late
    assert counted == {name: str(count_listed(client, url)) for name, url in lists.items()}
