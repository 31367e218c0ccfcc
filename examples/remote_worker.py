#!/usr/bin/env python3
"""A remote worker in one file and nothing but the standard library.

    SCHEDULER_TOKEN=js_… python examples/remote_worker.py --url http://127.0.0.1:8000/api --addon demo --slots 2

It runs the functions in HANDLERS below, or those of the HANDLERS in a file of yours (--handlers my_handlers.py). A
handler gets a Job and returns its result; it raises Skip if there is nothing to do, and anything else if it failed. One
that takes long calls `job.check()` now and then, which raises when it should stop. SIGTERM hands running jobs back.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
import traceback
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

QUEUE, LEASE = "/system/scheduler/queue", "/system/scheduler/lease"
TIMEOUT_SEC = 10.0
GONE = (404, 409)  # not ours, or not any more


class Skip(Exception):
    """Nothing to do."""


class Stop(Exception):
    """The job should stop: somebody asked, the worker is leaving, or the lease is lost."""


class Refused(Exception):
    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        super().__init__(f"{status} {problem.get('code', '')}: {problem.get('detail', '')}")
        self.status, self.code = status, problem.get("code", "")


class Scheduler:
    """The API. Every call may be repeated, so one whose answer got lost is."""

    def __init__(self, url: str, token: str, patience_sec: float = 60.0) -> None:
        self.url, self.patience_sec = url.rstrip("/"), patience_sec
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def call(self, method: str, path: str, body: Any = None) -> Any:
        give_up, pause = time.monotonic() + self.patience_sec, 0.1
        while True:
            try:
                return self.once(method, path, body)
            except Refused as refusal:
                if refusal.status != 429 and refusal.status < 500:
                    raise
                error: Exception = refusal
            except OSError as failure:  # no connection, no answer in time, or half of one
                error = failure
            if time.monotonic() + pause > give_up:
                raise error
            time.sleep(pause)
            pause = min(pause * 2, 5.0)

    def once(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, self.headers, method=method)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SEC) as answer:  # noqa: S310
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(error.code, _problem(error.read())) from None


def _problem(content: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(content))
    except ValueError:
        return {"detail": content[:200].decode(errors="replace")}


class Job:
    """What a handler gets. What it says is sent with the next heartbeat."""

    def __init__(
        self, scheduler: Scheduler, job_type: str, start: dict[str, Any], sent: float, leaving: threading.Event
    ) -> None:
        self.id, self.type = start["job_id"], job_type
        self.payload, self.checkpoint = start["payload"], start["checkpoint"]
        self.attempt, self.fence = start["attempt"], start["fence"]
        self.tokens_used = start["tokens_used"]
        self.stop_mode = ""  # CANCEL or PAUSE, once somebody asked
        self.lost = False
        self._scheduler, self._start, self._sent, self._leaving = scheduler, start, sent, leaving
        self._news: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()

    def progress(self, share: float, message: str = "") -> None:
        self._say(progress=share, message=message)

    def save(self, checkpoint: Any) -> None:
        """What whoever goes on after us needs; it gets it as `job.checkpoint`."""
        self._say(checkpoint=checkpoint)

    def use_tokens(self, n: int) -> None:
        self.tokens_used += n
        self._say(tokens_used=self.tokens_used)

    def log(self, message: str, level: str = "INFO") -> None:
        with self._lock:
            self._news.setdefault("logs", []).append({"level": level, "message": message})

    def check(self) -> None:
        if self.lost or self.stop_mode or self._leaving.is_set():
            raise Stop

    def _say(self, **news: Any) -> None:
        with self._lock:
            self._news |= news

    # The lease: beats from a thread of its own, so that a busy handler keeps it.

    def keep(self) -> None:
        deadline = self._sent + self._start["lease_sec"]
        while not self._over.wait(self._start["heartbeat_sec"]):
            sent = time.monotonic()
            if self.beat():
                deadline = sent + self._start["lease_sec"]
            elif self.lost or time.monotonic() > deadline:
                self.lost = True  # nobody promises that it is still ours: stop before somebody else starts
                return

    def beat(self) -> bool:
        with self._lock:
            news, self._news = self._news, {}
        try:
            told = self._scheduler.once("POST", f"{LEASE}/{self._start['lease_id']}/heartbeat", news)
        except (Refused, OSError) as error:
            self.lost = isinstance(error, Refused) and error.status in GONE
            with self._lock:
                self._news = {**news, **self._news, "logs": news.get("logs", []) + self._news.get("logs", [])}
            return False
        self.stop_mode = told["cancel_mode"] if told["cancel_requested"] else ""
        return True

    def end(self, state: str, **said: Any) -> None:
        body = {"lease_id": self._start["lease_id"], "state": state, **said}
        self._scheduler.call("POST", f"{QUEUE}/jobs/{self.id}/complete", body)

    def run(self, handler: Callable[[Job], Any]) -> None:
        keeper = threading.Thread(target=self.keep, daemon=True)
        keeper.start()
        try:
            said = _outcome(handler, self)
        finally:
            self._over.set()
            keeper.join()
        if self.lost:
            say(f"job {self.id}: the lease is lost, nothing is reported")
        elif said is None:
            self._stopped()
        else:
            if self._news:
                self.beat()  # the last words
            self.end(**said)
            say(f"job {self.id}: {said['state']}")

    def _stopped(self) -> None:
        self.beat()
        if self.lost:
            say(f"job {self.id}: the lease is lost, nothing is reported")
            return
        if self.stop_mode:
            self.end({"CANCEL": "CANCELED", "PAUSE": "PAUSED"}[self.stop_mode])
        else:
            self._scheduler.call("POST", f"{LEASE}/{self._start['lease_id']}/release", {"hand_back": True})
        say(f"job {self.id}: stopped ({self.stop_mode or 'handed back'})")


def _outcome(handler: Callable[[Job], Any], job: Job) -> dict[str, Any] | None:
    """What to report; None if the handler stopped because it should."""
    try:
        result = handler(job)
        return {"state": "DONE", "artifacts": {} if result is None else {"result": result}}
    except Stop:
        return None
    except Skip as reason:
        return {"state": "SKIPPED", "error": str(reason)}
    except Exception:  # noqa: BLE001 — whatever a handler raises is its outcome
        return {"state": "FAILED", "error": traceback.format_exc()}


class Worker:
    def __init__(
        self, scheduler: Scheduler, addon: str, worker_id: str, handlers: dict[str, Any], poll_sec: float
    ) -> None:
        self.scheduler, self.handlers, self.poll_sec = scheduler, handlers, poll_sec
        self.worker_id = worker_id
        self.leaving = threading.Event()
        self._question = f"{QUEUE}/dispatchable?{urllib.parse.urlencode({'addon_id': addon, 'limit': 1})}"
        self._turn = threading.Lock()  # our own slots do not compete for one offer

    def work(self, slots: int) -> None:
        threads = [threading.Thread(target=self._slot, args=(number,)) for number in range(slots)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _slot(self, number: int) -> None:
        while not self.leaving.is_set():
            try:
                job = self._take(number)
                if job is not None:
                    job.run(self.handlers.get(job.type, unknown))
            except (Refused, OSError) as error:
                say(f"slot {number}: {error}")
                job = None
            if job is None:
                self.leaving.wait(self.poll_sec)

    def _take(self, slot: int) -> Job | None:
        with self._turn:
            for item in self.scheduler.once("GET", self._question)["items"]:
                who = {"worker_id": self.worker_id, "slot": slot, "pid": os.getpid(), "host": socket.gethostname()}
                sent = time.monotonic()
                try:
                    start = self.scheduler.call("POST", f"{QUEUE}/jobs/{item['job_id']}/start", who)
                except Refused as refusal:
                    if refusal.status not in GONE or refusal.code == "slot_busy":
                        raise
                    continue  # another worker was faster
                return Job(self.scheduler, item["job_type"], start, sent, self.leaving)
        return None


def count(job: Job) -> int:
    """Counts to `payload["upto"]`, and goes on where it was stopped."""
    done, upto = job.checkpoint or 0, job.payload.get("upto", 10)
    while done < upto:
        job.check()
        time.sleep(job.payload.get("pace", 0.1))
        done += 1
        job.save(done)
        job.progress(done / upto, f"{done} of {upto}")
    return int(done)


def unknown(job: Job) -> None:
    raise RuntimeError(f"this worker has no handler for {job.type}")


HANDLERS: dict[str, Callable[[Job], Any]] = {"demo.count": count}


def say(message: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {message}\n")
    sys.stderr.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000/api")
    parser.add_argument("--addon", required=True)
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--worker-id", default=f"{socket.gethostname()}-{os.getpid()}")
    parser.add_argument("--handlers", help="a Python file with a dict HANDLERS of its own")
    parser.add_argument("--poll-sec", type=float, default=1.0)
    told = parser.parse_args()
    token = os.environ.get("SCHEDULER_TOKEN") or parser.error("SCHEDULER_TOKEN is not set")
    handlers = runpy.run_path(told.handlers)["HANDLERS"] if told.handlers else HANDLERS
    worker = Worker(Scheduler(told.url, token), told.addon, told.worker_id, handlers, told.poll_sec)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.leaving.set())
    say(f"worker {told.worker_id} started: {told.slots} slots")
    worker.work(told.slots)
    say("left")


if __name__ == "__main__":
    main()
