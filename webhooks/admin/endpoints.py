"""Endpoints: written through the services; a secret is shown once, on the page that answers its making."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext, ngettext_lazy, pgettext_lazy

from jobs import actors, clock, db
from jobs.actors import Actor
from jobs.admin.buttons import Button
from jobs.admin.filters import EnabledFilter
from jobs.admin.marks import mark, when
from jobs.admin.reading import LeanChangeList
from jobs.admin.served import ServedAdmin
from jobs.admin.showing import change_url, first_line, isolated, link, list_url, shown, text_block
from webhooks import services
from webhooks.admin import rates
from webhooks.admin.forms import EndpointForm
from webhooks.models import DeliveryStatus, WebhookDelivery, WebhookEndpoint

APP = WebhookEndpoint._meta.app_label
STATE = ("id", "shown_reason", "success", "failures", "open_until", "old_secret_until", "created_at")
LATELY = 1000  # deliveries that a rate is made of


def _test(endpoint: WebhookEndpoint, *, reason: str, actor: Actor) -> WebhookDelivery:
    return services.send_test(endpoint.pk, actor=actor)


def _rotate(endpoint: WebhookEndpoint, *, reason: str, actor: Actor) -> tuple[WebhookEndpoint, str]:
    return services.rotate_secret(endpoint.pk, actor=actor)


def _resend(endpoint: WebhookEndpoint, *, reason: str, actor: Actor) -> int:
    return services.resend_failed(endpoint.pk, actor=actor)


class EndpointChangeList(LeanChangeList):
    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = list(self.result_list)
        found = rates.lately([endpoint.pk for endpoint in self.result_list])
        for endpoint in self.result_list:
            endpoint.received = found.get(endpoint.pk)


class WebhookEndpointAdmin(ServedAdmin):
    """The secrets are no fields of any page."""

    form = EndpointForm
    nothing_yet = _(
        "Nobody is told of jobs yet. Add the address of a receiver and the events it wants; its secret is shown once."
    )
    change_form_template = "webhooks/endpoint_page.html"
    delete_by = staticmethod(services.delete)
    buttons = (
        Button(
            "test",
            pgettext_lazy("verb", "Send a test"),
            _("Send a test to selected endpoints"),
            ngettext_lazy("%(count)d test is on its way", "%(count)d tests are on their way", "count"),
            f"{APP}.test_webhookendpoint",
            _test,
        ),
        Button(
            "rotate",
            pgettext_lazy("verb", "Replace the secret"),
            "",
            ngettext_lazy("%(count)d secret replaced", "%(count)d secrets replaced", "count"),
            f"{APP}.rotate_webhookendpoint",
            _rotate,
            many=False,
        ),
        Button(
            "resend",
            pgettext_lazy("verb", "Resend all that failed"),
            _("Resend all that failed, of selected endpoints"),
            ngettext_lazy("%(count)d endpoint looked through", "%(count)d endpoints looked through", "count"),
            f"{APP}.resend_delivery",
            _resend,
        ),
    )
    list_display = ("shown_url", "shown_events", "shown_state", "lately", "failures", "rests")
    list_filter = (EnabledFilter,)
    list_defer = ("secret", "old_secret")
    name_field = "url"
    qualifiers = {"tenant": "tenant"}
    readonly_fields = STATE

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> list[Any]:
        if obj is None:
            return [(None, {"fields": ("tenant", "url", "events", "enabled")})]
        if self.has_change_permission(request, obj):
            return [(None, {"fields": ("tenant", "url", "events", "enabled")}), (_("State"), {"fields": STATE})]
        shown_fields = ("tenant", "whole_url", "shown_events", "enabled")
        return [(None, {"fields": shown_fields}), (_("State"), {"fields": STATE})]

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> tuple[str, ...]:
        return (*self.readonly_fields, *(() if obj is None else ("tenant",)))

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        actor = actors.user(request.user)
        if change:
            services.update(obj.pk, form.said(), actor=actor)
        else:
            said = form.cleaned_data
            made, obj.new_secret = services.create(
                said["url"], said["events"], tenant=said["tenant"], enabled=said["enabled"], actor=actor
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

    def told(self, button: Button, became: list[Any]) -> Any:
        if button.name == "test" and len(became) == 1:
            return format_html("{} {}", _now("Delivery:"), link(self.admin_site, WebhookDelivery, became[0].pk))
        if button.name == "resend":
            return ngettext("%d delivery is sent again.", "%d deliveries are sent again.", sum(became)) % sum(became)
        return ""

    def answer(self, request: HttpRequest, button: Button, became: list[Any]) -> HttpResponse | None:
        return self.secret_page(request, *became[0]) if button.name == "rotate" and became else None

    def sections(self, request: HttpRequest, row: WebhookEndpoint) -> dict[str, Any]:
        return {"deliveries_url": self._deliveries_url(row)}

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[LeanChangeList]:
        return EndpointChangeList

    @shown(_("URL"))
    def shown_url(self, endpoint: WebhookEndpoint) -> SafeString:
        if endpoint.tenant == "default":
            return isolated(first_line(endpoint.url))
        tenant = isolated(endpoint.tenant)
        return format_html('{} <span class="jc-mark">{}</span>', isolated(first_line(endpoint.url)), tenant)

    @shown(_("URL"))
    def whole_url(self, endpoint: WebhookEndpoint) -> SafeString:
        return isolated(endpoint.url)

    @shown(_("events"))
    def shown_events(self, endpoint: WebhookEndpoint) -> SafeString:
        return isolated(", ".join(map(str, endpoint.events)))

    @shown(_("state"))
    def shown_state(self, endpoint: WebhookEndpoint) -> SafeString:
        if endpoint.enabled:
            return mark("good", _now("enabled"), "✓")
        why = isolated(first_line(endpoint.disabled_reason))
        return format_html("{} {}", mark("bad", _now("disabled"), "⊘"), why)

    @shown(_("received (24 h)"))
    def lately(self, endpoint: WebhookEndpoint) -> str | None:
        """Of the last hundred at most."""
        received: tuple[int, int] | None = getattr(endpoint, "received", None)
        return None if received is None else f"{received[0] / received[1]:.0%} ({received[1]})"

    @shown(_("rests until"))
    def rests(self, endpoint: WebhookEndpoint) -> SafeString | None:
        """After failures in a row nothing is sent for a while."""
        return when(endpoint.open_until)

    @shown(_("disabled because"))
    def shown_reason(self, endpoint: WebhookEndpoint) -> SafeString | None:
        return text_block(endpoint.disabled_reason)

    @shown(_("delivered within 24 hours"))
    def success(self, endpoint: WebhookEndpoint) -> str | None:
        """Of the last ones; a receiver of millions is not counted through."""
        since = clock.first_id(clock.now() - timedelta(hours=24))
        last = WebhookDelivery.objects.filter(endpoint_id=endpoint.pk, pk__gte=since)
        ended = [each for each in last.order_by("-pk").values_list("status", flat=True)[:LATELY] if each != "PENDING"]
        if not ended:
            return None
        return f"{ended.count(str(DeliveryStatus.DELIVERED)) / len(ended):.0%} ({len(ended)})"

    def _deliveries_url(self, endpoint: WebhookEndpoint) -> str:
        if not self.admin_site.is_registered(WebhookDelivery):
            return ""
        return f"{list_url(self.admin_site, WebhookDelivery)}?q=endpoint:{endpoint.pk}"
