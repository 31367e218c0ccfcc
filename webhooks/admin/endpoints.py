"""Endpoints in the console. A secret is shown once, on the response to its creation or rotation."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django import forms
from django.db.models import Count, Model, OuterRef, Q, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext, ngettext_lazy, pgettext_lazy

from jobs import actors, clock, db
from jobs.admin.base import CappedInt, can_view_payload
from jobs.admin.columns import change_url, column, computed_column, label_on_phone, link, list_url
from jobs.admin.filters import YES_NO, ChoiceFilter
from jobs.admin.formatting import badge, first_line, format_relative_time, isolate_text, name_with_tenant, text_block
from jobs.admin.forms import validate_with
from jobs.admin.object_actions import ObjectAction, ServiceBackedAdmin, call_with_key
from jobs.conf import conf
from jobs.ids import min_id_at
from jobs.validation import fields as validation
from webhooks import services
from webhooks.admin.deliveries import find_disabled
from webhooks.events import PATTERNS
from webhooks.models import DeliveryStatus, WebhookDelivery, WebhookEndpoint
from webhooks.url_guard import MAX_URL_LENGTH

APP_LABEL = WebhookEndpoint._meta.app_label
FORM_FIELDS = ("tenant", "url", "events", "enabled")
STATE_FIELDS = ("id", "shown_reason", "success", "failures", "suspended", "old_secret_until", "created")
RATE_LABEL = _("delivered, 24 h")
# Deliveries that a success rate counts: an endpoint may have millions a day.
RATE_SAMPLE, LIST_RATE_SAMPLE = 1000, 100  # of one endpoint; of each in a list


class SuccessRate(NamedTuple):
    """Of the deliveries that were sent at least once, or failed: how many were delivered."""

    delivered: int
    sent: int  # a CappedInt if only the latest were counted


def _format_rate(rate: SuccessRate | None) -> str | None:
    if rate is None:
        return None
    is_capped = isinstance(rate.sent, CappedInt)
    text = _now("%(percent)d %% of the latest %(count)d") if is_capped else _now("%(percent)d %% of %(count)d")
    return text % {"percent": 100 * rate.delivered // rate.sent, "count": rate.sent}


def _format_listed_rate(rate: SuccessRate | None) -> SafeString | None:
    return None if rate is None else label_on_phone(_now("delivered"), _format_rate(rate))


def _format_suspension(open_until: datetime | None) -> SafeString | None:
    """Return when an endpoint's suspension ends; None if it is not suspended."""
    return None if open_until is None or open_until <= clock.now() else format_relative_time(open_until)


def _format_events(events: list[Any]) -> SafeString:
    """Return the names of events, none of which breaks within a word."""
    return format_html_join(", ", '<bdi class="jc-whole">{}</bdi>', ([str(event)] for event in events))


class EndpointForm(forms.ModelForm):
    url = forms.CharField(
        label=_("URL"), max_length=MAX_URL_LENGTH, strip=False, widget=forms.TextInput(attrs={"class": "vURLField"})
    )
    events = forms.MultipleChoiceField(
        label=_("Events"),
        choices=[(name, name) for name in PATTERNS],
        widget=forms.CheckboxSelectMultiple,
        help_text=_("job.* matches all events of jobs, * all events."),
    )

    class Meta:
        model = WebhookEndpoint
        fields = FORM_FIELDS

    def clean_tenant(self) -> str:
        return str(validate_with(validation.parse_tenant, self.cleaned_data["tenant"]))

    def clean_url(self) -> str:
        return str(validate_with(services.VALIDATORS["url"], self.cleaned_data["url"]))


