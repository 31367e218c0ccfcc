"""What must be true of the database after any race: each rule yields a line for whatever breaks it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

from django.db.models import Sum

from jobs.actors import ActorKind
from jobs.engine.finish import FinishStatus
from jobs.models import GroupMode, GroupStatus, Job, JobEvent, JobGroup, JobMinute, JobRun
from jobs.models.group import OPEN_GROUP_STATUSES
from jobs.states import ACTIVE, TERMINAL, TRANSITIONS, EventKind, Status

STEPS = {(arrow.source or "", arrow.target, arrow.event) for arrow in TRANSITIONS}
NOTES = {EventKind.HELD, EventKind.UPDATED, EventKind.MOVED, EventKind.AGED, EventKind.ADMITTED, EventKind.DENIED}
ENDS = {str(status) for status in TERMINAL}
LETS_GO = {EventKind.COMPLETED, EventKind.SKIPPED, EventKind.CANCELLED, EventKind.RESOLVED}


def find_violations() -> list[str]:
    world = DatabaseState()
    rules = (trails, terminal_events, chains, lanes, held_lanes, groups, places, runs, rollup)
    return [line for rule in rules for line in rule(world)]


def find_answer_violations(answers: Iterable[dict[str, Any]]) -> Iterator[str]:
    """What the processes saw: nothing but named refusals, and every acknowledged end is in the trail exactly once."""
    acknowledged: Counter[tuple[UUID, UUID]] = Counter()
    finished: Counter[tuple[str, int]] = Counter()
    for answer in answers:
        yield from answer.get("unexpected", [answer.get("crashed")])
        acknowledged.update((UUID(job), UUID(token)) for job, token in answer.get("recorded", []))
        finished.update((group, round_) for group, round_ in answer.get("groups_finished", []))
    # A remote start keeps its lease, too.
    document = JobEvent.objects.filter(token__isnull=False).exclude(kind=EventKind.RUNNING)
    in_trail: Counter[Any] = Counter(document.values_list("job_id", "token"))
    for job, token in acknowledged.keys() | in_trail.keys():
        if (fields := acknowledged[job, token]) != (kept := in_trail[job, token]):
            yield f"job {job}: an end was acknowledged {fields} times ({FinishStatus.DONE}) and recorded {kept} times"
    yield from (f"group {group}: round {item} was announced twice" for (group, item), n in finished.items() if n > 1)


class DatabaseState:
    def __init__(self) -> None:
        columns = ("id", "status", "lane_id", "holds_lane", "hold", "gate", "job_type", "attempt", "retry_of_id")
        self.jobs = {job["id"]: job for job in Job.objects.values(*columns, "group_id", "group_index", "resolved_at")}
        self.successor = {job["retry_of_id"]: job for job in self.jobs.values() if job["retry_of_id"]}
        events = JobEvent.objects.order_by("id")
        self.events: list[Any] = [*events.values("job_id", "kind", "from_status", "to_status", "actor_kind", "data")]
        self.trail: dict[UUID, list[dict[str, Any]]] = defaultdict(list)
        for event in self.events:
            self.trail[event["job_id"]].append(event)
        self.first = {job_id: self._first(job) for job_id, job in self.jobs.items()}

    def _first(self, job: dict[str, Any]) -> UUID:
        """The name of a chain."""
        while job["retry_of_id"] is not None:
            job = self.jobs[job["retry_of_id"]]
        found: UUID = job["id"]
        return found


def trails(world: DatabaseState) -> Iterator[str]:
    """Every trail is a path through the map and ends where the job is.

    Its order is that of the ids: a job's row is locked while its event is written. Times may lag behind, since a
    statement that waited for the lock still says when it began.
    """
    for job_id, job in world.jobs.items():
        status = ""
        for event in world.trail[job_id]:
            step = (event["from_status"], event["to_status"], event["kind"])
            if event["from_status"] != status:
                yield f"job {job_id}: {step} does not follow {status or 'nothing'}"
            noted = event["kind"] in NOTES and event["from_status"] == event["to_status"] != ""
            if step not in STEPS and not noted:
                yield f"job {job_id}: there is no arrow {step}"
            status = event["to_status"]
        if status != job["status"]:
            yield f"job {job_id}: is {job['status']}, its trail ends {status or 'nowhere'}"


def terminal_events(world: DatabaseState) -> Iterator[str]:
    for job_id, job in world.jobs.items():
        ends = sum(event["kind"] in ENDS for event in world.trail[job_id])
        if ends != (job["status"] in TERMINAL):
            yield f"job {job_id}: is {job['status']} and has {ends} terminal events"


def chains(world: DatabaseState) -> Iterator[str]:
    """A job is followed at most once, only after its end, and says so once."""
    followed = Counter(job["retry_of_id"] for job in world.jobs.values() if job["retry_of_id"])
    yield from (f"job {job_id}: has {n} successors" for job_id, n in followed.items() if n > 1)
    for job_id, job in world.jobs.items():
        newer = world.successor.get(job_id)
        fields = [event["data"]["retried_by"] for event in world.trail[job_id] if event["kind"] == "RETRY_CREATED"]
        if fields != ([str(newer["id"])] if newer else []):
            yield f"job {job_id}: is followed by {newer and newer['id']}, its trail says {fields}"
        if newer and job["status"] not in TERMINAL:
            yield f"job {job_id}: is {job['status']} and was retried"
        if newer and newer["attempt"] != job["attempt"] + 1:
            yield f"job {newer['id']}: attempt {newer['attempt']} follows attempt {job['attempt']}"


def lanes(world: DatabaseState) -> Iterator[str]:
    """At no time two active jobs; and from its first start to its good end a chain has its lane for itself.

    Events of one lane are in the order of their ids: who starts next has seen the commit of who ended before.
    """
    active: dict[UUID, UUID] = {}
    holder: dict[UUID, UUID] = {}
    for event in world.events:
        job_id, lane = event["job_id"], world.jobs[event["job_id"]]["lane_id"]
        if lane is None:
            continue
        if event["to_status"] in ACTIVE:
            if active.setdefault(lane, job_id) != job_id:
                yield f"lane {lane}: {job_id} became active beside {active[lane]}"
            if holder.setdefault(lane, world.first[job_id]) != world.first[job_id]:
                yield f"lane {lane}: {job_id} started while the chain of {holder[lane]} held it"
        elif active.get(lane) == job_id:
            del active[lane]
        if holder.get(lane) == world.first[job_id] and _lets_go(world, event):
            del holder[lane]


def _lets_go(world: DatabaseState, event: dict[str, Any]) -> bool:
    """A good end does, or a person's word; and a retry that must first wait for its predecessor in a group."""
    newer = world.successor.get(event["job_id"])
    waits = newer is not None and world.trail[newer["id"]][0]["to_status"] == Status.PENDING
    return event["kind"] in LETS_GO or (event["kind"] == EventKind.RETRY_CREATED and waits)


