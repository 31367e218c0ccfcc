"""Every way we know to break a promise with raw SQL: what is there, what is tried, and what must refuse it.

`given` makes the rows and returns the parameters; `by` is what the refusal must speak of, so that no statement is
refused for a reason that is not the one on trial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

from django.utils import timezone

from jobs.ids import derive_lane_id, uuid7
from jobs.models import GroupStatus, Job, JobRun
from jobs.states import TERMINAL, Status
from schedules.models import ScheduleFire
from tests.factories import (
    ActivityFactory,
    JobEventFactory,
    JobFactory,
    JobGroupFactory,
    ScheduleFactory,
    ScheduleFireFactory,
)
from tests.invariants.raw import copy_row

Params = dict[str, Any]


@dataclass(frozen=True)
class Violation:
    rule: str
    what: str
    given: Callable[[], Params]
    sql: str
    by: str

    def __str__(self) -> str:
        return f"{self.rule} {self.what}"


def a_job(**fields: Any) -> Callable[[], Params]:
    """One job with these traits, and parameters that statements about it may need."""

    def make() -> Params:
        return {
            "id": JobFactory.create(**fields).pk,
            "new": uuid7(),
            "lane": derive_lane_id("default", "other"),
            "token": uuid4(),
            "now": timezone.now(),
            "later": timezone.now() + timedelta(hours=1),
        }

    return make


def two_jobs(first: Params, second: Params) -> Callable[[], Params]:
    def make() -> Params:
        return {"id": JobFactory.create(**first).pk, "other": JobFactory.create(**second).pk, "new": uuid7()}

    return make


def update_job(change: str) -> str:
    return f"UPDATE jobscheduler_job SET {change} WHERE id = %(id)s"


def inv_001() -> Iterator[Violation]:
    """What was dispatched once is frozen, whatever has become of it since."""
    dispatched = {
        "running": {"running": True},
        "dispatching": {"dispatching": True},
        "handed back": {"queued": True, "started": True},
        "paused": {"paused": True},
        "completed": {"completed": True},
        "failed": {"failed": True},
    }
    changes = {
        "params": """params = '{"text": "other"}'""",
        "job_type": "job_type = 'tests.anything'",
        "tenant": "tenant = 'other'",
        "target": "target = 'other', lane_id = %(lane)s",
        "params with an update of all": """status_reason = 'x', params = '{"text": "other"}', priority = 100""",
    }
    for state, traits in dispatched.items():
        for what, change in changes.items():
            yield Violation("INV-001", f"{what} of a {state} job", a_job(**traits), update_job(change), "INV-001")
    yield Violation(
        "INV-001",
        "lane of a running job",
        a_job(running=True, in_lane=True),
        update_job("target = NULL, lane_id = NULL, holds_lane = false"),
        "INV-001",
    )
    yield Violation(
        "INV-001",
        "dispatched_at of a handed back job, taken back",
        a_job(queued=True, started=True),
        update_job("dispatched_at = NULL"),
        "INV-001",
    )
    yield Violation(
        "INV-001",
        "params by an upsert",
        a_job(completed=True),
        copy_row(Job).replace(" WHERE id = %(id)s", " WHERE id = %(id)s ON CONFLICT (id) DO UPDATE SET params = '{}'"),
        "INV-001|never replaced",
    )
    yield Violation(
        "INV-001",
        "params of every job at once",
        a_job(completed=True),
        "UPDATE jobscheduler_job SET params = '{}'",
        "INV-001",
    )


def inv_002() -> Iterator[Violation]:
    """A run is an audit record: only its end is written, once."""
    frozen = {
        "worker": "worker = 'somebody'",
        "started_at": "started_at = %(later)s",
        "start taken back": "started_at = %(later)s, status = 'COMPLETED', finished_at = %(now)s",
    }
    ended = {
        "finished_at": "finished_at = %(later)s",
        "reopened": "status = 'RUNNING', finished_at = NULL",
        "another outcome": "status = 'FAILED'",
        "exit_code": "exit_code = 9",
        "error": "error = 'it was not me'",
        "artifacts": """artifacts = '{"a": 1}'""",
    }
    of_run = "UPDATE jobscheduler_jobrun SET {} WHERE job_id = %(id)s"
    for what, change in frozen.items():
        yield Violation("INV-002", f"{what} of an open run", a_job(running=True), of_run.format(change), "INV-002")
    for what, change in (frozen | ended).items():
        yield Violation("INV-002", f"{what} of an ended run", a_job(completed=True), of_run.format(change), "INV-002")
    yield Violation(
        "INV-002",
        "an open run given to another job",
        two_jobs({"running": True}, {"queued": True}),
        of_run.format("job_id = %(other)s"),
        "INV-002",
    )
    yield Violation(
        "INV-002",
        "ended without a time",
        a_job(running=True),
        of_run.format("status = 'COMPLETED'"),
        "jobrun_open_until_finished",
    )
    yield Violation(
        "INV-002", "a word that is no outcome", a_job(running=True), of_run.format("status = 'DONE'"), "jobrun_"
    )


ONE_PER_SLOT = r"job_one_per_slot|UNIQUE constraint failed: jobscheduler_job\.lease_owner"
ONE_PER_LANE = r"job_one_active_per_lane|UNIQUE constraint failed: jobscheduler_job\.tenant, jobscheduler_job\.target"


def inv_003() -> Iterator[Violation]:
    """One running job per executor slot."""
    yield Violation(
        "INV-003",
        "a second running job inserted into a slot",
        a_job(running=True),
        copy_row(Job, id="%(new)s", lease_token="%(token)s"),
        ONE_PER_SLOT,
    )
    yield Violation(
        "INV-003",
        "a running job moved to a busy slot",
        two_jobs({"running": True, "lease_owner": "w#0"}, {"running": True, "lease_owner": "w#1"}),
        update_job("lease_owner = 'w#1'"),
        ONE_PER_SLOT,
    )
    yield Violation(
        "INV-003",
        "a queued job started in a busy slot",
        two_jobs({"queued": True, "dispatched_at": timezone.now()}, {"running": True, "lease_owner": "w#1"}),
        update_job(
            "status = 'RUNNING', gate = 0, lease_owner = 'w#1', lease_token = %(new)s, lease_expires_at = created_at"
        ),
        ONE_PER_SLOT,
    )


def inv_004() -> Iterator[Violation]:
    """The order is total over what waits, and nothing else stands in it."""
    changes = {
        "no position": ("position = NULL", "position"),
        "no priority": ("priority = NULL", "priority"),
        "no time of birth": ("created_at = NULL", "created_at"),
        "above the highest priority": ("priority = 101", "job_priority_range"),
        "below the lowest priority": ("priority = -1", "job_priority_range"),
        "base priority out of range": ("base_priority = 101", "job_priority_range"),
        "queued behind no gate": ("gate = 0", "job_gate_iff_queued"),
        "queued behind a gate that does not exist": ("gate = 4", "job_gate_iff_queued"),
    }
    for what, (change, by) in changes.items():
        yield Violation("INV-004", what, a_job(queued=True), update_job(change), by)
    for state in sorted(set(Status) - {Status.QUEUED}):
        made = {state.lower(): True}
        yield Violation(
            "INV-004",
            f"a {state} job in the order of the ready",
            a_job(**made),
            update_job("gate = 3"),
            "job_gate_iff_queued",
        )


FOREIGN_KEY = "foreign key"


def inv_005() -> Iterator[Violation]:
    """A job does not depend on its schedule's row, and cannot be torn from it unseen."""

    def create_fired_job() -> Params:
        schedule = ScheduleFactory.create()
        return {"id": JobFactory.create(running=True, schedule=schedule).pk, "schedule": schedule.pk, "new": uuid7()}

    yield Violation(
        "INV-005",
        "a schedule deleted under its jobs",
        create_fired_job,
        "DELETE FROM jobscheduler_schedule WHERE id = %(schedule)s",
        FOREIGN_KEY,
    )
    yield Violation(
        "INV-005", "a schedule that is none", create_fired_job, update_job("schedule_id = %(new)s"), FOREIGN_KEY
    )
    yield Violation(
        "INV-005",
        "a schedule's new params written through to its jobs",
        create_fired_job,
        "UPDATE jobscheduler_job SET params = '{}' WHERE schedule_id = %(schedule)s",
        "INV-001",
    )


