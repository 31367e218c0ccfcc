"""URLs of the admin pages, and requests to them."""

from __future__ import annotations

import re
from html import unescape
from typing import Any
from urllib.parse import urljoin, urlsplit

from django.contrib.messages import get_messages
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse


def get_list_url(model: type[Model]) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")


def get_page_url(row: Model) -> str:
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])


def crawl(client: Client) -> dict[str, str]:
    """Return every page of the console that links lead to, each once whatever its query."""
    pages = dict[str, str]()
    waiting = [reverse("admin:index")]
    while waiting:
        path = waiting.pop()
        if is_new_page(path, pages):
            pages[path] = client.get(path, follow=True).content.decode()
            waiting += [urlsplit(link).path for link in find_links(path, pages[path])]
    return pages


def crawl_queries(client: Client, most_pages: int) -> dict[str, str]:
    """Return up to so many pages: those of `crawl`, then those with the queries that links have."""
    pages = crawl(client)
    waiting = [link for path, page in pages.items() for link in find_links(path, page)]
    while waiting and len(pages) < most_pages:
        url = waiting.pop()
        if is_new_page(url, pages):
            pages[url] = client.get(url, follow=True).content.decode()
            waiting += find_links(url, pages[url])
    return pages


def is_new_page(url: str, pages: dict[str, str]) -> bool:
    return url not in pages and url.startswith("/admin/") and "logout" not in url


def find_links(url: str, page: str) -> list[str]:
    return [urljoin(url, unescape(link)) for link in re.findall(r'href="([^"#]+)"', page)]


def run_action(client: Client, action: str, rows: Any, **data: Any) -> Any:
    """Select rows in their list, run an action on them and confirm it."""
    rows = list(rows)
    post = {"confirmed": "1", "action": action, "_selected_action": [str(row.pk) for row in rows], "index": 0, **data}
    return client.post(get_list_url(type(rows[0])), post)


def read_messages(response: Any) -> str:
    return " ".join(str(message) for message in get_messages(response.wsgi_request))


def list_buttons(client: Client, row: Model) -> list[str]:
    return [button.name for button, _url in client.get(get_page_url(row)).context["buttons"]]


def count_queries(client: Client, url: str) -> int:
    client.get(url)  # content types are read once per process
    with CaptureQueriesContext(connection) as captured:
        assert client.get(url).status_code == 200
    return len(captured)
