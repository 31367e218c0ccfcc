#!/usr/bin/env python3
"""A remote worker in one file, with the standard library only.

    SCHEDULER_TOKEN=js_… python examples/remote_worker.py --url http://127.0.0.1:8000/api --addon demo --slots 2

It runs the functions in HANDLERS below, or those in HANDLERS of your own file (--handlers my_handlers.py). A handler
gets a Job and returns its result; it raises Skip if there is nothing to do; any other exception is a failure. A long
handler calls `job.check()` regularly, which raises if it should stop. SIGTERM hands running jobs back to the queue.
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
LOST_STATUSES = (404, 409)  # the job or the lease is not, or no longer, this worker's


class Skip(Exception):
    """Raised by a handler that has nothing to do."""


class Stop(Exception):
    """Raised in a handler that should stop: by a stop request, at a shutdown, or because the lease is lost."""


class ProblemResponse(Exception):
    """The API answered with a problem document."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        super().__init__(f"{status} {problem.get('code', '')}: {problem.get('detail', '')}")
        self.status, self.code = status, problem.get("code", "")


class Scheduler:
    """A client of the API. Every call is idempotent, so it is repeated until there is a response."""

    def __init__(self, url: str, token: str, retry_sec: float = 60.0) -> None:
        self.url, self.retry_sec = url.rstrip("/"), retry_sec
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def call(self, method: str, path: str, body: Any = None) -> Any:
        deadline, pause = time.monotonic() + self.retry_sec, 0.1
        while True:
            try:
                return self.call_once(method, path, body)
            except ProblemResponse as refusal:
                if refusal.status != 429 and refusal.status < 500:
                    raise
                error: Exception = refusal
            except OSError as failure:  # no connection, no response in time, or an incomplete one
                error = failure
            if time.monotonic() + pause > deadline:
                raise error
            time.sleep(pause)
            pause = min(pause * 2, 5.0)

    def call_once(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, self.headers, method=method)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SEC) as response:  # noqa: S310
                return json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                raise ProblemResponse(error.code, _parse_problem(error.read())) from None


def _parse_problem(content: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(content))
    except ValueError:
        return {"detail": content[:200].decode(errors="replace")}


class Job:
    """The argument of a handler. Progress, checkpoint and log lines are sent with the next heartbeat."""

    def __init__(
        self, scheduler: Scheduler, job_type: str, start: dict[str, Any], sent: float, stopping: threading.Event
    ) -> None:
        self.id, self.type = start["job_id"], job_type
        self.payload, self.checkpoint = start["payload"], start["checkpoint"]
        self.attempt, self.fence = start["attempt"], start["fence"]
        self.tokens_used = start["tokens_used"]
        self.stop_mode = ""  # CANCEL or PAUSE, after a stop request
        self.lost = False
        self._scheduler, self._start, self._sent, self._stopping = scheduler, start, sent, stopping
        self._report: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._finished = threading.Event()

    def progress(self, fraction: float, message: str = "") -> None:
        self._update_report(progress=fraction, message=message)

    def save(self, checkpoint: Any) -> None:
        """Store data from which the job continues after a pause or a retry, as `job.checkpoint`."""
        self._update_report(checkpoint=checkpoint)

    def use_tokens(self, n: int) -> None:
        self.tokens_used += n
        self._update_report(tokens_used=self.tokens_used)

    def log(self, message: str, level: str = "INFO") -> None:
        with self._lock:
            self._report.setdefault("logs", []).append({"level": level, "message": message})

    def check(self) -> None:
        if self.lost or self.stop_mode or self._stopping.is_set():
            raise Stop

    def _update_report(self, **fields: Any) -> None:
        with self._lock:
            self._report |= fields

    def keep_lease(self) -> None:
        """Send heartbeats, in a thread of its own, so that a busy handler keeps its lease."""
        deadline = self._sent + self._start["lease_sec"]
        while not self._finished.wait(self._start["heartbeat_sec"]):
            sent = time.monotonic()
            if self.send_heartbeat():
                deadline = sent + self._start["lease_sec"]
            elif self.lost or time.monotonic() > deadline:
                self.lost = True  # the lease may have expired: stop before another worker starts the job
                return

    def send_heartbeat(self) -> bool:
        """Extend the lease and send the report. Return whether it succeeded."""
        with self._lock:
            report, self._report = self._report, {}
        try:
            lease = self._scheduler.call_once("POST", f"{LEASE}/{self._start['lease_id']}/heartbeat", report)
        except (ProblemResponse, OSError) as error:
            self.lost = isinstance(error, ProblemResponse) and error.status in LOST_STATUSES
            with self._lock:
                logs = report.get("logs", []) + self._report.get("logs", [])
                self._report = {**report, **self._report, "logs": logs}
            return False
        self.stop_mode = lease["cancel_mode"] if lease["cancel_requested"] else ""
        return True

    def finish(self, state: str, **fields: Any) -> None:
        body = {"lease_id": self._start["lease_id"], "state": state, **fields}
        self._scheduler.call("POST", f"{QUEUE}/jobs/{self.id}/complete", body)

    def run(self, handler: Callable[[Job], Any]) -> None:
        heartbeats = threading.Thread(target=self.keep_lease, daemon=True)
        heartbeats.start()
        try:
            outcome = _call_handler(handler, self)
        finally:
            self._finished.set()
            heartbeats.join()
        if self.lost:
            log(f"job {self.id}: the lease is lost, nothing is reported")
        elif outcome is None:
            self._report_stop()
        else:
            if self._report:
                self.send_heartbeat()
            self.finish(**outcome)
            log(f"job {self.id}: {outcome['state']}")

    def _report_stop(self) -> None:
        self.send_heartbeat()
        if self.lost:
            log(f"job {self.id}: the lease is lost, nothing is reported")
            return
        if self.stop_mode:
            self.finish({"CANCEL": "CANCELED", "PAUSE": "PAUSED"}[self.stop_mode])
        else:
            self._scheduler.call("POST", f"{LEASE}/{self._start['lease_id']}/release", {"hand_back": True})
        log(f"job {self.id}: stopped ({self.stop_mode or 'handed back'})")