def held_lanes(world: DatabaseState) -> Iterator[str]:
    """The column that the promoter reads says what the states say."""
    for job_id, job in world.jobs.items():
        if job["lane_id"] is not None and job["holds_lane"] != _should_hold(world, job):
            yield f"job {job_id}: {job['status']}, holds_lane is {job['holds_lane']}"


def _should_hold(world: DatabaseState, job: dict[str, Any]) -> bool:
    if job["id"] in world.successor or job["status"] == Status.PENDING:
        return False
    if job["status"] == Status.FAILED:
        return job["resolved_at"] is None
    if job["status"] in (Status.DISPATCHING, Status.RUNNING, Status.PAUSED):
        return True
    return job["status"] == Status.QUEUED and _was_started(world, job)


def _was_started(world: DatabaseState, job: dict[str, Any]) -> bool:
    """It, or the unresolved failure that it follows."""
    if any(event["to_status"] in ACTIVE for event in world.trail[job["id"]]):
        return True
    older = world.jobs.get(job["retry_of_id"])
    return older is not None and older["status"] == Status.FAILED and older["resolved_at"] is None


def groups(world: DatabaseState) -> Iterator[str]:
    """Terminal exactly when all members are, with the status that their tails give."""
    members: dict[UUID, list[dict[str, Any]]] = defaultdict(list)
    for job in world.jobs.values():
        if job["group_id"] is not None:
            members[job["group_id"]].append(job)
    for group in JobGroup.objects.all():
        live = [job for job in members[group.pk] if job["status"] not in TERMINAL]
        tails = Counter(job["status"] for job in members[group.pk] if job["id"] not in world.successor)
        if (group.status in OPEN_GROUP_STATUSES) != bool(live):
            yield f"group {group.pk}: is {group.status} with {len(live)} live members"
        elif not live and group.status != _status_of(tails):
            yield f"group {group.pk}: is {group.status}, its tails are {dict(tails)}"
        if group.mode == GroupMode.SEQUENTIAL:
            yield from _forgotten(live)