def inv_006() -> Iterator[Violation]:
    """A group is terminal only when all its members are."""

    def group_with(**member: Any) -> Callable[[], Params]:
        def make() -> Params:
            group = JobGroupFactory.create()
            JobFactory.create(group=group, group_index=0, completed=True)
            JobFactory.create(group=group, group_index=1, **member)
            return {"group": group.pk, "now": timezone.now()}

        return make

    def ended_group(**outsider: Any) -> Callable[[], Params]:
        def make() -> Params:
            group = JobGroupFactory.create(status=GroupStatus.COMPLETED, finished_at=timezone.now())
            member = JobFactory.create(completed=True, group=group, group_index=0)
            other = JobFactory.create(**outsider)
            return {"group": group.pk, "id": member.pk, "other": other.pk, "new": uuid7(), "now": timezone.now()}

        return make

    end = "UPDATE jobscheduler_jobgroup SET status = '{}', finished_at = %(now)s WHERE id = %(group)s"
    for state in sorted(set(Status) - TERMINAL):
        yield Violation(
            "INV-006",
            f"completed over a {state} member",
            group_with(**{state.lower(): True}),
            end.format("COMPLETED"),
            "INV-006",
        )
    for outcome in ("FAILED", "PARTIAL", "CANCELLED"):
        yield Violation(
            "INV-006", f"{outcome} over a running member", group_with(running=True), end.format(outcome), "INV-006"
        )
    yield Violation(
        "INV-006",
        "a live member inserted into an ended group",
        ended_group(),
        copy_row(Job, id="%(new)s", status="'QUEUED'", gate="3"),
        "INV-006",
    )
    yield Violation(
        "INV-006",
        "a live job moved into an ended group",
        ended_group(queued=True),
        "UPDATE jobscheduler_job SET group_id = %(group)s, group_index = 1 WHERE id = %(other)s",
        "INV-006",
    )
    yield Violation(
        "INV-006",
        "a member brought back to life in an ended group",
        ended_group(),
        update_job("status = 'QUEUED', gate = 3"),
        "keeps its status",
    )
    yield Violation(
        "INV-006",
        "ended without a time",
        group_with(completed=True),
        "UPDATE jobscheduler_jobgroup SET status = 'COMPLETED' WHERE id = %(group)s",
        "jobgroup_open_until_finished",
    )
    yield Violation(
        "INV-006",
        "a word that is no group status",
        group_with(completed=True),
        end.format("DONE"),
        "jobgroup_status_known",
    )


