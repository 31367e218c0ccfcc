import json
import re
from collections import Counter
from html import unescape
from urllib.parse import urldefrag, urljoin, urlsplit

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand
from django.test import Client

LINK = re.compile(r'(?:href|action)="([^"]*)"')
INPUT = re.compile(r"<input\b[^>]*>")
VALUE = re.compile(r'\bvalue="([^"]*)"')
SEPARATED = re.compile(r"\d{1,3}(\.\d{3})+")
NAMES = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d+")
ALIKE = 3


class Command(BaseCommand):
    """Follows links from some pages as a superuser, a few of each kind. Prints how many pages it saw, those that did
    not open, links and inputs with a separated number, and the separated numbers that people are shown."""

    def add_arguments(self, parser):
        parser.add_argument("home")
        parser.add_argument("paths", nargs="*")

    def handle(self, home, paths, **options):
        self.client = Client()
        self.client.force_login(get_user_model().objects.filter(is_superuser=True).first())
        self.seen, self.kinds = {}, Counter()
        self.spoiled, self.shown = set(), set()
        waiting = [home, *paths]
        while waiting:
            url = waiting.pop(0)
            if url not in self.seen:
                waiting += [found for found in self._visit(url) if found.startswith(home) and self._is_news(found)]
        broken = {url: status for url, status in self.seen.items() if status >= 400 and status != 405}  # 405: a verb
        fields = {
            "pages": len(self.seen),
            "broken": broken,
            "spoiled": sorted(self.spoiled),
            "shown": sorted(self.shown),
        }
        self.stdout.write(json.dumps(fields))

    def _visit(self, url):
        answer = self.client.get(url)
        self.seen[url] = answer.status_code
        if answer.status_code != 200 or "text/html" not in answer.headers["Content-Type"]:
            return []
        page = answer.content.decode()
        links = [unescape(link) for link in LINK.findall(page)]
        values = [unescape(value) for item in INPUT.findall(page) for value in VALUE.findall(item)]
        self.spoiled |= {f"{url} {link}" for link in links if SEPARATED.search(urlsplit(link).path)}
        self.spoiled |= {f"{url} {value}" for value in values if SEPARATED.fullmatch(value)}
        self.shown |= {found[0] for found in re.finditer(rf"(?<![\d.]){SEPARATED.pattern}(?![\d.])", page)}
        return [urldefrag(urljoin(url, link)).url for link in links]

    def _is_news(self, url):
        path, asks, _ = url.partition("?")
        kind = NAMES.sub("*", path) + asks
        self.kinds[kind] += 1
        return self.kinds[kind] <= ALIKE and "logout" not in url
