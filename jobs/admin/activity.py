"""The screen of activities: what people, tokens, commands and code did, to jobs and to all else; and their rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import UUID

from django.apps import apps
from django.contrib.admin import AdminSite, ModelAdmin
from django.db.models import Model, Q
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import ids
from jobs.admin.base import ReadOnlyAdmin, can_view_payload
from jobs.admin.columns import column, computed_column, link, short_id
from jobs.admin.filters import choice_filter, parse_moment
from jobs.admin.formatting import (
    format_actor,
    format_exact_time,
    format_first_line,
    format_json,
    isolate_text,
    json_block,
    text_block,
)
from jobs.admin.screens import APP, latest_activity_id, latest_event_id, render, screen
from jobs.models import Action, Activity, ConcurrencyLimit, Target
from jobs.models.activity import ALL_ACTIONS, JOB, OBJECT_KINDS
from jobs.models.run import ACTOR_CHOICES, describe_actor
from jobs.serializers import hide_payload_fields
from jobs.services.activity_list import SCAN_LIMIT, ActivityFilters, Entry, Position, read_page

ROWS_SHOWN = 100
VALUE_LENGTH = 200  # characters of one value in the list; a row's page has all of it
FILTER_NAMES = ("actor_kind", "actor", "verb", "object_kind", "object_id", "tenant", "since", "until")
MODELS = {  # by name, since an app may not be installed
    JOB: f"{APP}.Job",
    "target": f"{APP}.Target",
    "worker": f"{APP}.Worker",
    "direct_call": f"{APP}.Lease",
    "group": f"{APP}.JobGroup",
    "template": f"{APP}.JobTemplate",
    "schedule": "jobscheduler_schedules.Schedule",
    "endpoint": "jobscheduler_webhooks.WebhookEndpoint",
    "token": f"{APP}.ApiToken",
}


ACTION_LABELS: dict[str, Promise] = {
    Action.LIMIT_SET: gettext_lazy("Set limit"),
    Action.LIMIT_RESET: gettext_lazy("Reset limit"),
    Action.LIMIT_PAUSE: gettext_lazy("Pause limit"),
    Action.LIMIT_UNPAUSE: gettext_lazy("Resume limit"),
    Action.TARGET_PAUSE: gettext_lazy("Pause target"),
    Action.TARGET_UNPAUSE: gettext_lazy("Resume target"),
    Action.WORKER_QUIET: gettext_lazy("Drain worker"),
    Action.WORKER_WAKE: gettext_lazy("Resume worker"),
    Action.WORKER_STOP: gettext_lazy("Stop worker"),
    Action.DIRECT_CALL_END: gettext_lazy("End direct call"),
    Action.GROUP_CANCEL: gettext_lazy("Cancel group"),
    Action.GROUP_RETRY: gettext_lazy("Retry group"),
    Action.TEMPLATE_CREATE: gettext_lazy("Create template"),
    Action.TEMPLATE_UPDATE: gettext_lazy("Change template"),
    Action.TEMPLATE_DELETE: gettext_lazy("Delete template"),
    Action.SCHEDULE_CREATE: gettext_lazy("Create schedule"),
    Action.SCHEDULE_UPDATE: gettext_lazy("Change schedule"),
    Action.SCHEDULE_ENABLE: gettext_lazy("Enable schedule"),
    Action.SCHEDULE_DISABLE: gettext_lazy("Disable schedule"),
    Action.SCHEDULE_SKIP_NEXT: gettext_lazy("Skip next run"),
    Action.SCHEDULE_TRIGGER: gettext_lazy("Trigger schedule"),
    Action.SCHEDULE_DELETE: gettext_lazy("Delete schedule"),
    Action.ENDPOINT_CREATE: gettext_lazy("Create endpoint"),
    Action.ENDPOINT_UPDATE: gettext_lazy("Change endpoint"),
    Action.ENDPOINT_ENABLE: gettext_lazy("Enable endpoint"),
    Action.ENDPOINT_DISABLE: gettext_lazy("Disable endpoint"),
    Action.ENDPOINT_ROTATE_SECRET: gettext_lazy("Replace secret"),
    Action.ENDPOINT_TEST: gettext_lazy("Send test"),
    Action.ENDPOINT_RESEND: gettext_lazy("Resend deliveries"),
    Action.ENDPOINT_DELETE: gettext_lazy("Delete endpoint"),
    Action.TOKEN_CREATE: gettext_lazy("Create token"),
    Action.TOKEN_REVOKE: gettext_lazy("Revoke token"),
    "job.cancel": gettext_lazy("Cancel job"),
    "job.move": gettext_lazy("Move job"),
    "job.pause": gettext_lazy("Pause job"),
    "job.release": gettext_lazy("Release job"),
    "job.resolve": gettext_lazy("Mark job as resolved"),
    "job.resume": gettext_lazy("Resume job"),
    "job.retry": gettext_lazy("Retry job"),
    "job.update": gettext_lazy("Change job"),
}
OBJECT_LABELS: dict[str, Promise] = {
    JOB: gettext_lazy("job"),
    "limit": gettext_lazy("limit"),
    "target": gettext_lazy("target"),
    "worker": gettext_lazy("worker"),
    "direct_call": gettext_lazy("direct call"),
    "group": gettext_lazy("group"),
    "template": gettext_lazy("template"),
    "schedule": gettext_lazy("schedule"),
    "endpoint": gettext_lazy("endpoint"),
    "token": gettext_lazy("token"),
}


class ShownChange(NamedTuple):
    field: str
    before: str | None
    after: str | None


@screen("activity", gettext_lazy("Activity"), permission=f"{APP}.view_activity")
def activity(admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """List activities and actions on jobs, newest first. Values of filters that make no sense are ignored."""
    context = partial(_build_context, admin, request)
    version = f"{latest_event_id()} {latest_activity_id()}"
    return render(admin, request, "jobs/console/activity.html", context, title=_("Activity"), version=version)


def _build_context(admin: ModelAdmin, request: HttpRequest) -> dict[str, Any]:
    query = {name: value for name in FILTER_NAMES if (value := _read_text(request, name))}
    entries, position = read_page(_parse_filters(query), _parse_position(_read_text(request, "from")), ROWS_SHOWN)
    with_payload, site, limit_keys = can_view_payload(request), admin.admin_site, _find_limits(entries)
    return {
        "rows": [
            {
                "entry": entry,
                "actor": isolate_text(describe_actor(entry.actor_kind, entry.actor_name)),
                "action": ACTION_LABELS.get(entry.action, entry.action),
                "object": _link_object(site, entry, limit_keys),
                "changes": _list_changes(entry, with_payload),
            }
            for entry in entries
        ],
        "older": "" if position is None else f"?{urlencode({**query, 'from': _format_position(position)})}",
        "query": query,
        "actor_kinds": ACTOR_CHOICES,
        "actions": sorted(((name, str(ACTION_LABELS[name])) for name in ALL_ACTIONS), key=itemgetter(1)),
        "object_kinds": [(kind, OBJECT_LABELS[kind]) for kind in OBJECT_KINDS],
        "scan_limit": SCAN_LIMIT,
        "zone": timezone.get_current_timezone_name(),
    }


def _read_text(request: HttpRequest, name: str) -> str:
    return request.GET.get(name, "").replace("\0", "").strip()[:300]


def _parse_filters(query: Mapping[str, str]) -> ActivityFilters:
    choices = {
        "actor_kind": {kind for kind, _label in ACTOR_CHOICES},
        "verb": set(ALL_ACTIONS),
        "object_kind": set(OBJECT_KINDS),
    }
    filters: dict[str, Any] = {name: query[name] for name, allowed in choices.items() if query.get(name) in allowed}
    filters |= {name: query[name] for name in ("actor", "tenant") if name in query}
    filters["action"] = filters.pop("verb", None)
    if "object_kind" in filters and "object_id" in query:
        filters["object_id"] = query["object_id"]
    filters |= {name: parse_moment(query.get(name, "")) for name in ("since", "until")}
    return ActivityFilters(**filters)


def _parse_position(text: str) -> Position | None:
    activity_id, separator, event_id = text.partition("/")
    if not separator or len(event_id) > 18:
        return None
    try:
        return Position(UUID(activity_id) if activity_id else None, int(event_id) if event_id else None)
    except ValueError:
        return None


def _format_position(position: Position) -> str:
    return "/".join("" if key is None else str(key) for key in position)


def _find_limits(entries: list[Entry]) -> dict[str, int]:
    """Return the keys of the limits among the objects, by the id that activities have for them, in one query."""
    conditions = Q()
    for object_id in {entry.object_id for entry in entries if entry.object_kind == "limit"}:
        scope, _colon, key = object_id.partition(":")
        conditions |= Q(scope=scope, key=key)
    if not conditions:
        return {}
    rows = ConcurrencyLimit.objects.filter(conditions).order_by().values_list("scope", "key", "pk")
    return {f"{scope}:{key}" if key else scope: pk for scope, key, pk in rows}


def _link_object(site: AdminSite, entry: Entry, limit_keys: Mapping[str, int]) -> SafeString | str:
    """Return a link to the object's page, or its name if it was deleted or has no page."""
    name = entry.object_name or entry.object_id
    if entry.object_kind == JOB:
        name = f"{entry.object_name} {short_id(entry.object_id)}"
    if entry.object_kind == "limit" and (limit_key := limit_keys.get(entry.object_id)) is not None:
        return link(site, ConcurrencyLimit, limit_key, name) or ""
    model = _find_model(entry.object_kind)
    if model is None or entry.action.endswith(".delete"):
        return isolate_text(name)
    key: Any = entry.object_id
    if model is Target:
        key = ids.derive_lane_id(entry.tenant or "default", entry.object_id)
    return link(site, model, key, name) or ""