def dec_001() -> Iterator[Violation]:
    """One JobRun per Job."""
    second = "jobscheduler_jobrun_pkey|never replaced"
    for state in (Status.RUNNING, Status.PAUSED, Status.FAILED):
        made = {state.lower(): True}
        yield Violation("DEC-001", f"a second run of a {state} job", a_job(**made), copy_row(JobRun), second)
    yield Violation("DEC-001", "a run of no job", a_job(running=True), copy_row(JobRun, job_id="%(new)s"), FOREIGN_KEY)
    yield Violation(
        "DEC-001",
        "a job deleted under its run",
        a_job(completed=True),
        "DELETE FROM jobscheduler_job WHERE id = %(id)s",
        FOREIGN_KEY,
    )


def lanes() -> Iterator[Violation]:
    """At most one active job per (tenant, target)."""
    start = "status = 'RUNNING', gate = 0, lease_owner = 'w', lease_token = %(new)s, lease_expires_at = created_at"
    reserve = "status = 'DISPATCHING', gate = 0, reserved_until = created_at"
    waiting = {"target": "lane", "queued": True, "dispatched_at": timezone.now()}
    for holder in ("running", "dispatching"):
        for what, change in {"started": start, "reserved": reserve}.items():
            given = two_jobs(waiting, {"target": "lane", holder: True})
            yield Violation("lanes", f"{what} beside a {holder} job", given, update_job(change), ONE_PER_LANE)
    yield Violation(
        "lanes",
        "a second active job inserted",
        a_job(target="lane", running=True),
        copy_row(Job, id="%(new)s", lease_token="%(token)s", lease_owner="'another'"),
        ONE_PER_LANE,
    )
    yield Violation("lanes", "a target without a lane", a_job(), update_job("target = 'lane'"), "job_lane_iff_target")
    yield Violation("lanes", "a lane without a target", a_job(), update_job("lane_id = id"), "job_lane_iff_target")
    yield Violation("lanes", "holding no lane", a_job(), update_job("holds_lane = true"), "job_lane_iff_target")


