"""One process of the crowd that does everything a person and an executor can do, at random, to the same jobs."""

from __future__ import annotations

import os
import random
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID, uuid4

from jobs import actors
from jobs.engine import lifecycle, promoter
from jobs.engine.finish import FinishStatus, JobResult, finish, hand_back, stop
from jobs.errors import JobSchedulerError
from jobs.models import Job
from jobs.outcomes import Completed, Failed, Skipped
from jobs.services import jobs as job_services
from jobs.signals import group_finished
from tests.races.claim import LEASE_SEC, JobClaimer
from tests.races.fixtures import create_jobs
from tests.races.parallel import SyncPoints
from tests.support import executor, sabotage

SLOTS = 4
LATER_SEC = 3600
VERBS: tuple[tuple[Callable[..., Any], int], ...] = (
    (job_services.cancel, 3),
    (job_services.pause, 3),
    (job_services.resume, 4),
    (job_services.retry, 3),
    (job_services.resolve, 1),
    (job_services.release, 1),
)


def stage(plan: dict[str, Any]) -> dict[str, Any]:
    return {"jobs": create_jobs()}


def act(index: int, plan: dict[str, Any], meeting: SyncPoints) -> dict[str, Any]:
    if plan["sabotage"]:
        sabotage.switch_on(["cancel_without_guard"])
    hammer = RandomVerbs(random.Random(f"{plan['seed']}/{index}"), plan["jobs"])
    group_finished.connect(hammer.hear)
    meeting.start.wait()
    for turn in range(plan["turns"]):
        hammer.attempt(hammer.one_of_these(turn))
    for _ in list(hammer.leases):
        hammer.attempt(hammer.end_one)
    return hammer.ledger()


