"""The remote worker protocol: submit an intent, list offered jobs, start one, renew its lease, report its result.

Field and state names are those of the protocol (payload, DONE, …).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from django.utils.translation import gettext as _

from jobs.actors import Actor
from jobs.engine.executors.run import ERROR_LENGTH
from jobs.engine.maintenance import runner
from jobs.engine.remote import leases, offers, starts
from jobs.engine.remote.leases import HeartbeatReport, LogLine, RemoteOutcome
from jobs.engine.remote.offers import has_recent_poller as has_recent_poller
from jobs.engine.remote.starts import RemoteSlot
from jobs.engine.remote.starts import RemoteStart as RemoteStart  # returned by `find_starts`
from jobs.engine.remote.starts import find_starts as find_starts
from jobs.engine.slots import admission_leases
from jobs.engine.slots.admission_leases import GrantedLease
from jobs.errors import InvalidInput, NotFound, ReportWithComplete, Superseded, WrongState
from jobs.models import Job
from jobs.outcomes import Completed, Failed, Skipped, Snoozed, Stopped
from jobs.policies.admission import Denied
from jobs.services import job_spec
from jobs.services import jobs as job_services
from jobs.states import Status, StopMode, allowed_actions
from jobs.validation import fields as validation
from jobs.validation.json import INT_MAX
from jobs.validation.retry_policy import parse_delay
from jobs.validation.sanitize import sanitize_json, sanitize_text

# The states of the protocol: three names differ from ours.
RENAMED_STATES = {Status.PENDING: "QUEUED", Status.COMPLETED: "DONE", Status.CANCELLED: "CANCELED"}
REMOTE_STATES = {status: RENAMED_STATES.get(status, str(status)) for status in Status}
FINAL_STATES = ("DONE", "FAILED", "SKIPPED", "SNOOZED", "CANCELED", "PAUSED")
STOP_MODES = {"CANCELED": StopMode.CANCEL, "PAUSED": StopMode.PAUSE}
LINE_LIMIT = 1000
LEVEL_LENGTH = 16
INT32 = 2**31
_parse_long_text = partial(validation.parse_text, max_length=INT_MAX, allow_empty=True)  # the body has its own limit
_parse_level = partial(validation.parse_text, max_length=LEVEL_LENGTH, single_line=True)
FIELD_NAMES = {"payload": "params", "earliest_start_at": "not_before"}
REMOTE_FIELD_NAMES = {name: remote_name for remote_name, name in FIELD_NAMES.items()}
NOT_STARTED = (Status.PENDING, Status.QUEUED, Status.DISPATCHING)
SLOT_LIMIT, EARLIER_OFFER_LIMIT = 10_000, 500
PID_LIMIT = 2**32
HAND_BACK_REASON = "returned to the queue by its worker"
ADMISSION_FIELDS = ("cost_units", "priority", "constraints", "expected_duration_sec")
ADMISSION_VALIDATORS = {
    "addon_id": validation.parse_identifier,
    "job_type": validation.parse_identifier,
    **{name: job_spec.VALIDATORS[name] for name in ADMISSION_FIELDS},
}


class HeartbeatResult(NamedTuple):
    """When the lease expires, and whether the job must stop."""

    expires_at: datetime
    cancel_requested: bool = False
    cancel_mode: str = ""


def submit(body: Mapping[str, Any], *, actor: Actor) -> job_services.SubmitResult:
    """Submit a job intent. The payload is validated only if the job type is registered here."""
    fields = {FIELD_NAMES.get(name, name): value for name, value in body.items()}
    name = validation.parse_identifier(fields.pop("job_type", None), "job_type")
    validation.parse_identifier(fields.get("addon_id"), "addon_id")
    params, key = fields.pop("params", None), fields.pop("idempotency_key", None)
    handler = job_spec.get_handler(name, is_remote=True)
    try:
        spec = job_spec.SpecBuilder(name, fields, handler=handler).build(params, key)
        return job_services.submit_spec(spec, actor=actor)
    except InvalidInput as error:
        raise _rename_error_fields(error) from None


def cancel(job_id: UUID, *, reason: str, actor: Actor) -> None:
    """Cancel the latest attempt of the job's retry chain. It may get a retry meanwhile: then cancel that."""
    latest: UUID | None = job_services.find_latest_attempt(job_id)
    while latest is not None:
        try:
            job_services.cancel(latest, reason=reason, actor=actor)
            return
        except Superseded as error:
            latest = error.tail_id


