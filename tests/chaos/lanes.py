"""Everything that can happen to lanes, from eight processes at once: submit, claim, end, stop, move, retry, pause.

No lane ever has two active jobs or lets another chain in, nothing deadlocks, and when everybody has let go and every
person's stop is lifted, nothing is left.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from django.db import connection

from jobs.models import Job, LaneMark, Target
from jobs.services import jobs as job_services
from jobs.services import targets
from jobs.signals import group_finished
from jobs.states import LIVE, Status
from tests.chaos.report import SuiteReport
from tests.races import NOOP
from tests.races.checker import find_answer_violations, find_violations
from tests.races.fixtures import create_group
from tests.races.parallel import SyncPoints
from tests.races.random_verbs import RandomVerbs
from tests.races.run_remaining import find_stuck_jobs, run_remaining_jobs
from tests.support.worker_processes import MANAGE, Fleet

PROCESSES, LANES = 8, 20
PATIENCE_SEC = 120


def run(fleet: Fleet, chance: random.Random, *, seconds: float) -> SuiteReport:
    verdict = SuiteReport()
    deadlocks = count_deadlocks()
    plan = {"processes": PROCESSES, "seconds": seconds, "seed": chance.random()}
    answers = gather(fleet, plan)
    verdict.broken += [*find_answer_violations(answers), *find_violations()]
    let_everything_go()
    verdict.broken += [*find_violations(), *find_stuck_jobs()]
    verdict.broken += [f"job {job.pk} is still {job.status}" for job in Job.objects.filter(status__in=sorted(LIVE))]
    verdict.require(not LaneMark.objects.exists(), "marks are left")
    verdict.require(count_deadlocks() == deadlocks, f"{count_deadlocks() - deadlocks} deadlocks")
    calls = sum((Counter(answer.get("calls", {})) for answer in answers), Counter[str]())
    ended = Counter(Job.objects.values_list("status", flat=True))
    verdict.note(jobs=Job.objects.count(), calls=calls.total(), **{status.lower(): n for status, n in ended.items()})
    return verdict


def gather(fleet: Fleet, plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Run `act` in so many processes; what each of them answered."""
    command = [sys.executable, "-m", "tests.races.parallel", __name__, json.dumps(plan)]
    crowd = subprocess.Popen(
        command, env=fleet.env, cwd=MANAGE.parent, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        answer, _ = crowd.communicate(timeout=plan["seconds"] + PATIENCE_SEC)
    except subprocess.TimeoutExpired:
        os.killpg(crowd.pid, signal.SIGKILL)
        crowd.communicate()
        raise
    found: list[dict[str, Any]] = json.loads(answer)["answers"]
    return found


# ---------------------------------------------------------------------- in each of the processes


def stage(plan: dict[str, Any]) -> dict[str, Any]:
    made = job_services.enqueue_many([{"job_type": NOOP, "target": lane(number)} for number in range(5 * LANES)])
    return {"jobs": [str(item) for item in made]}


def act(index: int, plan: dict[str, Any], meeting: SyncPoints) -> dict[str, Any]:
    crew = Crew(random.Random(f"{plan['seed']}/{index}"), plan["jobs"])
    group_finished.connect(crew.hear)
    meeting.start.wait()
    end = time.monotonic() + plan["seconds"]
    turn = 0
    while time.monotonic() < end:
        crew.attempt(crew.one_of_these(turn))
        turn += 1
    for _ in list(crew.leases):
        crew.attempt(crew.end_one)
    return crew.ledger()


class Crew(RandomVerbs):
    """As the hammer of the races; besides, it submits, moves and shuts lanes."""

    def one_of_these(self, turn: int) -> Callable[[], None]:
        if self.chance.random() < 0.35:
            return self.chance.choice(
                (self.submit, self.submit, self.submit_group, self.move, self.pause_target, self.unpause_target)
            )
        return super().one_of_these(turn)

    def submit(self) -> None:
        several = self.chance.randint(1, 4)
        items = [{"job_type": NOOP, "target": self._lane(), "priority": self._priority()} for _ in range(several)]
        self.job_ids += job_services.enqueue_many(items, actor=self.actor)

    def submit_group(self) -> None:
        mode = self.chance.choice(("sequential", "parallel"))
        on_failure = self.chance.choice(("stop", "continue", "skip"))
        self.job_ids += create_group(mode, on_failure, [self._lane() for _ in range(3)])

    def move(self) -> None:
        one, other = self.chance.sample(self.job_ids[-60:], 2)
        way: dict[str, Any] = self.chance.choice(({"before": other}, {"after": other}, {"to": "top"}, {"to": "bottom"}))
        job_services.move(one, actor=self.actor, **way)

    def pause_target(self) -> None:
        targets.pause(self._lane(), actor=self.actor)

    def unpause_target(self) -> None:
        targets.unpause(self._lane(), actor=self.actor)

    def _lane(self) -> str:
        return lane(self.chance.randrange(LANES))

    def _priority(self) -> int:
        return self.chance.choice((25, 50, 50, 75))


# ---------------------------------------------------------------------- afterwards


def let_everything_go() -> None:
    """Lift what persons have shut, again and again: what is let go may fall under the next one's stop."""
    for target in Target.objects.filter(paused=True):
        targets.unpause(target.key)
    for _ in range(50):
        for job_id in Job.objects.filter(status=Status.PAUSED).values_list("pk", flat=True):
            job_services.resume(job_id)
        for job_id in (
            Job.objects.filter(status=Status.FAILED, resolved_at=None).latest_attempts().values_list("pk", flat=True)
        ):
            job_services.resolve(job_id)
        for job_id in Job.objects.filter(status=Status.QUEUED, gate=1).values_list("pk", flat=True):
            job_services.retry(job_id)
        run_remaining_jobs()
        if not Job.objects.filter(status__in=sorted(LIVE)).exists():
            return


def lane(number: int) -> str:
    return f"lane-{number % LANES}"


def count_deadlocks() -> int:
    if connection.vendor == "sqlite":
        return 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return int(cursor.fetchone()[0])
