"""The hostile client of the suite `neighbours`: a process that does all that its token allows, all at once.

`python -m tests.chaos.hostile_client URL TOKEN MEMBERS RESOURCES` goes on until its standard input ends, then prints
how often it got which answer.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any
from urllib.parse import urlencode

REQUEST_SEC = 120
IDLE_SEC = 1.0
NEVER = "2099-01-01T00:00:00Z"
LARGE = "x" * 800_000
LARGE_JOBS, LISTED = 60, 50
RARE_CRONS = ("0 0 29 2 *", "0 0 29 2 1", "59 23 31 12 7", "0 0 30 2 *")
DIRECT_CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("sample.sleepy", {"seconds": 30}),
    ("sample.work", {"seconds": 30}),
    ("system.http", {}),
)


@dataclass
class Client:
    """Sends requests with one token, and counts the answers by what was asked; 0: none came."""

    url: str
    token: str
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)

    def get(self, path: str, **query: Any) -> Any:
        return self._send("GET", f"{path}?{urlencode(query)}" if query else path, None)

    def post(self, path: str, body: Any) -> Any:
        return self._send("POST", path, json.dumps(body).encode())

    def _send(self, method: str, path: str, body: bytes | None) -> Any:
        """Return the document, or None for a refusal."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", body, headers, method=method)
        status, document = 0, None
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_SEC) as response:
                status, content = response.status, response.read()
                document = json.loads(content) if content else {}
        except urllib.error.HTTPError as refusal:
            status = refusal.code
        except OSError:
            status = 0
        finally:
            self.answers[f"{method} {path.partition('?')[0]}"[:30], status] += 1
        return document


class Attack:
    """All attacks at once, each in threads that begin again when they are through."""

    def __init__(self, client: Client, *, members: int, resources: int) -> None:
        self.client, self.members, self.resources = client, members, resources
        attacks: list[Callable[[], Iterator[object]]] = [
            *[self.call_directly] * 8,
            *[self.cancel_and_retry_groups] * 2,
            self.submit_large_params,
            *[self.list_large_params] * 2,
            self.submit_resources,
            *[self.preview_crons] * 2,
        ]
        self._threads = [threading.Thread(target=self._repeat, args=(attack,), daemon=True) for attack in attacks]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _repeat(self, attack: Callable[[], Iterator[object]]) -> None:
        while True:
            for _ in attack():
                pass

    def call_directly(self) -> Iterator[object]:
        for job_type, params in DIRECT_CALLS:
            yield self.client.post(f"/direct/{job_type}", {"params": params})

    def cancel_and_retry_groups(self) -> Iterator[object]:
        members = [{"job_type": "sample.noop", "hold": True}] * self.members
        group = self.client.post("/job-groups", {"mode": "sequential", "jobs": members})
        for verb in ("cancel", "retry", "cancel") if group else ():
            yield self.client.post(f"/job-groups/{group['id']}/{verb}", {})

    def submit_large_params(self) -> Iterator[object]:
        for _ in range(LARGE_JOBS):
            yield self.client.post("/jobs", {"job_type": "sample.work", "params": {"lane": LARGE}, "not_before": NEVER})
        threading.Event().wait()  # enough of them are there

    def list_large_params(self) -> Iterator[object]:
        yield self.client.get("/jobs", limit=LISTED)

    def submit_resources(self) -> Iterator[object]:
        items = [{"job_type": "sample.noop", "resource": f"resource-{number}"} for number in range(self.resources)]
        yield self.client.post("/jobs/bulk", {"jobs": items})

    def preview_crons(self) -> Iterator[object]:
        for cron, count in zip(RARE_CRONS, cycle((100, 1000)), strict=False):
            yield self.client.get("/schedules/preview", cron=cron, timezone="Europe/Berlin", count=count)


def main(url: str, token: str, members: str, resources: str) -> None:
    os.nice(19)  # the processors of an attacker are not the server's
    client = Client(url, token)
    Attack(client, members=int(members), resources=int(resources)).start()
    sys.stdin.read()
    print(json.dumps([[what, status, count] for (what, status), count in client.answers.copy().items()]), flush=True)
    os._exit(0)  # requests are under way


if __name__ == "__main__":
    main(*sys.argv[1:])
