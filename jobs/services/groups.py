"""Submit groups of jobs and act on them: `group([generate.s(topic="a"), …], mode="sequential").enqueue()`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Count, QuerySet
from django.utils.translation import gettext as _

from jobs import db
from jobs.actors import PYTHON, Actor
from jobs.engine import groups, lifecycle
from jobs.engine.insert import insert_jobs
from jobs.engine.job_spec import JobSpec
from jobs.engine.sql.insert import KeyTaken
from jobs.errors import IdempotencyKeyReused, InvalidInput, NotFound
from jobs.models import Action, FailureMode, GroupMode, Job, JobGroup
from jobs.models.job import JobQuerySet
from jobs.registry import GroupMember
from jobs.services import activity, job_spec
from jobs.states import Status
from jobs.validation import fields

GroupId = UUID | str
MEMBER_LIMIT = 10_000
RECORDED_FIELDS = ("status", "cancel_requested", "round")  # of an activity


@dataclass(frozen=True)
class GroupSpec:
    """A group that is not submitted yet."""

    members: tuple[Any, ...]
    options: Mapping[str, Any]

    def enqueue(self, *, actor: Actor = PYTHON) -> JobGroup:
        return create(self.members, actor=actor, **self.options)


def group(
    members: Iterable[Any],
    *,
    mode: str = "parallel",
    on_failure: str | None = None,
    then: Any = None,
    name: str = "",
    tenant: str = "default",
) -> GroupSpec:
    """Return a group to submit. Members are results of `handler.s(…)`, or mappings as for `enqueue_many`.

    `then` is the final job, which starts after all members have ended. `on_failure` is for sequences and final jobs,
    and `stop` unless given.
    """
    options = {"mode": mode, "on_failure": on_failure, "then": then, "name": name, "tenant": tenant}
    return GroupSpec(tuple(members), options)


def create(
    members: Sequence[Any],
    *,
    mode: Any = "parallel",
    on_failure: Any = None,
    then: Any = None,
    name: Any = "",
    tenant: str = "default",
    actor: Actor = PYTHON,
    limit: int = MEMBER_LIMIT,
) -> JobGroup:
    """Submit a group, all or nothing, in the caller's transaction. The final job, `then`, takes its last place.

    Members may have idempotency keys: submitting the same group again returns the existing group.
    """
    new = JobGroup(
        tenant=fields.parse_tenant(tenant),
        name=fields.parse_text(name, "name", max_length=200, allow_empty=True) if name else "",
        mode=fields.parse_choice(mode, "mode", GroupMode.values),
    )
    if not isinstance(members, list | tuple):
        raise InvalidInput("jobs", _("must be a list"), "list_type")
    if not members:
        raise InvalidInput("jobs", _("must have at least one entry"), "too_short")
    if len(members) > limit:
        raise InvalidInput("jobs", _("has more than %d entries") % limit, "too_long")
    items = [_parse_member(["jobs", index], member, new.tenant) for index, member in enumerate(members)]
    specs = job_spec.build_specs(items)
    if then is not None:
        new.then_index = len(specs)
        specs.append(_build_final_spec(then, new.tenant))
    new.on_failure = _parse_on_failure(new, on_failure)
    for index, spec in enumerate(specs):
        if spec.unique_key is not None:  # a member that is another job, or none, would leave a hole in the group
            loc = ["then"] if index == new.then_index else ["jobs", index]
            raise InvalidInput([*loc, "unique_key"], _("cannot be used for members of a group"), "no_groups")
        spec.group_id, spec.group_index = new.pk, index
        if (index and new.mode == GroupMode.SEQUENTIAL) or index == new.then_index:  # it waits for those before it
            spec.status = Status.PENDING.value
    submitted = _find_existing_group(new, specs) or _insert_group(new, specs, actor) or _find_existing_group(new, specs)
    if submitted is None:
        raise IdempotencyKeyReused(_("A job with an idempotency key of this group is being rolled back; try again."))
    return submitted


def cancel(group_id: GroupId, *, reason: str = "", actor: Actor = PYTHON, tenant: str | None = None) -> JobGroup:
    return _apply_action(Action.GROUP_CANCEL, lifecycle.cancel_group, get(group_id, tenant=tenant), reason, actor)


def retry(group_id: GroupId, *, reason: str = "", actor: Actor = PYTHON, tenant: str | None = None) -> JobGroup:
    """Retry the members that failed or were cancelled, in their order."""
    return _apply_action(Action.GROUP_RETRY, lifecycle.retry_group, get(group_id, tenant=tenant), reason, actor)


def get(group_id: GroupId, *, tenant: str | None = None) -> JobGroup:
    try:
        row = filter_by_tenant(tenant).filter(pk=fields.parse_id(group_id)).first()
    except NotFound:  # a malformed id
        row = None
    if row is None:
        raise NotFound(_("There is no group %s.") % str(group_id)[:100])
    return row


def filter_by_tenant(tenant: str | None) -> QuerySet[JobGroup]:
    """Return the groups of one tenant, or of all, newest first."""
    rows = JobGroup.objects.order_by("-pk")
    return rows if tenant is None else rows.filter(tenant=tenant)


def get_latest_attempts(group_id: UUID) -> JobQuerySet:
    """Return the latest attempt of each member, in the order of the members."""
    return Job.objects.filter(group_id=group_id).latest_attempts().order_by("group_index")


def count_progress(group_ids: Iterable[UUID]) -> dict[UUID, dict[str, Any]]:
    """Count the members of each group, in total and by status, in one query."""
    progress: dict[UUID, dict[str, Any]] = {group_id: {"total": 0, "by_status": {}} for group_id in group_ids}
    counted = Job.objects.filter(group_id__in=list(progress)).latest_attempts().order_by()
    for group_id, status, jobs in counted.values_list("group_id", "status").annotate(Count("pk")):
        progress[group_id]["total"] += jobs
        progress[group_id]["by_status"][status] = jobs
    return progress


def _apply_action(
    action: Action, change: Callable[..., JobGroup], group: JobGroup, reason: str, actor: Actor
) -> JobGroup:
    """Finish what earlier actions have left, then begin this one; its further batches follow the commit.

    In a transaction of the caller it waits for the earlier ones: their batches would be part of that transaction.
    """
    reason = fields.parse_reason(reason)
    if not db.is_in_transaction():
        groups.run_actions(group.pk)
    with db.atomic():
        _record_action(action, group, change(group.pk, actor=actor, reason=reason), actor, reason)
    return get(group.pk)


def _record_action(action: Action, before: JobGroup, after: JobGroup, actor: Actor, reason: str) -> None:
    names = [name for name in RECORDED_FIELDS if getattr(before, name) != getattr(after, name)]
    if action == Action.GROUP_CANCEL and not names:  # a repeated request
        return
    old, new = ({name: getattr(row, name) for name in names} for row in (before, after))
    group = activity.ChangedObject(after.pk, str(after), after.tenant)
    activity.record(action, group, actor=actor, before=old, after=new, reason=reason)


def _build_final_spec(then: Any, tenant: str) -> JobSpec:
    item = _parse_member(["then"], then, tenant)
    if not isinstance(item, Mapping):
        is_group = isinstance(item, GroupSpec)
        message = _("must be one job; groups cannot be nested") if is_group else _("must be an object")
        raise InvalidInput("then", message, "dict_type")
    try:
        return job_spec.build_spec(item)
    except InvalidInput as error:
        raise error.with_prefix("then") from None


def _parse_member(loc: list[str | int], member: Any, tenant: str) -> Any:
    item = member.to_item() if isinstance(member, GroupMember) else member
    if not isinstance(item, Mapping):
        return item  # `build_specs` raises the error
    if "tenant" in item:
        raise InvalidInput([*loc, "tenant"], _("is the group's"), "extra_forbidden")
    return {**item, "tenant": tenant}


def _insert_group(new: JobGroup, specs: list[JobSpec], actor: Actor) -> JobGroup | None:
    """Insert the group and its jobs; return None and change nothing if another job has one of the keys."""
    try:
        insert_jobs(specs, actor=actor, group=new)
    except KeyTaken:
        return None
    return get(new.pk)


def _find_existing_group(new: JobGroup, specs: list[JobSpec]) -> JobGroup | None:
    """Return the group whose members have all these keys and the same bodies; None if no job has one of the keys."""
    keyed_specs = [spec for spec in specs if spec.idempotency_key is not None]
    keys = {str(spec.idempotency_key): spec for spec in keyed_specs}
    if len(keys) < len(keyed_specs):
        raise InvalidInput("jobs", _("two members share an idempotency key"), "duplicate_key")
    jobs = list(Job.objects.filter(tenant=new.tenant, idempotency_key__in=list(keys)) if keys else ())
    if not jobs:
        return None
    existing = jobs[0].group
    if existing is None or len(jobs) < len(specs) or not _is_same_submission(new, existing, keys, jobs):
        raise IdempotencyKeyReused(_("An idempotency key of this group was used for another submission."))
    return existing


def _is_same_submission(new: JobGroup, existing: JobGroup, keys: dict[str, JobSpec], jobs: list[Job]) -> bool:
    """Return whether all members are the same. Members without a key cannot be compared: then return False."""
    member_count = get_latest_attempts(existing.pk).count()
    has_same_rule = existing.on_failure == new.on_failure or not new.uses_on_failure
    if (existing.mode, existing.then_index) != (new.mode, new.then_index):
        return False
    if not has_same_rule or len(jobs) != member_count:
        return False
    for job in jobs:
        spec = keys[str(job.idempotency_key)]
        expected = (existing.pk, spec.group_index, spec.idempotency_hash)
        if (job.group_id, job.group_index, job.idempotency_hash) != expected:
            return False
    return True


def _parse_on_failure(group: JobGroup, value: Any) -> str:
    """Return the rule of a new group. One that has no effect in its mode is refused."""
    if value is None:
        return FailureMode.STOP if group.uses_on_failure else FailureMode.CONTINUE
    choice = fields.parse_choice(value, "on_failure", FailureMode.values)
    if not group.uses_on_failure and choice != FailureMode.CONTINUE:
        message = _("“%s” has no effect in a parallel group without a final job: no member waits for another")
        raise InvalidInput("on_failure", message % choice, "no_effect")
    return choice