def _find_model(object_kind: str) -> type[Model] | None:
    try:
        return apps.get_model(MODELS[object_kind])
    except LookupError:
        return None


def _list_changes(entry: Entry, with_payload: bool) -> list[ShownChange]:
    """Return the changed fields by the names and the words that their model has for them."""
    before, after = (hide_payload_fields(fields, with_payload) or {} for fields in (entry.before, entry.after))
    model = ConcurrencyLimit if entry.object_kind == "limit" else _find_model(entry.object_kind)
    columns = {} if model is None else {field.name: field for field in model._meta.concrete_fields}
    changes = []
    for name in dict.fromkeys([*before, *after]):
        stored = columns.get(name)
        label = name if stored is None else str(stored.verbose_name)
        choices = {} if stored is None else dict(stored.flatchoices)
        values = (_format_value(fields[name], choices) if name in fields else None for fields in (before, after))
        changes.append(ShownChange(label, *values))
    return changes


def _format_value(value: Any, choices: Mapping[Any, Any]) -> str:
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    if value is None or value == "":
        return "–"
    if isinstance(value, (str, int)) and value in choices:
        return str(choices[value])
    text = value if isinstance(value, str) else format_json(value)
    return text if len(text) <= VALUE_LENGTH else text[:VALUE_LENGTH] + "…"