def lease() -> Iterator[Violation]:
    """RUNNING ⇔ owner, token and expiry are set; DISPATCHING ⇔ reserved_until is set."""
    running = "job_lease_iff_running"
    for column in ("lease_owner", "lease_token", "lease_expires_at"):
        yield Violation(
            "lease", f"running without {column}", a_job(running=True), update_job(f"{column} = NULL"), running
        )
    kept = {"lease_owner": "'w'", "lease_token": "id", "lease_expires_at": "created_at"}
    for state in sorted(set(Status) - {Status.RUNNING}):
        for column, value in kept.items():
            made = {state.lower(): True}
            yield Violation(
                "lease", f"{state} with {column}", a_job(**made), update_job(f"{column} = {value}"), running
            )
    yield Violation(
        "lease",
        "started without a lease",
        a_job(queued=True, started=True),
        update_job("status = 'RUNNING', gate = 0"),
        running,
    )
    yield Violation(
        "lease",
        "completed with the lease kept",
        a_job(running=True),
        update_job("status = 'COMPLETED'"),
        running,
    )
    reserved = "job_reserved_iff_dispatching"
    yield Violation(
        "lease",
        "dispatching without a reservation",
        a_job(dispatching=True),
        update_job("reserved_until = NULL"),
        reserved,
    )
    for state in sorted(set(Status) - {Status.DISPATCHING}):
        made = {state.lower(): True}
        yield Violation(
            "lease", f"{state} with a reservation", a_job(**made), update_job("reserved_until = created_at"), reserved
        )
    yield Violation(
        "lease",
        "active but never dispatched",
        a_job(queued=True),
        update_job("status = 'DISPATCHING', gate = 0, reserved_until = created_at"),
        "job_started_is_dispatched",
    )


KEEPS_PLACE = "keeps its place in its retry chain"


def chain() -> Iterator[Violation]:
    """A job is retried at most once, and never retries itself."""
    retried_once = r"retry_of_id"

    def create_retry() -> Params:
        failed = JobFactory.create(failed=True)
        retry = JobFactory.create(queued=True, retry_of=failed, attempt=2)
        return {"failed": failed.pk, "id": retry.pk, "new": uuid7(), "other": JobFactory.create().pk}

    yield Violation("chain", "a second retry inserted", create_retry, copy_row(Job, id="%(new)s"), retried_once)
    yield Violation(
        "chain",
        "another job made a retry of a retried one",
        create_retry,
        "UPDATE jobscheduler_job SET retry_of_id = %(failed)s WHERE id = %(other)s",
        KEEPS_PLACE,
    )
    yield Violation("chain", "retry of itself", a_job(), update_job("retry_of_id = id"), KEEPS_PLACE)
    yield Violation(
        "chain",
        "closed to a ring",
        create_retry,
        "UPDATE jobscheduler_job SET retry_of_id = %(id)s WHERE id = %(failed)s",
        KEEPS_PLACE,
    )
    yield Violation(
        "chain",
        "born as a retry of itself",
        a_job(),
        copy_row(Job, id="%(new)s", retry_of_id="%(new)s"),
        "job_retry_not_of_itself",
    )
    yield Violation(
        "chain",
        "born as a retry of no job",
        a_job(),
        copy_row(Job, id="%(new)s", retry_of_id="%(token)s"),
        FOREIGN_KEY,
    )
    yield Violation(
        "chain",
        "the middle of a chain deleted",
        create_retry,
        "DELETE FROM jobscheduler_job WHERE id = %(failed)s",
        FOREIGN_KEY,
    )
    yield Violation("chain", "before the first attempt", a_job(), update_job("attempt = 0"), "job_counts_in_range")


def fire() -> Iterator[Violation]:
    """A schedule fires a due time at most once."""
    once = r"schedulefire_once|UNIQUE constraint failed: jobscheduler_schedulefire\.schedule_id"

    def fired_twice() -> Params:
        first = ScheduleFireFactory.create()
        second = ScheduleFireFactory.create(schedule=first.schedule, fire_time=first.fire_time + timedelta(hours=1))
        return {"id": first.pk, "second": second.pk, "due": first.fire_time, "stray": uuid7()}

    yield Violation("fire", "the same due time inserted again", fired_twice, copy_row(ScheduleFire), once)
    yield Violation(
        "fire",
        "a fire moved to a due time that has one",
        fired_twice,
        "UPDATE jobscheduler_schedulefire SET fire_time = %(due)s WHERE id = %(second)s",
        once,
    )
    yield Violation(
        "fire",
        "a fire of no schedule",
        fired_twice,
        "UPDATE jobscheduler_schedulefire SET schedule_id = %(stray)s WHERE id = %(second)s",
        FOREIGN_KEY,
    )


