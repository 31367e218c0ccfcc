"""The hostile client of the suite `neighbours`: a process that does all that its token allows, all at once.

`python -m tests.chaos.hostile_client URL TOKEN MEMBERS RESOURCES` goes on until its standard input ends, then prints
how often it got which answer.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

REQUEST_SEC = 120
BUSY, AGAIN_SEC = 429, 0.2
ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")
NEVER = "2099-01-01T00:00:00Z"
LARGE = {"lane": "x" * 800_000}
NESTED = {"lists": [[]] * 98_000}  # counts as much, and takes more memory than any other document
LARGE_ROUNDS, LISTED = 30, 100
ADDON, QUEUE = "hostile", "/system/scheduler/queue/jobs"
RARE_CRONS = ("0 */23 29 2 */7", "*/59 0 29 2 */7", "0 0 29 2 1", "59 23 31 12 7")
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
        return self._send("GET", f"{path}?{urlencode(query)}" if query else path, None)[1]

    def post(self, path: str, body: Any) -> Any:
        return self._send("POST", path, json.dumps(body).encode())[1]

    def post_large(self, path: str, body: Any) -> Any:
        """Send a large request again and again while others of this token are in progress."""
        content = json.dumps(body).encode()
        while (answer := self._send("POST", path, content))[0] == BUSY:
            time.sleep(AGAIN_SEC)
        return answer[1]

    def _send(self, method: str, path: str, body: bytes | None) -> tuple[int, Any]:
        """Return the status (0: no answer) and the document, None of a refusal."""
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
        self.answers[f"{method} {ID.sub('{id}', path.partition('?')[0])}", status] += 1
        return status, document


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
        group = self.client.post_large("/job-groups", {"mode": "sequential", "jobs": members})
        for verb in ("cancel", "retry", "cancel") if group else ():
            yield self.client.post_large(f"/job-groups/{group['id']}/{verb}", {})

    def submit_large_params(self) -> Iterator[object]:
        intent = {"addon_id": ADDON, "job_type": "hostile.index", "payload": NESTED}
        for _ in range(LARGE_ROUNDS):
            job = self.client.post("/jobs", {"job_type": "sample.work", "params": LARGE, "not_before": NEVER})
            yield self.client.post(f"/jobs/{job['id']}/cancel", {}) if job else None
            yield self.client.post("/jobs", {"job_type": "sample.work", "params": LARGE, "not_before": NEVER})
            yield self.client.post(f"{QUEUE}/submit", intent)
        threading.Event().wait()  # enough of them are there

    def list_large_params(self) -> Iterator[object]:
        yield self.client.get("/jobs", job_type="sample.work", limit=LISTED)
        yield self.client.get(QUEUE, addon_id=ADDON, limit=LISTED)

    def submit_resources(self) -> Iterator[object]:
        items = [{"job_type": "sample.noop", "resource": f"resource-{number}"} for number in range(self.resources)]
        yield self.client.post_large("/jobs/bulk", {"jobs": items})

    def preview_crons(self) -> Iterator[object]:
        for cron in RARE_CRONS:
            yield self.client.get("/schedules/preview", cron=cron, timezone="Europe/Dublin", count=100)


def main(url: str, token: str, members: str, resources: str) -> None:
    os.nice(19)  # the processors of an attacker are not the server's
    client = Client(url, token)
    Attack(client, members=int(members), resources=int(resources)).start()
    sys.stdin.read()
    print(json.dumps([[what, status, count] for (what, status), count in client.answers.copy().items()]), flush=True)
    os._exit(0)  # requests are under way


if __name__ == "__main__":
    main(*sys.argv[1:])
