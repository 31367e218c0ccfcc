"""Endpoints in the console. A secret is shown once, on the response to its creation or rotation."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django import forms
from django.db.models import Count, Model, OuterRef, Q, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext, ngettext_lazy, pgettext_lazy

from jobs import actors, clock, db
from jobs.admin.base import can_view_payload
from jobs.admin.columns import change_url, column, computed_column, link, list_url
from jobs.admin.filters import EnabledFilter
from jobs.admin.formatting import badge, first_line, format_relative_time, isolate_text, name_with_tenant, text_block
from jobs.admin.forms import validate_with
from jobs.admin.object_actions import ObjectAction, ServiceBackedAdmin, call_with_key
from jobs.ids import min_id_at
from jobs.validation import fields as validation
from webhooks import services
from webhooks.events import PATTERNS
from webhooks.models import DeliveryStatus, WebhookDelivery, WebhookEndpoint
from webhooks.url_guard import MAX_URL_LENGTH

APP_LABEL = WebhookEndpoint._meta.app_label
FORM_FIELDS = ("tenant", "url", "events", "enabled")
STATE_FIELDS = ("id", "shown_reason", "success", "failures", "open_until", "old_secret_until", "created_at")
# Deliveries that a success rate counts: an endpoint may have millions a day.
RATE_SAMPLE, LIST_RATE_SAMPLE = 1000, 100  # of one endpoint; of each in a list


class SuccessRate(NamedTuple):
    delivered: int
    finished: int


def _format_rate(rate: SuccessRate | None) -> str | None:
    return None if rate is None else f"{rate.delivered / rate.finished:.0%} ({rate.finished})"


class EndpointForm(forms.ModelForm):
    url = forms.CharField(
        label=_("URL"), max_length=MAX_URL_LENGTH, strip=False, widget=forms.TextInput(attrs={"class": "vURLField"})
    )
    events = forms.MultipleChoiceField(
        label=_("Events"),
        choices=[(name, name) for name in PATTERNS],
        widget=forms.CheckboxSelectMultiple,
        help_text=_("job.* is all of jobs, * is everything."),
    )

    class Meta:
        model = WebhookEndpoint
        fields = FORM_FIELDS

    def clean_tenant(self) -> str:
        return str(validate_with(validation.parse_tenant, self.cleaned_data["tenant"]))

    def clean_url(self) -> str:
        return str(validate_with(services.VALIDATORS["url"], self.cleaned_data["url"]))


class WebhookEndpointAdmin(ServiceBackedAdmin):
    """Secrets are in no form and no list; the path of a URL, often a secret too, requires `view_payload`."""

    form = EndpointForm
    empty_text = _(
        "Nobody is told of jobs yet. Add the address of a receiver and the events it wants; its secret is shown once."
    )
    change_form_template = "webhooks/endpoint_page.html"
    delete_service = staticmethod(services.delete)
    object_actions = (
        ObjectAction(
            "test",
            pgettext_lazy("verb", "Send a test"),
            _("Send a test to selected endpoints"),
            ngettext_lazy("%(count)d test is on its way", "%(count)d tests are on their way", "count"),
            f"{APP_LABEL}.test_webhookendpoint",
            call_with_key(services.send_test, with_reason=False),
        ),
        ObjectAction(
            "rotate",
            pgettext_lazy("verb", "Replace the secret"),
            "",
            ngettext_lazy("%(count)d secret replaced", "%(count)d secrets replaced", "count"),
            f"{APP_LABEL}.rotate_webhookendpoint",
            call_with_key(services.rotate_secret, with_reason=False),
            in_list=False,
        ),
        ObjectAction(
            "resend",
            pgettext_lazy("verb", "Resend all that failed"),
            _("Resend all that failed, of selected endpoints"),
            ngettext_lazy("%(count)d endpoint looked through", "%(count)d endpoints looked through", "count"),
            f"{APP_LABEL}.resend_delivery",
            call_with_key(services.resend_failed, with_reason=False),
        ),
    )
    list_display = ("shown_url", "shown_events", "shown_state", "success_rate", "failures", "suspended")
    list_filter = (EnabledFilter,)
    list_defer = ("secret", "old_secret")
    name_field = "url"
    qualifiers = {"tenant": "tenant"}
    readonly_fields = STATE_FIELDS

    shown_origin = column(_("URL"), "origin", isolate_text)
    whole_url = column(_("URL"), "url", isolate_text)
    shown_events = column(_("events"), "events", lambda events: isolate_text(", ".join(map(str, events))))
    success_rate = column(_("received (24 h)"), "rate", _format_rate)
    suspended = column(_("rests until"), "open_until", format_relative_time)
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
            "title": _now("The new secret"),
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
            return ngettext("%d delivery is sent again.", "%d deliveries are sent again.", sum(results)) % sum(results)
        return ""

    def result_page(self, request: HttpRequest, action: ObjectAction, results: list[Any]) -> HttpResponse | None:
        return self.secret_page(request, *results[0]) if action.name == "rotate" and results else None

    def page_context(self, request: HttpRequest, row: WebhookEndpoint) -> dict[str, Any]:
        url = f"{list_url(self.admin_site, WebhookDelivery)}?q=endpoint:{row.pk}"
        return {"deliveries_url": url if self.admin_site.is_registered(WebhookDelivery) else ""}

    def complete_rows(self, request: HttpRequest, rows: QuerySet[Any]) -> None:
        rates, sees_url = success_rates([endpoint.pk for endpoint in rows]), can_view_payload(request)
        for endpoint in rows:
            endpoint.rate = rates.get(endpoint.pk)
            endpoint.visible_url = endpoint.url if sees_url else endpoint.origin

    @computed_column(_("URL"))
    def shown_url(self, endpoint: WebhookEndpoint) -> SafeString:
        return name_with_tenant(first_line(getattr(endpoint, "visible_url", endpoint.origin)), endpoint.tenant)

    @computed_column(_("state"))
    def shown_state(self, endpoint: WebhookEndpoint) -> SafeString:
        if endpoint.enabled:
            return badge("good", _now("enabled"), "✓")
        reason = isolate_text(first_line(endpoint.disabled_reason))
        return format_html("{} {}", badge("bad", _now("disabled"), "⊘"), reason)

    @computed_column(_("delivered within 24 hours"))
    def success(self, endpoint: WebhookEndpoint) -> str | None:
        """Return the success rate of the latest deliveries."""
        return _format_rate(success_rates([endpoint.pk], RATE_SAMPLE).get(endpoint.pk))


def success_rates(endpoint_ids: Sequence[UUID], limit: int = LIST_RATE_SAMPLE) -> dict[UUID, SuccessRate]:
    """Count the delivered and the finished among the last `limit` deliveries of each endpoint within a day."""
    since = min_id_at(clock.now() - timedelta(hours=24))
    own_ids = WebhookDelivery.objects.filter(endpoint_id=OuterRef("pk")).order_by("-pk").values("pk")
    endpoints: Any = WebhookEndpoint.objects.filter(pk__in=list(endpoint_ids)).order_by()
    wanted = Q()
    # The id to read from is found along the index of each endpoint's deliveries.
    with_limit = endpoints.annotate(nth_latest=Subquery(own_ids[limit - 1 : limit]))
    for endpoint_id, nth_latest in with_limit.values_list("pk", "nth_latest"):
        wanted |= Q(endpoint_id=endpoint_id, pk__gte=max(since, nth_latest) if nth_latest else since)
    if not wanted:
        return {}
    finished: Any = WebhookDelivery.objects.filter(wanted).exclude(status=DeliveryStatus.PENDING)
    delivered = Count("pk", filter=Q(status=DeliveryStatus.DELIVERED))
    rows = finished.order_by().values_list("endpoint_id").annotate(delivered=delivered, finished=Count("pk"))
    return {endpoint_id: SuccessRate(*counts) for endpoint_id, *counts in rows}
