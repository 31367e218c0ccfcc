"""Remote workers, as they see us: submit an intent, ask what may start, start it, keep the lease, say how it ended.

A side door beside `services`: parse, then one verb of the engine. The words are those of addons (payload, DONE, …).
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, NamedTuple
from uuid import UUID

from django.utils.translation import gettext as _

from jobs import parsing, services, submission
from jobs.actors import Actor
from jobs.engine import admission, housekeeping, offers, remote, starts
from jobs.engine.admission import Granted
from jobs.engine.facts import facts_of
from jobs.engine.moves import get
from jobs.engine.starts import Holder, Start
from jobs.errors import InvalidInput, NotFound, ReportWithComplete, UnknownJobType, WrongState
from jobs.models import Job
from jobs.policies.admission import Denied
from jobs.registry import Handler, Options, registry
from jobs.remote_words import ENDS, WANTED, beat, optional, word
from jobs.states import Status, StopMode, allowed_actions

OUR_WORDS = {"payload": "params", "earliest_start_at": "not_before"}
THEIR_WORDS = {ours: theirs for theirs, ours in OUR_WORDS.items()}
NOT_STARTED = (Status.PENDING, Status.QUEUED, Status.DISPATCHING)
MOST_SLOTS, MOST_BEFORE = 10_000, 500
MOST_PID = 2**32
HANDED_BACK = "handed back by its worker"
ASKED = ("cost_units", "priority", "constraints", "expected_duration_sec")
REQUESTED = {
    "addon_id": parsing.identifier,
    "job_type": parsing.identifier,
    **{name: submission.GATES[name] for name in ASKED},
}


class Kept(NamedTuple):
    """What a heartbeat is answered."""

    expires_at: datetime
    cancel_requested: bool = False
    cancel_mode: str = ""


def submit(said: Mapping[str, Any], *, actor: Actor) -> services.SubmitResult:
    """Keep a job intent. A type that is not registered here is for remote workers: its payload is theirs to judge."""
    fields = {OUR_WORDS.get(name, name): value for name, value in said.items()}
    name = parsing.identifier(fields.pop("job_type", None), "job_type")
    parsing.identifier(fields.get("addon_id"), "addon_id")
    params, key = fields.pop("params", None), fields.pop("idempotency_key", None)
    try:
        spec = submission.SpecBuilder(name, fields, handler=_handler(name)).build(params, key)
        return services.submit_spec(spec, actor=actor)
    except InvalidInput as error:
        raise _in_their_words(error) from None


def dispatchable(addon_id: str, *, tenant: str | None, most: int) -> list[Job]:
    """What an addon may start: up to so many that are offered now, and after them what it was offered before.

    In this order, because those before are somebody's who is about to start them; only if nothing else is there do
    the addon's workers try for each other's.
    """
    housekeeping.before_offers()
    offers.note_poll(addon_id, tenant, most)
    new = offers.offer(addon_id, tenant, most)
    before = offers.offered(addon_id, tenant).exclude(pk__in=[job.pk for job in new])
    return [*new, *before[:MOST_BEFORE]]


def kick(*, tenant: str | None) -> int:
    """Make offers to every addon that is there, without waiting for its next poll. Returns how many were made."""
    housekeeping.before_offers()
    return offers.kick(tenant)


def start(job_id: UUID, api_token: UUID, said: Mapping[str, Any]) -> Job:
    holder = Holder(
        api_token,
        parsing.identifier(said.get("worker_id"), "worker_id"),
        optional(said, "slot", partial(parsing.integer, minimum=0, maximum=MOST_SLOTS - 1)) or 0,
    )
    pid = optional(said, "pid", partial(parsing.integer, minimum=1, maximum=MOST_PID))
    host = optional(said, "host", parsing.identifier)
    return remote.start(job_id, holder, pid=pid, host=host)


def heartbeat(lease_id: Any, api_token: UUID, said: Mapping[str, Any]) -> Kept:
    """Renew a lease: a job's, or one that counts in admission only and has nothing else to say."""
    known, news = parsing.job_id(lease_id), beat(said)
    if (begun := starts.find(known)) is None:
        return Kept(admission.heartbeat(known, owner=_applicant(api_token)))
    job = remote.beat(_own(begun, api_token), news)
    assert job.lease_expires_at is not None
    if remote.is_over_budget(job):  # then it must stop, whatever else was asked
        return Kept(job.lease_expires_at, True, str(StopMode.CANCEL))
    return Kept(job.lease_expires_at, job.cancel_requested, job.cancel_mode)


def complete(job_id: UUID, api_token: UUID, said: Mapping[str, Any]) -> None:
    """Say how a job ended; said again, nothing changes."""
    try:
        begun = starts.find(parsing.job_id(parsing.text(said.get("lease_id"), "lease_id")))
        if begun is None or begun.job_id != job_id:
            raise NotFound(_("There is no such lease."))
        begun = _own(begun, api_token)
    except NotFound:
        job = get(job_id)
        if job.status in NOT_STARTED:
            allowed = allowed_actions(facts_of(job))
            raise WrongState(f"Job {job_id} was not started.", status=job.status, allowed=allowed) from None
        raise
    state = said.get("state")
    if state not in ENDS:
        raise InvalidInput("state", _("must be one of %s") % ", ".join(ENDS), "enum")
    remote.complete(begun, word(state, said), wanted=WANTED.get(state))


def release(lease_id: Any, api_token: UUID, said: Mapping[str, Any]) -> None:
    """Give a lease up. A job's ends with its job, unless the job is handed back."""
    known, hand_back = parsing.job_id(lease_id), optional(said, "hand_back", parsing.boolean)
    if (begun := starts.find(known)) is None:
        return admission.release(known, owner=_applicant(api_token))
    mine = _own(begun, api_token)
    if not hand_back:
        raise ReportWithComplete(_("This is the lease of a job: say how the job ended, or hand it back."))
    return remote.hand_back(mine, reason=HANDED_BACK)


def request(said: Mapping[str, Any], api_token: UUID, *, tenant: str) -> Granted | Denied:
    """Ask to do some work that has no job here."""
    fields = {**said, "addon_id": said.get("addon_id") or "", "job_type": said.get("job_type") or ""}
    clean = {name: REQUESTED[name](value, name) for name, value in fields.items() if value is not None}
    return admission.request(owner=_applicant(api_token), tenant=tenant, **clean)


def _applicant(api_token: UUID) -> str:
    """Who holds a lease without a job: whoever has the API token."""
    return f"r:{api_token}"


def _own(begun: Start, api_token: UUID) -> Start:
    """A lease is nobody's business but the API token's that started with it."""
    if begun.holder.api_token != api_token:
        raise NotFound(_("There is no such lease."))
    return begun


def _handler(name: str) -> Handler[..., Any]:
    try:
        return registry.get(name)
    except UnknownJobType:
        return _opaque(name)


def _anything(**payload: Any) -> None:
    """What a type takes that only remote workers know."""


_ANY_TYPE: Handler[..., Any] = Handler(_anything, None, Options(remote=True))


@lru_cache(maxsize=1024)
def _opaque(name: str) -> Handler[..., Any]:
    handler = copy(_ANY_TYPE)
    handler.name = name
    return handler


def _in_their_words(error: InvalidInput) -> InvalidInput:
    def renamed(loc: list[Any]) -> list[Any]:
        return [THEIR_WORDS.get(loc[0], loc[0]), *loc[1:]] if loc else loc

    return type(error).of([{**each, "loc": renamed(each["loc"])} for each in error.errors])
