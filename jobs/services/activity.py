"""Record activities: what people, tokens, commands and code change apart from jobs, in the transaction of the change.

Services call `record`, or `record_changes` with the fields of a row before and after. Actions on jobs are job events.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

from django.core.serializers.json import DjangoJSONEncoder

from jobs.actors import Actor
from jobs.models import Action, Activity
from jobs.models.activity import OBJECT_LENGTH
from jobs.redaction import redact

Fields = Mapping[str, Any]
FIELDS_LIMIT = 16 * 1024  # bytes of JSON, of `before` and of `after`
# A change of one of these fields is an action of its own: its verb if the field is true afterwards, and if it is false.
SWITCHES = {"enabled": ("enable", "disable"), "paused": ("pause", "unpause")}


class ChangedObject(NamedTuple):
    """The object of an activity. `tenant` None: it is of all tenants."""

    id: UUID | str
    name: str
    tenant: str | None


def record(
    action: Action,
    changed: ChangedObject,
    *,
    actor: Actor,
    before: Fields | None = None,
    after: Fields | None = None,
    reason: str = "",
) -> None:
    """Record one action. To be called in the transaction of the change, which it is rolled back with.

    Of an object that is created (no `before`) or deleted (no `after`), empty fields are left out.
    """
    if before is None or after is None:
        before, after = _drop_empty(before), _drop_empty(after)
    Activity.objects.create(
        tenant=changed.tenant,
        actor_kind=actor.kind,
        actor_id=actor.id or None,
        actor_name=actor.name,
        action=action,
        object_kind=action.object_kind,
        object_id=str(changed.id),
        object_name=changed.name[:OBJECT_LENGTH],
        before=_build_document(before),
        after=_build_document(after),
        reason=reason,
    )


def record_changes(
    action: Action, changed: ChangedObject, before: Fields, after: Fields, *, actor: Actor, reason: str = ""
) -> None:
    """Record the fields that differ: switches (see SWITCHES) as actions of their own, all others as `action`.

    Nothing is recorded if no field differs.
    """
    names = [name for name in after if before.get(name) != after[name]]
    others = [name for name in names if name not in SWITCHES]
    if others:
        record(action, changed, actor=actor, before=_pick(before, others), after=_pick(after, others), reason=reason)
    for name in names:
        if name in SWITCHES:
            verb = SWITCHES[name][0 if after[name] else 1]
            switch = Action(f"{action.object_kind}.{verb}")
            record(
                switch, changed, actor=actor, before=_pick(before, [name]), after=_pick(after, [name]), reason=reason
            )


def _drop_empty(fields: Fields | None) -> Fields | None:
    if fields is None:
        return None
    return {name: value for name, value in fields.items() if value is not None and value not in ("", [], {})}


def _pick(fields: Fields, names: list[str]) -> dict[str, Any]:
    return {name: fields.get(name) for name in names}


def _build_document(fields: Fields | None) -> dict[str, Any] | None:
    """Return the fields as JSON with secrets masked. The largest ones are left out until the rest fits the limit."""
    if fields is None:
        return None
    document = {name: _to_json(value) for name, value in redact(dict(fields)).items()}
    sizes = {name: len(json.dumps({name: value})) for name, value in document.items()}
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        if sum(sizes.values()) <= FIELDS_LIMIT:
            break
        document[name] = {"truncated": True, "bytes": sizes[name]}
        sizes[name] = len(json.dumps({name: document[name]}))
    return document


def _to_json(value: Any) -> Any:
    return json.loads(json.dumps(value, cls=DjangoJSONEncoder))