def list_dispatchable(addons: Sequence[str] | None, *, tenant: str | None, limit: int) -> list[UUID]:
    """Offer up to `limit` jobs of these addons; None: of all, and of none. Return their ids, then the earlier offers'.

    Another worker of the addon is about to start the earlier offers, so they come last.
    """
    runner.run_before_offers()
    offers.record_poll(addons, tenant, limit)
    new = offers.offer_jobs(addons, tenant, limit)
    earlier = offers.offered_jobs(addons, tenant).exclude(pk__in=new).values_list("pk", flat=True)
    return [*new, *earlier[:EARLIER_OFFER_LIMIT]]


def make_offers(*, tenant: str | None) -> int:
    """Make offers to all addons that poll, without waiting for their next poll. Return the number of offers."""
    runner.run_before_offers()
    return offers.offer_to_pollers(tenant)


def start(job_id: UUID, api_token: UUID, body: Mapping[str, Any], *, token_name: str) -> Job:
    """Start an offered job in a slot of a remote worker. The events of the worker name its token, too."""
    holder = RemoteSlot(
        api_token,
        validation.parse_identifier(body.get("worker_id"), "worker_id"),
        _parse_optional(body, "slot", partial(validation.parse_integer, minimum=0, maximum=SLOT_LIMIT - 1)) or 0,
        token_name,
    )
    pid = _parse_optional(body, "pid", partial(validation.parse_integer, minimum=1, maximum=PID_LIMIT))
    host = _parse_optional(body, "host", validation.parse_identifier)
    return leases.start_job(job_id, holder, pid=pid, host=host)


def heartbeat(lease_id: Any, api_token: UUID, body: Mapping[str, Any]) -> HeartbeatResult:
    """Renew a lease: of a job, with its progress; or of an admission without a job."""
    parsed_id, report = validation.parse_id(lease_id), _parse_heartbeat(body)
    if (start := starts.find_start(parsed_id)) is None:
        return HeartbeatResult(admission_leases.renew_lease(parsed_id, owner=_build_owner(api_token)))
    job = leases.renew_job_lease(_require_owner(start, api_token), report)
    assert job.lease_expires_at is not None
    if leases.is_over_token_limit(job):  # then the job must stop in any case
        return HeartbeatResult(job.lease_expires_at, True, str(StopMode.CANCEL))
    return HeartbeatResult(job.lease_expires_at, job.cancel_requested, job.cancel_mode)


def complete(job_id: UUID, api_token: UUID, body: Mapping[str, Any]) -> None:
    """Report the result of a job; the same report again changes nothing."""
    try:
        start = starts.find_start(validation.parse_id(validation.parse_text(body.get("lease_id"), "lease_id")))
        if start is None or start.job_id != job_id:
            raise NotFound(_("There is no such lease."))
        start = _require_owner(start, api_token)
    except NotFound:
        job = job_services.get(job_id)
        if job.status in NOT_STARTED:
            allowed = allowed_actions(job_services.get_facts(job))
            raise WrongState(f"Job {job_id} was not started.", status=job.status, allowed=allowed) from None
        raise
    state = validation.parse_choice(body.get("state"), "state", FINAL_STATES)
    leases.complete_job(start, _parse_outcome(state, body), stop_mode=STOP_MODES.get(state))


def release(lease_id: Any, api_token: UUID, body: Mapping[str, Any]) -> None:
    """Release a lease: of an admission; or of a job, which returns to the queue (`hand_back`)."""
    parsed_id, hand_back = validation.parse_id(lease_id), _parse_optional(body, "hand_back", validation.parse_boolean)
    if (start := starts.find_start(parsed_id)) is None:
        return admission_leases.release_lease(parsed_id, owner=_build_owner(api_token))
    start = _require_owner(start, api_token)
    if not hand_back:
        raise ReportWithComplete(_("This is the lease of a job: report the job's result, or hand it back."))
    return leases.hand_back_job(start, reason=HAND_BACK_REASON)


def request_admission(body: Mapping[str, Any], api_token: UUID, *, tenant: str) -> GrantedLease | Denied:
    """Request a lease for work that is not a job of this scheduler."""
    fields = {**body, "addon_id": body.get("addon_id") or "", "job_type": body.get("job_type") or ""}
    clean = {name: ADMISSION_VALIDATORS[name](value, name) for name, value in fields.items() if value is not None}
    return admission_leases.request_lease(owner=_build_owner(api_token), tenant=tenant, **clean)


