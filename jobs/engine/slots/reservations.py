"""Reserve the next free slot for a direct call: running jobs go on, the queue waits, direct calls keep their order.

A reservation is a lease. While it waits, the limits of its type have no room for the queue; it is granted under the
same lock that claims count under, so limits hold exactly.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any
from uuid import UUID

from django.db.models.functions import Now
from django.utils.translation import gettext as _

from jobs import db
from jobs.conf import conf
from jobs.engine.selection import admission, limits
from jobs.engine.selection.buckets import Start
from jobs.engine.slots import leases
from jobs.engine.slots.leases import SLOT_FREE
from jobs.errors import InvalidOperationError, NoSlot
from jobs.models import ApiToken, Lease, LeaseKind
from jobs.notifications import CHANNEL, Listener
from jobs.policies.admission import Candidate, Denied
from jobs.policies.concurrency import Flow, Limit, seconds_to_start
from jobs.process_identity import ProcessIdentity

FIRST_POLL_SEC, LONGEST_POLL_SEC = 0.02, 0.5


@dataclass(frozen=True)
class WaitReason:
    """Why a direct call waits, as a sentence; `is_permanent` if waiting will not help.

    `seconds`: until a rate lets the next one start, if one is the reason.
    """

    message: str
    is_permanent: bool = False
    seconds: float | None = None


def reserve_slot(
    candidate: Candidate, owner: str, api_token: UUID | None = None, *, token_limit: int | None = None
) -> Lease:
    """Take a slot at once, or a position in the queue of direct calls. Not inside a transaction: others must see it.

    Raise NoSlot if waiting will not help, or if the token has DIRECT_PER_TOKEN calls already; most of those are found
    without a lock.
    """
    if api_token is not None:
        _require_room_for_token(api_token)
    with _open_transaction():
        if api_token is not None:
            list(ApiToken.objects.select_for_update(no_key=True).filter(pk=api_token).values_list("pk"))
            _require_room_for_token(api_token)
        limits.ensure_limits()
        lease = leases.build_lease(candidate, LeaseKind.DIRECT, owner)
        lease.api_token, lease.token_limit = api_token, token_limit
        lease.process = ProcessIdentity.current().slot_owner(0)[:300]
        reason = _find_wait_reason(lease, lock=True)
        if reason is not None and reason.is_permanent:
            raise NoSlot(reason.message)
        return leases.insert_lease(lease, **({"granted_at": Now()} if reason is None else {}))


def try_grant(lease: Lease) -> WaitReason | None:
    """Take the slot if this lease is next, else return why it waits. Looks without locks first.

    Raise CallEnded if the lease has been ended.
    """
    if not leases.is_live(lease.pk):
        raise leases.build_call_ended(lease.pk)
    reason = _find_wait_reason(lease, lock=False)
    if reason is not None:
        return reason
    with _open_transaction():
        reason = _find_wait_reason(lease, lock=True)
        if reason is None and not leases.live_leases().filter(pk=lease.pk).update(granted_at=Now()):
            raise leases.build_call_ended(lease.pk)
    return reason


class SlotWaiter:
    """Waits until a slot may be free: for a notification where the database sends them, and for the next poll.

    It listens on the caller's own connection, unless that is in a transaction; then it polls, with growing pauses.
    """

    def __init__(self) -> None:
        self._connection: Any = db.connection()
        self._listens = Listener.can_listen() and not self._connection.in_atomic_block
        self._pause = FIRST_POLL_SEC

    def __enter__(self) -> SlotWaiter:
        if self._listens:
            self._execute(f"LISTEN {CHANNEL}")
        return self

    def __exit__(self, *raised: object) -> None:
        if self._listens and self._connection.connection is not None and self._connection.is_usable():
            self._execute(f"UNLISTEN {CHANNEL}")

    def wait(self, seconds: float) -> None:
        """Wait until a slot may be free, or until the next poll is due."""
        seconds = min(seconds, conf.POLL_SEC)
        if not self._listens:
            time.sleep(min(seconds, self._pause))
            self._pause = min(self._pause * 1.5, LONGEST_POLL_SEC)
            return
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            with self._connection.wrap_database_errors:
                for notification in self._connection.connection.notifies(timeout=left, stop_after=1):
                    if notification.payload == SLOT_FREE:
                        return

    def _execute(self, sql: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)


def _require_room_for_token(api_token: UUID) -> None:
    """Raise NoSlot if DIRECT_PER_TOKEN calls of this token wait or run; exact under the lock of the token's row."""
    calls = leases.live_leases().filter(kind=LeaseKind.DIRECT, api_token=api_token)
    is_full = calls.count() >= conf.DIRECT_PER_TOKEN
    if is_full and leases.end_dead_leases():
        is_full = calls.count() >= conf.DIRECT_PER_TOKEN
    if is_full:
        message = _("%d direct calls of this token wait or run already, as many as DIRECT_PER_TOKEN allows.")
        raise NoSlot(message % conf.DIRECT_PER_TOKEN)