class RandomVerbs:
    def __init__(self, chance: random.Random, job_ids: Sequence[str]) -> None:
        self.chance, self.job_ids = chance, [UUID(job_id) for job_id in job_ids]
        self.actor = actors.make_worker_actor(f"race-{os.getpid()}")
        self.person = actors.Actor(actors.ActorKind.USER, f"person-{os.getpid()}")
        self.taker = JobClaimer(self.actor.name)
        self.leases: dict[UUID, JobResult] = {}
        self.slot = 0
        self.last: JobResult | None = None
        self.calls: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.unexpected: list[str] = []
        self.recorded: list[tuple[str, str]] = []  # job and token of every end that was acknowledged
        self.groups_finished: list[tuple[str, int]] = []

    def ledger(self) -> dict[str, Any]:
        document = ("calls", "refusals", "unexpected", "recorded", "groups_finished")
        return {name: getattr(self, name) for name in document}

    def attempt(self, action: Callable[[], None]) -> None:
        self.calls[action.__name__] += 1
        try:
            action()
        except JobSchedulerError as refusal:
            self.refusals[type(refusal).__name__] += 1
        except Exception as error:  # noqa: BLE001  all that is not a refusal is a finding
            self.unexpected.append(f"{action.__name__}: {error!r} from {_our_frames(error)}")

    def one_of_these(self, turn: int) -> Callable[[], None]:
        """A person's verb or an executor's. Most verbs go to the job that the others have in hand right now too."""
        if self.chance.random() < 0.45:
            return self.chance.choice((self.take, self.take, self.start, self.end, self.end, self.end, self.promote))
        (verb,) = self.chance.choices([verb for verb, _ in VERBS], [weight for _, weight in VERBS])
        place = turn // 4 if self.chance.random() < 0.7 else self.chance.randrange(len(self.job_ids))
        named = self.job_ids[place * 7 % len(self.job_ids)]

        def ask() -> None:
            verb(self._somewhere_in_the_chain(named), actor=self.person)

        ask.__name__ = verb.__name__
        return ask

    def take(self) -> None:
        """As a worker does."""
        slots = [self._slot() for _ in range(self.chance.randint(1, max(1, SLOTS - len(self.leases))))]
        if len(self.leases) < SLOTS:
            for taken in self.taker.take(slots):
                self._hold(taken.id, taken.lease_token, taken.group_id)

    def start(self) -> None:
        """As a remote executor does: offered first; sometimes too late."""
        ready = list(Job.objects.ready().in_dispatch_order().values_list("pk", flat=True)[:20])
        if ready and len(self.leases) < SLOTS:
            job = executor.offer(self.chance.choice(ready), actor=self.actor, reserve_sec=LEASE_SEC)
            if self.chance.random() < 0.2:
                lifecycle.withdraw(job.pk, actor=self.actor)
                return
            token = uuid4()
            lifecycle.start(
                job.pk, actor=self.actor, owner=f"{self.actor.name}#{self._slot()}", token=token, lease_sec=LEASE_SEC
            )
            self._hold(job.pk, token, job.group_id)

    def end(self) -> None:
        if not self.leases:
            return
        self.chance.choice((self.complete, self.complete, self.complete, self.obey, self.give_back, self.lie))()

    def complete(self) -> None:
        """One, or all that is held at once; and at times the same word again, as after a lost reply."""
        held = list(self.leases.values())
        chunk = held if self.chance.random() < 0.3 else held[:1]
        ends = [JobResult(item.job_id, item.token, self._outcome(), item.group_id) for item in chunk]
        for job_id, verdict in finish(ends, actor=self.actor).items():
            self._forget_lease(job_id, verdict)
        self.last = ends[-1]
        if self.chance.random() < 0.2:
            self._require(finish([self.last], actor=self.actor)[self.last.job_id], FinishStatus.REPLAY)

    def end_one(self) -> None:
        (held, *_) = self.leases.values()
        for job_id, verdict in finish([held], actor=self.actor).items():
            self._forget_lease(job_id, verdict)

    def obey(self) -> None:
        """Stop a running job; without a stop request nothing happens."""
        held = self._one_held()
        verdict = stop(held.job_id, held.token, actor=self.actor)
        if verdict == FinishStatus.DONE:
            self._forget_lease(held.job_id, verdict)

    def give_back(self) -> None:
        held = self._one_held()
        self._forget_lease(held.job_id, hand_back(held.job_id, held.token, actor=self.actor, reason="going away"))

    def lie(self) -> None:
        """Report a result under an unknown token for a running job."""
        held = self._one_held()
        result = JobResult(held.job_id, uuid4(), Completed(), held.group_id)
        self._require(finish([result], actor=self.actor)[held.job_id])
        self._require(stop(held.job_id, uuid4(), actor=self.actor))

    def promote(self) -> None:
        promoter.promote_due()
        promoter.promote()

    def _outcome(self) -> Completed | Skipped | Failed:
        broken = Failed(error="Traceback…", reason="broken")
        again = (Failed(error="Traceback…", reason="broken", retry_in=delay) for delay in (0, LATER_SEC))
        outcomes: list[Completed | Skipped | Failed] = [Completed({"n": 1}), Completed(), Skipped("nothing"), broken]
        return self.chance.choice([*outcomes, *again])

    def _hold(self, job_id: UUID, token: UUID, group_id: UUID | None) -> None:
        self.leases[job_id] = JobResult(job_id, token, Completed(), group_id)

    def _one_held(self) -> JobResult:
        return self.chance.choice(list(self.leases.values()))

    def _forget_lease(self, job_id: UUID, verdict: FinishStatus) -> None:
        held = self.leases.pop(job_id)
        self._require(verdict, FinishStatus.DONE)
        self.recorded.append((str(job_id), str(held.token)))

    def _require(self, verdict: FinishStatus, wanted: FinishStatus = FinishStatus.LOST) -> None:
        if verdict != wanted:
            self.unexpected.append(f"an end was answered {verdict!r}, not {wanted!r}")

    def _slot(self) -> int:
        self.slot += 1
        return self.slot

    def _somewhere_in_the_chain(self, named: UUID) -> UUID:
        """The job itself, or one that followed it."""
        while self.chance.random() < 0.8:
            newer = Job.objects.filter(retry_of_id=named).values_list("pk", flat=True).first()
            if newer is None:
                break
            named = newer
        return named

    def hear(self, *, group_id: UUID, **facts: Any) -> None:
        self.groups_finished.append((str(group_id), facts["round"]))


def _our_frames(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return " ← ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames) if "/engine/" in frame.filename)