def _build_owner(api_token: UUID) -> str:
    """Return the owner of a lease without a job: the API token."""
    return f"r:{api_token}"


def _require_owner(start: RemoteStart, api_token: UUID) -> RemoteStart:
    """Return `start` if it belongs to the API token, else raise NotFound."""
    if start.holder.api_token != api_token:
        raise NotFound(_("There is no such lease."))
    return start


def _rename_error_fields(error: InvalidInput) -> InvalidInput:
    def rename(loc: list[Any]) -> list[Any]:
        return [REMOTE_FIELD_NAMES.get(loc[0], loc[0]), *loc[1:]] if loc else loc

    return type(error).from_errors([{**detail, "loc": rename(detail["loc"])} for detail in error.errors])


def _parse_optional(body: Mapping[str, Any], name: str, parse: Callable[..., Any]) -> Any:
    """Validate a field; return None if it is null or missing."""
    value = body.get(name)
    return None if value is None else parse(value, name)


def _parse_heartbeat(body: Mapping[str, Any]) -> HeartbeatReport:
    message = _parse_optional(body, "message", _parse_long_text)
    return HeartbeatReport(
        progress=_parse_optional(body, "progress", partial(validation.parse_number, minimum=0, maximum=1)),
        message=None if message is None else sanitize_text(message, ERROR_LENGTH),
        tokens_used=_parse_optional(body, "tokens_used", partial(validation.parse_integer, minimum=0)),
        checkpoint=_parse_optional(body, "checkpoint", validation.parse_json_value),
        lines=_parse_optional(body, "logs", _parse_lines) or (),
    )


def _parse_lines(value: Any, field: str) -> list[LogLine]:
    if not isinstance(value, list):
        raise InvalidInput(field, _("must be a list"), "list_type")
    if len(value) > LINE_LIMIT:
        raise InvalidInput(field, _("has more than %d entries") % LINE_LIMIT, "too_long")
    lines: list[LogLine] = []
    try:
        for line in value:
            if not isinstance(line, dict):
                raise InvalidInput([], _("must be an object"), "dict_type")
            for name in line:
                if name not in ("level", "message", "at"):
                    raise InvalidInput(sanitize_text(name, 100), _("is not a known field"), "extra_forbidden")
            level = _parse_optional(line, "level", _parse_level) or "INFO"
            message = _parse_long_text(line.get("message"), "message")
            at = _parse_optional(line, "at", validation.parse_time)
            lines.append((level, sanitize_text(message, ERROR_LENGTH), at))
    except InvalidInput as error:
        raise error.with_prefix(field, len(lines)) from None
    return lines


def _parse_outcome(state: str, body: Mapping[str, Any]) -> RemoteOutcome:
    """Parse a result. Values are sanitized as those of handlers are: no result is lost because of them.

    The engine masks secrets in texts, and then cuts them.
    """
    error = sanitize_text(_parse_optional(body, "error", _parse_long_text) or "", ERROR_LENGTH)
    exit_code = _parse_optional(body, "exit_code", partial(validation.parse_integer, minimum=-INT32, maximum=INT32 - 1))
    artifacts = body.get("artifacts")
    if artifacts is not None and not isinstance(artifacts, dict):
        raise InvalidInput("artifacts", _("must be an object"), "dict_type")
    artifacts = sanitize_json(artifacts or {})
    delay_sec = _parse_optional(body, "delay_sec", parse_delay)
    if delay_sec is not None and state not in ("FAILED", "SNOOZED"):
        raise InvalidInput("delay_sec", _("is for the states FAILED and SNOOZED"), "no_effect")
    if state == "SNOOZED":
        if delay_sec is None:
            raise InvalidInput("delay_sec", _("is required for the state SNOOZED"), "missing")
        return Snoozed(delay_sec, error, artifacts)
    if state == "DONE":
        return Completed(artifacts, exit_code or 0)
    if state == "SKIPPED":
        return Skipped(error, artifacts)
    if state == "FAILED":
        reason = next(iter(error.strip().splitlines()), "") or "failed"
        code = 1 if exit_code is None else exit_code
        return Failed(error or reason, reason, exit_code=code, artifacts=artifacts, retry_in=delay_sec)
    return Stopped(artifacts)
