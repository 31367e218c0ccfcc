"""Senders killed with -9 every few seconds, before a receiver of every bad habit: each event arrives, none is made up.

Then one sender alone, before a receiver that answers with gigabytes and hangs: its memory must not grow.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction
from django.db.models import Max
from django.test import override_settings

from jobs.models import Job
from jobs.services import jobs as jobs
from jobs.states import TERMINAL
from tests.chaos.idle import resident_mib
from tests.chaos.report import SuiteReport
from tests.support import webhook_receiver as behaviours
from tests.support.webhook_receiver import Handler, ReceivedRequest, Receiver, run_receiver
from tests.support.worker_processes import FAST_SETTINGS, START_SEC, Fleet, WorkerProcess, wait_until
from webhooks import services
from webhooks.models import WebhookDelivery, WebhookMessage

KILL_SEC, SENDERS, TENANTS = 3.0, 2, 8
TAKEN_BACK = 0.1  # of all submissions
GROWTH_MIB = 5.0
TYPE, PARAMS = "sample.add", {"a": 1, "b": 2}
SETTINGS: dict[str, Any] = {
    **FAST_SETTINGS,
    "LEASE_SEC": 20,
    "HEARTBEAT_SEC": 0.5,
    "WEBHOOK_ALLOW_PRIVATE": True,
    "WEBHOOK_TIMEOUT_SEC": 1,
    "WEBHOOK_BACKOFF_SEC": 0.02,  # an unlucky delivery fails a dozen times, and each doubles its pause
    "WEBHOOK_MAX_RETRIES": 1000,
    "POLL_SEC": 0.2,
}
NOTHING_TO_DO = "--types=sample.rare"


@override_settings(JOBSCHEDULER={"WEBHOOK_ALLOW_PRIVATE": True})
def run(fleet: Fleet, chance: random.Random, *, events: int, floods: int) -> SuiteReport:
    verdict = SuiteReport()
    with run_receiver() as trap, wild(chance, trap) as crowd:
        secrets = _endpoints(crowd.receiver.url)
        worker = fleet.start("--concurrency=8", "--no-housekeeping", settings=SETTINGS)
        storm = Storm(fleet)
        storm.start()
        committed, taken_back = _submit(chance, events // 2)
        _await_delivery(verdict, fleet, committed, patience=120 + events / 10)
        storm.end()
        verdict.note(events=2 * len(committed), requests=len(crowd.receiver.seen), kills=storm.kills)
        crowd.judge(verdict, secrets, committed, taken_back)
        verdict.require(trap.connections == 0, f"{trap.connections} redirects were followed")
        worker.kill()
    _judge_memory(verdict, fleet, floods)
    return verdict


# ---------------------------------------------------------------------- the receiver


@dataclass
class Crowd:
    receiver: Receiver
    answered: set[str] = field(default_factory=set)  # ids that got a proper 200

    def judge(self, verdict: SuiteReport, secrets: dict[str, str], committed: set[str], taken_back: set[str]) -> None:
        seen, bodies = list(self.receiver.seen), dict[str, bytes]()
        delivered: set[tuple[str, str]] = set()
        for request in seen:
            verdict.require(
                bodies.setdefault(request.id, request.body) == request.body, f"{request.id} changed its body"
            )
            document = request.document
            job = document["data"]
            delivered.add((job["id"], document["type"]))
            verdict.require(_verifies(request, secrets[job["tenant"]]), f"{request.id} does not verify")
            verdict.require(job["id"] not in taken_back, f"{job['id']} was taken back and told")
        missed = {(job, event) for job in committed for event in ("job.queued", "job.completed")} - delivered
        verdict.require(not missed, f"{len(missed)} committed events never arrived")
        acknowledged = {str(pk) for pk in WebhookDelivery.objects.values_list("pk", flat=True)} <= self.answered
        verdict.require(acknowledged, "a delivery was never acknowledged")


@contextmanager
def wild(chance: random.Random, trap: Receiver) -> Iterator[Crowd]:
    """Answers well more often than not; else as badly as there are ways to."""
    bad = [
        *(
            behaviours.respond(500),
            behaviours.respond(302, Location=trap.url),
            behaviours.respond(307, Location=trap.url),
        ),
        *(
            behaviours.close_early,
            behaviours.reset,
            behaviours.send_garbage,
            behaviours.flood_head,
            behaviours.flood_chunks,
        ),
        *(behaviours.hang, behaviours.drip_head, behaviours.drip_body),
    ]
    lock = threading.Lock()

    def answer(handler: Handler) -> None:
        with lock:
            behaviour = chance.choice(bad) if chance.random() < 0.35 else behaviours.respond(200)
            if behaviour not in bad or behaviour is behaviours.flood_chunks:  # that one floods us, but says 200 first
                crowd.answered.add(handler.headers["webhook-id"])
        behaviour(handler)

    with run_receiver(answer) as made:
        crowd = Crowd(made)
        yield crowd


def _verifies(seen: ReceivedRequest, secret: str) -> bool:
    """Whenever we look: the clock of the check is not what is judged here."""
    from datetime import UTC, datetime

    from standardwebhooks import Webhook

    at = datetime.fromtimestamp(int(seen.headers["webhook-timestamp"]), tz=UTC)
    return Webhook(secret).sign(seen.id, at, seen.body.decode()) in seen.headers["webhook-signature"].split(" ")


# ---------------------------------------------------------------------- the storm


class Storm(threading.Thread):
    """Kills one sender after the other, KILL_SEC seconds after it has started, and starts another in its place."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(name="storm", daemon=True)
        self.fleet = fleet
        self.kills = 0
        self.crew: list[WorkerProcess] = [self._sender() for _ in range(SENDERS)]
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            victim = self.crew[0]
            wait_until(lambda: " started: " in victim.output or self._over.is_set(), START_SEC, "a sender starts")  # noqa: B023
            if not self._over.wait(KILL_SEC):
                self.crew.pop(0).kill()
                self.kills += 1
                self.crew.append(self._sender())

    def end(self) -> None:
        self._over.set()
        self.join()
        for worker in self.crew:
            worker.kill()

    def _sender(self) -> WorkerProcess:
        return self.fleet.start(NOTHING_TO_DO, settings=SETTINGS, wait=False)