def _call_handler(handler: Callable[[Job], Any], job: Job) -> dict[str, Any] | None:
    """Return the outcome to report; None if the handler was stopped."""
    try:
        result = handler(job)
        return {"state": "DONE", "artifacts": {} if result is None else {"result": result}}
    except Stop:
        return None
    except Skip as reason:
        return {"state": "SKIPPED", "error": str(reason)}
    except Exception as error:  # noqa: BLE001 — any exception of a handler is a failure
        # The first line becomes the reason of the job.
        return {"state": "FAILED", "error": f"{type(error).__name__}: {error}\n\n{traceback.format_exc()}"}


class Worker:
    def __init__(
        self, scheduler: Scheduler, addon: str, worker_id: str, handlers: dict[str, Any], poll_sec: float
    ) -> None:
        self.scheduler, self.handlers, self.poll_sec = scheduler, handlers, poll_sec
        self.worker_id = worker_id
        self.stopping = threading.Event()
        self._poll_path = f"{QUEUE}/dispatchable?{urllib.parse.urlencode({'addon_id': addon, 'limit': 1})}"
        self._poll_lock = threading.Lock()  # so that two slots do not start the same offer

    def run(self, slots: int) -> None:
        threads = [threading.Thread(target=self._run_slot, args=(number,)) for number in range(slots)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _run_slot(self, number: int) -> None:
        while not self.stopping.is_set():
            try:
                job = self._start_next(number)
                if job is not None:
                    job.run(self.handlers.get(job.type, reject_unknown_type))
            except (ProblemResponse, OSError) as error:
                log(f"slot {number}: {error}")
                job = None
            if job is None:
                self.stopping.wait(self.poll_sec)

    def _start_next(self, slot: int) -> Job | None:
        with self._poll_lock:
            for item in self.scheduler.call_once("GET", self._poll_path)["items"]:
                identity = {"worker_id": self.worker_id, "slot": slot, "pid": os.getpid(), "host": socket.gethostname()}
                sent = time.monotonic()
                try:
                    start = self.scheduler.call("POST", f"{QUEUE}/jobs/{item['job_id']}/start", identity)
                except ProblemResponse as refusal:
                    if refusal.status not in LOST_STATUSES or refusal.code == "slot_busy":
                        raise
                    continue  # another worker has started it
                return Job(self.scheduler, item["job_type"], start, sent, self.stopping)
        return None


def count(job: Job) -> int:
    """Count to `payload["upto"]`; a job that was stopped continues from its checkpoint."""
    done, upto = job.checkpoint or 0, job.payload.get("upto", 10)
    while done < upto:
        job.check()
        time.sleep(job.payload.get("pace", 0.1))
        done += 1
        job.save(done)
        job.progress(done / upto, f"{done} of {upto}")
    return int(done)


def reject_unknown_type(job: Job) -> None:
    raise RuntimeError(f"this worker has no handler for {job.type}")


HANDLERS: dict[str, Callable[[Job], Any]] = {"demo.count": count}


def log(message: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {message}\n")
    sys.stderr.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000/api")
    parser.add_argument("--addon", required=True)
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--worker-id", default=f"{socket.gethostname()}-{os.getpid()}")
    parser.add_argument("--handlers", help="a Python file with a dict HANDLERS")
    parser.add_argument("--poll-sec", type=float, default=1.0)
    options = parser.parse_args()
    token = os.environ.get("SCHEDULER_TOKEN") or parser.error("SCHEDULER_TOKEN is not set")
    handlers = runpy.run_path(options.handlers)["HANDLERS"] if options.handlers else HANDLERS
    worker = Worker(Scheduler(options.url, token), options.addon, options.worker_id, handlers, options.poll_sec)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.stopping.set())
    log(f"worker {options.worker_id} started: {options.slots} slots")
    worker.run(options.slots)
    log(f"worker {options.worker_id} stopped")


if __name__ == "__main__":
    main()