class EndpointStateFilter(ChoiceFilter):
    title = _("enabled")
    parameter_name = field = "enabled"
    known_choices = (*YES_NO, ("failed", _("No, after failures")))

    def filter_by_choice(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        if value == "failed":
            return queryset.filter(pk__in=find_disabled().values("pk"))
        return super().filter_by_choice(queryset, value)


class WebhookEndpointAdmin(ServiceBackedAdmin):
    """Secrets are in no form and no list; the path of a URL, often a secret too, requires `view_payload`."""

    form = EndpointForm
    empty_text = _("No endpoints yet. Add a URL and the events to send; the signing secret is shown once.")
    change_form_template = "webhooks/endpoint_page.html"
    delete_service = staticmethod(services.delete)
    object_actions = (
        ObjectAction(
            "test",
            pgettext_lazy("verb", "Send test"),
            _("Send test to selected endpoints"),
            ngettext_lazy("%(count)d test queued", "%(count)d tests queued", "count"),
            f"{APP_LABEL}.test_webhookendpoint",
            call_with_key(services.send_test, with_reason=False),
        ),
        ObjectAction(
            "rotate",
            pgettext_lazy("verb", "Replace secret"),
            "",
            ngettext_lazy("%(count)d secret replaced", "%(count)d secrets replaced", "count"),
            f"{APP_LABEL}.rotate_webhookendpoint",
            call_with_key(services.rotate_secret, with_reason=False),
            in_list=False,
        ),
        ObjectAction(
            "resend",
            pgettext_lazy("verb", "Resend failed deliveries"),
            _("Resend failed deliveries of selected endpoints"),
            ngettext_lazy("%(count)d endpoint checked", "%(count)d endpoints checked", "count"),
            f"{APP_LABEL}.resend_delivery",
            call_with_key(services.resend_failed, with_reason=False),
        ),
    )
    list_display = ("shown_url", "shown_state", "success_rate", "failures", "suspended", "shown_events")
    list_filter = (EndpointStateFilter,)
    list_defer = ("secret", "old_secret")
    name_field = "url"
    qualifiers = {"tenant": "tenant"}
    readonly_fields = STATE_FIELDS

    shown_origin = column(_("URL"), "origin", isolate_text)
    whole_url = column(_("URL"), "url", isolate_text)
    shown_events = column(_("events"), "events", _format_events)
    success_rate = column(RATE_LABEL, "rate", _format_listed_rate)
    created = column(_("created"), "created_at", format_relative_time)
    suspended = column(_("suspended until"), "open_until", _format_suspension)
    shown_reason = column(_("disabled because"), "disabled_reason", text_block)

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> list[Any]:
        if obj is None:
            return [(None, {"fields": FORM_FIELDS})]
        can_change, sees_url = self.has_change_permission(request, obj), can_view_payload(request)
        url = ("url" if can_change else "whole_url") if sees_url else "shown_origin"
        fields = ("tenant", url, "events" if can_change else "shown_events", "enabled")
        return [(None, {"fields": fields}), (_("State"), {"fields": STATE_FIELDS})]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """Take the URL out of the form of a user who may not see it."""
        hidden = ("url", "shown_origin") if obj is not None and not can_view_payload(request) else ()
        return (*super().get_readonly_fields(request, obj), *hidden)

    def get_name_field(self, request: HttpRequest) -> str:
        return self.name_field if can_view_payload(request) else ""  # a search would tell the URL letter by letter

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        actor, fields = actors.make_user_actor(request.user), form.cleaned_data
        if change:
            changes = {name: fields[name] for name in services.VALIDATORS if name in form.changed_data}
            services.update(obj.pk, changes, actor=actor)
        else:
            endpoint, obj.new_secret = services.create(
                fields["url"], fields["events"], tenant=fields["tenant"], enabled=fields["enabled"], actor=actor
            )
            obj.pk = endpoint.pk
        obj.refresh_from_db(using=db.alias())

    def response_add(self, request: HttpRequest, obj: Any, post_url_continue: str | None = None) -> HttpResponse:
        return self.secret_page(request, obj, obj.new_secret)

    def secret_page(self, request: HttpRequest, endpoint: WebhookEndpoint, secret: str) -> HttpResponse:
        """Return the secret as the response itself: a message would store it in a cookie or session."""
        context = {
            **self.admin_site.each_context(request),
            "title": _now("New signing secret"),
            "opts": self.opts,
            "endpoint": endpoint,
            "secret": secret,
            "back": change_url(self.admin_site, WebhookEndpoint, endpoint.pk),
        }
        page = TemplateResponse(request, "webhooks/secret.html", context)
        page["Cache-Control"] = "no-store"
        return page

    def result_note(self, action: ObjectAction, results: list[Any]) -> Any:
        if action.name == "test" and len(results) == 1:
            return format_html("{} {}", _now("Delivery:"), link(self.admin_site, WebhookDelivery, results[0].pk))
        if action.name == "resend":
            count = sum(results)
            note = ngettext("%d delivery queued for resending.", "%d deliveries queued for resending.", count) % count
            if any(number >= conf.API_BULK_LIMIT for number in results):
                note += " " + _now("There may be more: resend again for the next %d.") % conf.API_BULK_LIMIT
            return note
        return ""

    def result_page(self, request: HttpRequest, action: ObjectAction, results: list[Any]) -> HttpResponse | None:
        return self.secret_page(request, *results[0]) if action.name == "rotate" and results else None

    def page_context(self, request: HttpRequest, row: WebhookEndpoint) -> dict[str, Any]:
        url = f"{list_url(self.admin_site, WebhookDelivery)}?q=endpoint:{row.pk}"
        return {"deliveries_url": url if self.admin_site.is_registered(WebhookDelivery) else ""}

    def complete_rows(self, request: HttpRequest, rows: QuerySet[Any]) -> None:
        rates = success_rates([endpoint.pk for endpoint in rows], LIST_RATE_SAMPLE)
        sees_url = can_view_payload(request)
        for endpoint in rows:
            endpoint.rate = rates.get(endpoint.pk)
            endpoint.visible_url = endpoint.url if sees_url else endpoint.origin

    @computed_column(_("URL"))
    def shown_url(self, endpoint: WebhookEndpoint) -> SafeString:
        return name_with_tenant(first_line(getattr(endpoint, "visible_url", endpoint.origin)), endpoint.tenant)

    @computed_column(_("status"))
    def shown_state(self, endpoint: WebhookEndpoint) -> SafeString:
        if endpoint.enabled:
            return badge("good", _now("enabled"), "✓")
        reason = isolate_text(first_line(endpoint.disabled_reason))
        return format_html("{} {}", badge("bad", _now("disabled"), "⊘"), reason)

    @computed_column(RATE_LABEL)
    def success(self, endpoint: WebhookEndpoint) -> str | None:
        """Return the success rate of the latest deliveries."""
        return _format_rate(success_rates([endpoint.pk], RATE_SAMPLE).get(endpoint.pk))


def success_rates(endpoint_ids: Sequence[UUID], limit: int = LIST_RATE_SAMPLE) -> dict[UUID, SuccessRate]:
    """Count the delivered and the sent among the last `limit` deliveries of each endpoint within a day.

    A failed delivery that is tried again, or was resent, still counts as sent: a resend alone raises no rate.
    """
    since = min_id_at(clock.now() - timedelta(hours=24))
    own_ids = WebhookDelivery.objects.filter(endpoint_id=OuterRef("pk")).order_by("-pk").values("pk")
    endpoints: Any = WebhookEndpoint.objects.filter(pk__in=list(endpoint_ids)).order_by()
    wanted, capped = Q(), set()
    # The id to read from is found along the index of each endpoint's deliveries.
    with_limit = endpoints.annotate(nth_latest=Subquery(own_ids[limit - 1 : limit]))
    for endpoint_id, nth_latest in with_limit.values_list("pk", "nth_latest"):
        wanted |= Q(endpoint_id=endpoint_id, pk__gte=max(since, nth_latest) if nth_latest else since)
        if nth_latest and nth_latest > since:
            capped.add(endpoint_id)
    if not wanted:
        return {}
    is_new = Q(status=DeliveryStatus.PENDING, attempts=0)
    sent: Any = WebhookDelivery.objects.filter(wanted).exclude(is_new)
    delivered = Count("pk", filter=Q(status=DeliveryStatus.DELIVERED))
    rows = sent.order_by().values_list("endpoint_id").annotate(delivered=delivered, sent=Count("pk"))
    return {
        endpoint_id: SuccessRate(delivered, CappedInt(sent) if endpoint_id in capped else sent)
        for endpoint_id, delivered, sent in rows
    }
