"""The screen of activities: what people, tokens, commands and code did, to jobs and to all else; and their rows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.apps import apps
from django.contrib.admin import AdminSite, ModelAdmin
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import ids
from jobs.admin.base import ReadOnlyAdmin, can_view_payload
from jobs.admin.columns import column, computed_column, link, short_id
from jobs.admin.filters import choice_filter
from jobs.admin.formatting import format_actor, format_first_line, format_json, isolate_text, json_block, text_block
from jobs.admin.screens import APP, render, screen
from jobs.models import Activity, Target
from jobs.models.activity import ALL_ACTIONS, JOB, OBJECT_KINDS
from jobs.models.run import ACTOR_CHOICES
from jobs.serializers import hide_payload_fields
from jobs.services.activity_list import ActivityFilters, Entry, Position, read_page

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


class ShownChange(NamedTuple):
    field: str
    before: str | None
    after: str | None


@screen("activity", gettext_lazy("Activity"), permission=f"{APP}.view_activity")
def activity(admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """List activities and actions on jobs, newest first. Values of filters that make no sense are ignored."""
    query = {name: value for name in FILTER_NAMES if (value := _read_text(request, name))}
    entries, position = read_page(_parse_filters(query), _parse_position(_read_text(request, "from")), ROWS_SHOWN)
    with_payload, site = can_view_payload(request), admin.admin_site
    context = {
        "rows": [
            {
                "entry": entry,
                "actor_kind": dict(ACTOR_CHOICES)[entry.actor_kind],
                "object": _link_object(site, entry),
                "changes": _list_changes(entry, with_payload),
            }
            for entry in entries
        ],
        "older": "" if position is None else f"?{urlencode({**query, 'from': _format_position(position)})}",
        "query": query,
        "actor_kinds": ACTOR_CHOICES,
        "actions": ALL_ACTIONS,
        "object_kinds": OBJECT_KINDS,
    }
    return render(admin, request, "jobs/console/activity.html", context, title=_("Activity"))


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
    filters |= {name: _parse_moment(query.get(name, "")) for name in ("since", "until")}
    return ActivityFilters(**filters)


def _parse_moment(text: str) -> datetime | None:
    """Parse what the browser's field for a date and a time sends, in the time zone of the site."""
    try:
        moment = parse_datetime(text)
    except ValueError:
        return None
    if moment is None or not 1970 < moment.year < 9000:
        return None
    return moment if timezone.is_aware(moment) else timezone.make_aware(moment)


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


def _link_object(site: AdminSite, entry: Entry) -> SafeString | str:
    """Return a link to the object's page, or its name if it was deleted or has no page."""
    name = short_id(entry.object_id) if entry.object_kind == JOB else entry.object_name or entry.object_id
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
    before, after = (hide_payload_fields(fields, with_payload) or {} for fields in (entry.before, entry.after))
    names = dict.fromkeys([*before, *after])
    return [ShownChange(name, _format_value(before, name), _format_value(after, name)) for name in names]


def _format_value(fields: Mapping[str, Any], name: str) -> str | None:
    if name not in fields:
        return None
    value = fields[name]
    text = value if isinstance(value, str) and value else format_json(value)
    return text if len(text) <= VALUE_LENGTH else text[:VALUE_LENGTH] + "…"


class ActivityAdmin(ReadOnlyAdmin):
    list_display = ("at", "shown_actor", "action", "shown_object", "shown_tenant", "shown_reason")
    list_filter = (
        choice_filter("object_kind", gettext_lazy("object"), [(name, name) for name in OBJECT_KINDS if name != JOB]),
    )
    list_defer = ("before", "after")
    qualifiers = {"actor": "actor_name", "object": "object_id", "tenant": "tenant"}
    payload = ("shown_before", "shown_after")
    fieldsets = (
        (None, {"fields": ("id", "at", "action", "object_kind", "shown_object", "object_id", "shown_tenant")}),
        (gettext_lazy("Who and why"), {"fields": ("shown_actor", "actor_id", "whole_reason")}),
    )

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