def idempotency() -> Iterator[Violation]:
    """One job per (tenant, idempotency key)."""
    once = r"job_idempotency_key|UNIQUE constraint failed: jobscheduler_job\.tenant, jobscheduler_job\.idempotency_key"
    yield Violation(
        "idempotency",
        "the same key inserted again",
        a_job(idempotency_key="k"),
        copy_row(Job, id="%(new)s"),
        once,
    )
    yield Violation(
        "idempotency",
        "the key of an ended job taken",
        two_jobs({"queued": True}, {"completed": True, "idempotency_key": "k"}),
        update_job("idempotency_key = 'k'"),
        once,
    )


def dec_006() -> Iterator[Violation]:
    """One set of status words, and an end that stays."""
    for word in ("SUCCESS", "DONE", "ERROR", "CANCELED", "DISPATCHED", "RETRYING", "queued", ""):
        yield Violation(
            "DEC-006", f"the status “{word}”", a_job(), update_job(f"status = '{word}', gate = 0"), "job_status_known"
        )
    for state in sorted(TERMINAL):
        other = next(status for status in sorted(TERMINAL) if status != state)
        for what, change in {
            "queued again": "status = 'QUEUED', gate = 3",
            "another end": f"status = '{other}'",
        }.items():
            made = {state.lower(): True}
            yield Violation("DEC-006", f"{state} {what}", a_job(**made), update_job(change), "keeps its status")


def the_rest() -> Iterator[Violation]:
    """Columns that only make sense together, and the audit trail."""
    changes = {
        "a stop request without a mode": ("cancel_requested = true", "job_stop_mode"),
        "a stop mode without a request": ("cancel_mode = 'CANCEL'", "job_stop_mode"),
        "an unknown stop mode": ("cancel_requested = true, cancel_mode = 'HALT'", "job_stop_mode"),
        "a place without a group": ("group_index = 0", "job_place_iff_group"),
        "more progress than all": ("progress = 1.5", "job_counts_in_range"),
        "negative tokens": ("tokens_used = -1", "job_counts_in_range"),
        "negative retries": ("max_retries = -1", "job_counts_in_range"),
        "more cost than the machine": ("cost_units = 101", "job_priority_range"),
        "resolved while it runs": ("resolved_at = created_at", "job_only_failed_resolved"),
    }
    for what, (change, by) in changes.items():
        yield Violation("state", what, a_job(running=True), update_job(change), by)
    yield Violation(
        "state",
        "in a group without a place",
        lambda: {"id": JobFactory.create().pk, "group": JobGroupFactory.create().pk},
        update_job("group_id = %(group)s"),
        "job_place_iff_group",
    )
    yield Violation(
        "audit",
        "an event rewritten",
        lambda: {"id": JobEventFactory.create().pk},
        "UPDATE jobscheduler_jobevent SET actor_name = 'somebody else' WHERE id = %(id)s",
        "append-only",
    )
    yield Violation(
        "audit",
        "an event of an existing job deleted",
        lambda: {"id": JobEventFactory.create().pk},
        "DELETE FROM jobscheduler_jobevent WHERE id = %(id)s",
        "JobEvent is append-only",
    )
    yield Violation(
        "audit",
        "an activity rewritten",
        lambda: {"id": ActivityFactory.create().pk},
        "UPDATE jobscheduler_activity SET actor_name = 'another' WHERE id = %(id)s",
        "Activity is append-only",
    )
    yield Violation(
        "audit",
        "an old activity deleted",
        lambda: {"id": ActivityFactory.create(at=timezone.now() - timedelta(days=4000)).pk},
        "DELETE FROM jobscheduler_activity WHERE id = %(id)s",
        "Activity is append-only",
    )


VIOLATIONS: tuple[Violation, ...] = tuple(
    violation
    for rule in (
        inv_001,
        inv_002,
        inv_003,
        inv_004,
        inv_005,
        inv_006,
        dec_001,
        lanes,
        lease,
        chain,
        fire,
        idempotency,
        dec_006,
        the_rest,
    )
    for violation in rule()
)
