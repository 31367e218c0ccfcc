"""Endpoints: written through the services; a secret is shown once, on the page that answers its making."""

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
from jobs.admin.filters import EnabledFilter
from jobs.admin.formatting import (
    badge,
    change_url,
    column,
    computed_column,
    first_line,
    format_relative_time,
    isolate_text,
    link,
    list_url,
    text_block,
)
from jobs.admin.forms import validate_with
from jobs.admin.object_actions import ObjectAction, ServiceBackedAdmin, call_with_key
from jobs.ids import min_id_at
from jobs.validation import fields as validation
from webhooks import services
from webhooks.events import PATTERNS
from webhooks.models import DeliveryStatus, WebhookDelivery, WebhookEndpoint
from webhooks.url_guard import MAX_URL_LENGTH

APP = WebhookEndpoint._meta.app_label
FIELDS = ("tenant", "url", "events", "enabled")
STATE = ("id", "shown_reason", "success", "failures", "open_until", "old_secret_until", "created_at")
LATELY = 1000  # deliveries that the rate of one endpoint is made of: a receiver of millions is not counted through
LAST = 100  # the same for each endpoint of a list


class Rate(NamedTuple):
    received: int
    ended: int


def _format_rate(rate: Rate | None) -> str | None:
    return None if rate is None else f"{rate.received / rate.ended:.0%} ({rate.ended})"


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
        fields = FIELDS

    def clean_tenant(self) -> str:
        return str(validate_with(validation.parse_tenant, self.cleaned_data["tenant"]))

    def clean_url(self) -> str:
        return str(validate_with(services.GATES["url"], self.cleaned_data["url"]))

    def changes(self) -> dict[str, Any]:
        """Return what services take to change."""
        return {name: self.cleaned_data[name] for name in services.GATES if name in self.changed_data}


class WebhookEndpointAdmin(ServiceBackedAdmin):
    """The secrets are no fields of any page."""

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
            f"{APP}.test_webhookendpoint",
            call_with_key(services.send_test, with_reason=False),
        ),
        ObjectAction(
            "rotate",
            pgettext_lazy("verb", "Replace the secret"),
            "",
            ngettext_lazy("%(count)d secret replaced", "%(count)d secrets replaced", "count"),
            f"{APP}.rotate_webhookendpoint",
            call_with_key(services.rotate_secret, with_reason=False),
            in_list=False,
        ),
        ObjectAction(
            "resend",
            pgettext_lazy("verb", "Resend all that failed"),
            _("Resend all that failed, of selected endpoints"),
            ngettext_lazy("%(count)d endpoint looked through", "%(count)d endpoints looked through", "count"),
            f"{APP}.resend_delivery",
            call_with_key(services.resend_failed, with_reason=False),
        ),
    )
    list_display = ("shown_url", "shown_events", "shown_state", "lately", "failures", "rests")
    list_filter = (EnabledFilter,)
    list_defer = ("secret", "old_secret")
    name_field = "url"
    qualifiers = {"tenant": "tenant"}
    readonly_fields = STATE

    whole_url = column(_("URL"), "url", isolate_text)
    shown_events = column(_("events"), "events", lambda events: isolate_text(", ".join(map(str, events))))
    lately = column(_("received (24 h)"), "received", _format_rate)  # of the last hundred at most
    rests = column(
        _("rests until"), "open_until", format_relative_time
    )  # after failures in a row nothing is sent for a while
    shown_reason = column(_("disabled because"), "disabled_reason", text_block)

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> list[Any]:
        if obj is None:
            return [(None, {"fields": FIELDS})]
        can_change = self.has_change_permission(request, obj)
        fields = FIELDS if can_change else ("tenant", "whole_url", "shown_events", "enabled")
        return [(None, {"fields": fields}), (_("State"), {"fields": STATE})]

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> tuple[str, ...]:
        return (*self.readonly_fields, *(() if obj is None else ("tenant",)))

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        actor = actors.make_user_actor(request.user)
        if change:
            services.update(obj.pk, form.changes(), actor=actor)
        else:
            fields = form.cleaned_data
            made, obj.new_secret = services.create(
                fields["url"], fields["events"], tenant=fields["tenant"], enabled=fields["enabled"], actor=actor
            )
            obj.pk = made.pk
        obj.refresh_from_db(using=db.alias())

    def response_add(self, request: HttpRequest, obj: Any, post_url_continue: str | None = None) -> HttpResponse:
        return self.secret_page(request, obj, obj.new_secret)

    def secret_page(self, request: HttpRequest, endpoint: WebhookEndpoint, secret: str) -> HttpResponse:
        """Straight as the answer: a message would be kept in a cookie or a session until it is read."""
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
        is_shown = self.admin_site.is_registered(WebhookDelivery)
        url = f"{list_url(self.admin_site, WebhookDelivery)}?q=endpoint:{row.pk}" if is_shown else ""
        return {"deliveries_url": url}

    def complete_rows(self, request: HttpRequest, rows: QuerySet[Any]) -> None:
        found = lately([endpoint.pk for endpoint in rows])
        for endpoint in rows:
            endpoint.received = found.get(endpoint.pk)

    @computed_column(_("URL"))
    def shown_url(self, endpoint: WebhookEndpoint) -> SafeString:
        if endpoint.tenant == "default":
            return isolate_text(first_line(endpoint.url))
        tenant = isolate_text(endpoint.tenant)
        return format_html('{} <span class="jc-mark">{}</span>', isolate_text(first_line(endpoint.url)), tenant)

    @computed_column(_("state"))
    def shown_state(self, endpoint: WebhookEndpoint) -> SafeString:
        if endpoint.enabled:
            return badge("good", _now("enabled"), "✓")
        why = isolate_text(first_line(endpoint.disabled_reason))
        return format_html("{} {}", badge("bad", _now("disabled"), "⊘"), why)

    @computed_column(_("delivered within 24 hours"))
    def success(self, endpoint: WebhookEndpoint) -> str | None:
        """Of the last ones; a receiver of millions is not counted through."""
        return _format_rate(lately([endpoint.pk], LATELY).get(endpoint.pk))


def lately(ids: Sequence[UUID], limit: int = LAST) -> dict[UUID, Rate]:
    """Of each endpoint, count how many of its last deliveries within a day were received, and how many have ended."""
    since = min_id_at(clock.now() - timedelta(hours=24))
    own = WebhookDelivery.objects.filter(endpoint_id=OuterRef("pk")).order_by("-pk").values("pk")
    endpoints: Any = WebhookEndpoint.objects.filter(pk__in=list(ids)).order_by()
    wanted = Q()
    # From where on to read, along the index of each endpoint's deliveries.
    for key, farthest in endpoints.annotate(far=Subquery(own[limit - 1 : limit])).values_list("pk", "far"):
        wanted |= Q(endpoint_id=key, pk__gte=max(since, farthest) if farthest else since)
    if not wanted:
        return {}
    ended: Any = WebhookDelivery.objects.filter(wanted).exclude(status=DeliveryStatus.PENDING)
    received = Count("pk", filter=Q(status=DeliveryStatus.DELIVERED))
    rows = ended.order_by().values_list("endpoint_id").annotate(received=received, ended=Count("pk"))
    return {key: Rate(*counts) for key, *counts in rows}