class ActivityAdmin(ReadOnlyAdmin):
    list_display = ("exact_time", "shown_actor", "action", "shown_object", "shown_tenant", "shown_reason")
    change_form_template = "jobs/facts_page.html"
    list_filter = (
        choice_filter("object_kind", gettext_lazy("object"), [(name, name) for name in OBJECT_KINDS if name != JOB]),
    )
    list_defer = ("before", "after")
    qualifiers = {"actor": "actor_name", "object": "object_id", "tenant": "tenant"}
    payload = ("shown_before", "shown_after")
    fieldsets = (
        (
            None,
            {
                "fields": (
                    *("exact_time", "action", "object_kind", "shown_object", "object_id", "shown_tenant"),
                    *("shown_actor", "actor_id", "whole_reason", "id"),
                )
            },
        ),
    )

    exact_time = column(gettext_lazy("time"), "at", format_exact_time)

    shown_object = column(gettext_lazy("object"), "object_name", isolate_text)
    shown_tenant = column(
        gettext_lazy("tenant"), "tenant", lambda tenant: _("all") if tenant is None else isolate_text(tenant)
    )
    shown_reason = column(gettext_lazy("reason"), "reason", format_first_line)
    whole_reason = column(gettext_lazy("reason"), "reason", text_block)
    shown_before = column(gettext_lazy("before"), "before", json_block)
    shown_after = column(gettext_lazy("after"), "after", json_block)

    @computed_column(gettext_lazy("actor"))
    def shown_actor(self, row: Activity) -> SafeString:
        return isolate_text(format_actor(row))