def _find_wait_reason(lease: Lease, *, lock: bool) -> WaitReason | None:
    """Return why a direct call waits. With `lock`, None is a grant: its tokens are taken."""
    usage = limits.read_usage(lock=lock)
    flow = Flow.of(lease)
    for limit in usage.limits:
        if limit.paused and limit.names(flow):
            return WaitReason(_("“%s” is paused.") % _format_limit(limit), is_permanent=True)
    ahead = list(takewhile(lambda other: other.pk != lease.pk, _waiting_leases())) if usage.waiting else []
    reason = _simulate_grants([*ahead, lease], usage)
    if reason is None and lock:
        reason = _check_admission(lease, ahead)
        if reason is None and usage.buckets is not None:
            usage.buckets.take([Start(lease.pk, flow, lease.token_limit)])
    return reason


def _simulate_grants(queue: Sequence[Lease], usage: limits.LimitUsage) -> WaitReason | None:
    """Grant slots to the queue of direct calls in order, on paper only; return why the last one must wait."""
    policy = conf.policy("CONCURRENCY_POLICY")
    in_force = [limit for limit in usage.limits if limit.is_in_force]
    waiting: list[Flow] = []
    reason: WaitReason | None = None
    for lease in queue:
        flow = Flow.of(lease)
        blocked = policy.blocked(flow, usage.limits, usage.in_use)
        reason = None
        if blocked is not None:
            seconds = seconds_to_start(blocked.limit, usage.in_use)
            message = _("The rate of “%s” is used up.") if seconds else _("“%s” has no free slot.")
            reason = WaitReason(message % _format_limit(blocked.limit), seconds=seconds or None)
        elif any(limit.names(flow) and limit.names(other) for limit in in_force for other in waiting):
            reason = WaitReason(_("Another direct call is ahead of it."))
        if reason is None:
            usage.in_use.add(flow, Start(lease.pk, flow, lease.token_limit).reserved)
        else:
            waiting.append(flow)
    return reason


def _check_admission(lease: Lease, ahead: Sequence[Lease]) -> WaitReason | None:
    """Ask the admission policy, unless it admits everything.

    Waiting calls are counted as reserved: release the cost of this call and of those behind it first.
    """
    if admission.has_open_policy():
        return None
    admission_round = admission.AdmissionRound()
    ahead_ids = {other.pk for other in ahead}
    for other in _waiting_leases():
        if other.pk not in ahead_ids:
            admission_round.release_cost(other.addon_id, other.cost_units)
    verdict = admission_round.decide(leases.build_candidate(lease))
    return WaitReason(verdict.reason) if isinstance(verdict, Denied) else None


def _waiting_leases() -> Sequence[Lease]:
    waiting = leases.live_leases().filter(kind=LeaseKind.DIRECT, granted_at__isnull=True)
    return list(waiting.order_by("requested_at", "pk"))


def _format_limit(limit: Limit) -> str:
    return f"{limit.scope} {limit.key}".strip()


def _open_transaction() -> AbstractContextManager[Any]:
    """Open a transaction that commits at its end. Raise InvalidOperationError inside a transaction of the caller."""
    if db.is_in_transaction():
        raise InvalidOperationError(_("A direct call cannot wait for its turn inside a transaction of its caller."))
    return db.atomic()
