"""Jobs that belong together: `group([generate.s(topic="a"), …], mode="sequential").enqueue()`, and their verbs.

A side door beside `services`: parse, then one verb of the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Count, QuerySet
from django.utils.translation import gettext as _

from jobs import db
from jobs.actors import PYTHON, Actor
from jobs.engine import lifecycle
from jobs.engine.insert import insert_jobs
from jobs.engine.job_spec import JobSpec
from jobs.errors import IdempotencyKeyReused, InvalidInput, NotFound
from jobs.models import GroupMode, Job, JobGroup, OnFailure
from jobs.models.job import JobQuerySet
from jobs.registry import GroupMember
from jobs.services import job_spec
from jobs.states import Status
from jobs.validation import fields

GroupId = UUID | str
MEMBER_LIMIT = 10_000


@dataclass(frozen=True)
class GroupSpec:
    """A group that is still to be submitted."""

    members: tuple[Any, ...]
    options: Mapping[str, Any]

    def enqueue(self, *, actor: Actor = PYTHON) -> JobGroup:
        return create(self.members, actor=actor, **self.options)


def group(
    members: Iterable[Any], *, mode: str = "parallel", on_failure: str = "stop", name: str = "", tenant: str = "default"
) -> GroupSpec:
    """Members are what `handler.s(…)` makes, or mappings as for `enqueue_many`; for each the same."""
    return GroupSpec(tuple(members), {"mode": mode, "on_failure": on_failure, "name": name, "tenant": tenant})


def create(
    members: Sequence[Any],
    *,
    mode: Any = "parallel",
    on_failure: Any = "stop",
    name: Any = "",
    tenant: str = "default",
    actor: Actor = PYTHON,
    most: int = MEMBER_LIMIT,
) -> JobGroup:
    """Submit a group, all or nothing, in the caller's transaction.

    Members may have idempotency keys: the same group submitted again is the group that the first one made.
    """
    new = JobGroup(
        tenant=fields.parse_tenant(tenant),
        name=fields.parse_text(name, "name", max_length=200, allow_empty=True) if name else "",
        mode=_parse_choice(GroupMode.values, mode, "mode"),
        on_failure=_parse_choice(OnFailure.values, on_failure, "on_failure"),
    )
    if not isinstance(members, list | tuple):
        raise InvalidInput("jobs", _("must be a list"), "list_type")
    if not members:
        raise InvalidInput("jobs", _("must have at least one entry"), "too_short")
    if len(members) > most:
        raise InvalidInput("jobs", _("has more than %d entries") % most, "too_long")
    specs = job_spec.build_specs([_parse_member(index, member, new.tenant) for index, member in enumerate(members)])
    # Give each job its place in the group; in a sequence all but the first wait.
    for place, spec in enumerate(specs):
        spec.group_id, spec.group_index = new.pk, place
        if place and new.mode == GroupMode.SEQUENTIAL:
            spec.status = Status.PENDING.value
    known = _find_existing_group(new, specs) or _insert_group(new, specs, actor) or _find_existing_group(new, specs)
    if known is None:
        raise IdempotencyKeyReused(_("A job with an idempotency key of this group is being taken back; try again."))
    return known


def cancel(group_id: GroupId, *, reason: str = "", actor: Actor = PYTHON, tenant: str | None = None) -> JobGroup:
    return lifecycle.cancel_group(get(group_id, tenant=tenant).pk, actor=actor, reason=fields.parse_reason(reason))


def retry(group_id: GroupId, *, reason: str = "", actor: Actor = PYTHON, tenant: str | None = None) -> JobGroup:
    """Run again, in order, every place that did not end well."""
    return lifecycle.retry_group(get(group_id, tenant=tenant).pk, actor=actor, reason=fields.parse_reason(reason))


def get(group_id: GroupId, *, tenant: str | None = None) -> JobGroup:
    try:
        found = filter_by_tenant(tenant).filter(pk=fields.parse_id(group_id)).first()
    except NotFound:  # an id that cannot be one
        found = None
    if found is None:
        raise NotFound(_("There is no group %s.") % str(group_id)[:100])
    return found


def filter_by_tenant(tenant: str | None) -> QuerySet[JobGroup]:
    """The groups of one tenant, or all, newest first."""
    found = JobGroup.objects.order_by("-pk")
    return found if tenant is None else found.filter(tenant=tenant)


def get_latest_attempts(group_id: UUID) -> JobQuerySet:
    """The job that counts in each place: the last of its retries."""
    return Job.objects.filter(group_id=group_id).latest_attempts().order_by("group_index")


def count_progress(group_ids: Iterable[UUID]) -> dict[UUID, dict[str, Any]]:
    """Of each group, how many places there are and how many of them are in which state, in one query."""
    found: dict[UUID, dict[str, Any]] = {group_id: {"total": 0, "by_status": {}} for group_id in group_ids}
    counted = Job.objects.filter(group_id__in=list(found)).latest_attempts().order_by()
    for group_id, status, jobs in counted.values_list("group_id", "status").annotate(Count("pk")):
        found[group_id]["total"] += jobs
        found[group_id]["by_status"][status] = jobs
    return found


def _parse_member(index: int, member: Any, tenant: str) -> Any:
    item = member.to_item() if isinstance(member, GroupMember) else member
    if not isinstance(item, Mapping):
        return item  # the gate says what is wrong with it
    if "tenant" in item:
        raise InvalidInput(["jobs", index, "tenant"], _("is the group's"), "extra_forbidden")
    return {**item, "tenant": tenant}


def _insert_group(new: JobGroup, specs: list[JobSpec], actor: Actor) -> JobGroup | None:
    """None, and nothing is changed, if somebody else was first with a key."""
    try:
        with db.atomic():
            new.save(using=db.alias(), force_insert=True)
            if len(insert_jobs(specs, actor=actor)) < len(specs):
                raise _KeyTaken
    except _KeyTaken:
        return None
    return get(new.pk)


class _KeyTaken(Exception):
    pass


def _find_existing_group(new: JobGroup, specs: list[JobSpec]) -> JobGroup | None:
    """The group that has all these keys in the same places, each for the same submission; None if no key is taken."""
    keyed = [spec for spec in specs if spec.idempotency_key is not None]
    keys = {str(spec.idempotency_key): spec for spec in keyed}
    if len(keys) < len(keyed):
        raise InvalidInput("jobs", _("two members share an idempotency key"), "duplicate_key")
    taken = list(Job.objects.filter(tenant=new.tenant, idempotency_key__in=list(keys)) if keys else ())
    if not taken:
        return None
    known = taken[0].group
    if known is None or len(taken) < len(specs) or not _is_same_submission(new, known, keys, taken):
        raise IdempotencyKeyReused(_("An idempotency key of this group was used for another submission."))
    return known


def _is_same_submission(new: JobGroup, known: JobGroup, keys: dict[str, JobSpec], taken: list[Job]) -> bool:
    """A member without a key cannot be told from another: then it is not."""
    places = get_latest_attempts(known.pk).count()
    if (known.mode, known.on_failure) != (new.mode, new.on_failure) or len(taken) != places:
        return False
    for job in taken:
        spec = keys[str(job.idempotency_key)]
        place = (job.group_id, job.group_index, job.idempotency_hash)
        if place != (known.pk, spec.group_index, spec.idempotency_hash):
            return False
    return True


def _parse_choice(words: Sequence[str], value: Any, field: str) -> str:
    word = fields.parse_text(value, field)
    if word not in words:
        raise InvalidInput(field, _("must be one of %s") % ", ".join(words), "enum")
    return word