def _status_of(tails: Counter[str]) -> str:
    if set(tails) == {Status.CANCELLED}:
        return GroupStatus.CANCELLED
    if set(tails) == {Status.FAILED}:
        return GroupStatus.FAILED
    return GroupStatus.PARTIAL if tails[Status.FAILED] or tails[Status.CANCELLED] else GroupStatus.COMPLETED


def _forgotten(live: list[dict[str, Any]]) -> Iterator[str]:
    """A place waits for an earlier one, or for another whose turn it is."""
    first = min((job["group_index"] for job in live), default=None)
    if any(job["status"] != Status.PENDING for job in live):
        return
    for job in live:
        if job["group_index"] == first and not job["hold"]:
            yield f"job {job['id']}: waits for its turn in its group, and it is nobody else's"


def places(world: DatabaseState) -> Iterator[str]:
    """In a sequential group no member is released before an earlier one has ended, nor beside another that has begun.

    The retry that a failure makes by itself goes on with the turn of its place; a person may let go whatever has no
    predecessor.
    """
    sequential = set(JobGroup.objects.filter(mode=GroupMode.SEQUENTIAL).values_list("pk", flat=True))
    live: dict[UUID, dict[UUID, tuple[int, str]]] = defaultdict(dict)
    for event in world.events:
        job = world.jobs[event["job_id"]]
        if job["group_id"] not in sequential:
            continue
        here, place = live[job["group_id"]], job["group_index"]
        if event["to_status"] == Status.QUEUED and event["kind"] in (EventKind.SUBMITTED, EventKind.RELEASED):
            by_person = event["actor_kind"] == ActorKind.USER
            for other, (at, status) in here.items():
                if (at < place and not _goes_on(event)) or (at != place and status != Status.PENDING and not by_person):
                    yield f"job {job['id']}: was let go at place {place} while {other} was {status} at place {at}"
        if event["to_status"] in TERMINAL:
            here.pop(job["id"], None)
        else:
            here[job["id"]] = (place, event["to_status"])


def _goes_on(event: dict[str, Any]) -> bool:
    return bool(event["kind"] == EventKind.SUBMITTED and event["actor_kind"] == ActorKind.WORKER)


def runs(world: DatabaseState) -> Iterator[str]:
    """A started job has exactly one run, which ends as the job does; any other job has none."""
    found = dict(JobRun.objects.values_list("job_id", "status"))
    for job_id, job in world.jobs.items():
        started = any(event["kind"] == EventKind.RUNNING for event in world.trail[job_id])
        wanted = (job["status"] if job["status"] in TERMINAL else Status.RUNNING) if started else None
        if found.get(job_id) != wanted:
            yield f"job {job_id}: is {job['status']}, its run {found.get(job_id)}"


def rollup(world: DatabaseState) -> Iterator[str]:
    """Every end was counted once."""
    ended = Counter(job["status"] for job in world.jobs.values() if job["status"] in TERMINAL)
    counted = dict(JobMinute.objects.order_by().values_list("outcome").annotate(n=Sum("jobs")))
    yield from (
        f"{ended[status]} jobs are {status}, {counted.get(status, 0)} were counted"
        for status in sorted(ended.keys() | counted.keys())
        if ended[status] != counted.get(status, 0)
    )