def _endpoints(url: str) -> dict[str, str]:
    """One a tenant; the secret of each."""
    return {
        f"tenant-{n}": services.create(url, ["job.queued", "job.completed"], tenant=f"tenant-{n}")[1]
        for n in range(TENANTS)
    }


def _submit(chance: random.Random, number: int) -> tuple[set[str], set[str]]:
    """Some in transactions that fail: the ids that were committed, and those that were taken back."""
    committed: set[str] = set()
    taken_back: set[str] = set()
    while len(committed) < number:
        tenant, size = f"tenant-{chance.randrange(TENANTS)}", chance.randrange(1, 20)
        item = {"job_type": TYPE, "params": PARAMS, "tenant": tenant}
        with transaction.atomic():
            ids = {str(pk) for pk in jobs.enqueue_many([item] * size)}
            if chance.random() < TAKEN_BACK:
                transaction.set_rollback(True)
                taken_back |= ids
            else:
                committed |= ids
    return committed, taken_back


def _await_delivery(verdict: SuiteReport, fleet: Fleet, committed: set[str], patience: float) -> None:
    open_jobs = Job.objects.exclude(status__in=sorted(TERMINAL))
    waiting = WebhookMessage.objects.filter(fanned_out_at__isnull=True)
    undelivered = WebhookDelivery.objects.exclude(status="DELIVERED")
    began = time.monotonic()

    def what() -> str:
        counts = f"{open_jobs.count()} jobs, {waiting.count()} messages"
        left = list(undelivered.values("status", "attempts", "next_try_at", "lease_expires_at", "error")[:5])
        return f"{counts}, {undelivered.count()} deliveries are left: {left}\n{fleet.logs()[-5000:]}"

    wait_until(lambda: not any(rows.exists() for rows in (open_jobs, waiting, undelivered)), patience, what)
    peak = WebhookDelivery.objects.aggregate(peak=Max("attempts"))["peak"]
    verdict.note(seconds=time.monotonic() - began, most_attempts=peak)
    expected = 2 * len(committed)
    found = WebhookDelivery.objects.count()
    verdict.require(found == expected, f"{found} deliveries, {expected} events were committed")


# ---------------------------------------------------------------------- memory


def _judge_memory(verdict: SuiteReport, fleet: Fleet, floods: int) -> None:
    greedy = behaviours.respond_in_turn(
        *[behaviours.flood_body, behaviours.flood_chunks, behaviours.flood_head, behaviours.hang] * floods
    )
    with run_receiver(greedy) as there:
        endpoint, _ = services.create(there.url, ["job.failed"])
        sender = fleet.start(NOTHING_TO_DO, settings=SETTINGS)
        sizes = [_after(sender, endpoint, there, floods) for _ in range(4)]
    growth = sizes[-1] - sizes[0]
    verdict.note(sender_mib=sizes[0], sender_growth_mib=growth)
    verdict.require(growth < GROWTH_MIB, f"the sender grew: {', '.join(f'{size:.1f}' for size in sizes)} MiB")


def _after(sender: WorkerProcess, endpoint: Any, there: Receiver, floods: int) -> float:
    """Its size after so many tries more."""
    goal = len(there.seen) + floods
    for _ in range(floods):
        services.send_test(endpoint.pk)
    wait_until(
        lambda: len(there.seen) >= goal,
        60 + floods,
        lambda: f"{len(there.seen)} of {goal} tries: {sender.output[-3000:]}",
    )
    return resident_mib(sender.pid)
