"""API tokens: created here and shown once, revoked here, never edited. A token has the rights of its maker at most."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django import forms
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.cache import add_never_cache_headers
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy, pgettext_lazy

from jobs import actors
from jobs.actors import Actor
from jobs.admin.base import deny_permission
from jobs.admin.columns import change_url, column, computed_column
from jobs.admin.formatting import badge, format_relative_time, isolate_text
from jobs.admin.forms import text_field, validate_with
from jobs.admin.object_actions import ObjectAction, ServiceBackedAdmin
from jobs.admin.screens import APP
from jobs.errors import Conflict
from jobs.models import ApiToken
from jobs.services import tokens
from jobs.services.permissions import list_grantable_scopes
from jobs.validation import fields as validation


class TokenForm(forms.ModelForm):
    tenant = text_field(_("Tenant"), _("Leave empty for all tenants."), 64, initial="default")
    scopes = forms.MultipleChoiceField(label=_("Scopes"), widget=forms.CheckboxSelectMultiple)
    addons = text_field(_("Addons"), _("Addons of the scope “work”, separated by commas. Leave empty for all."), 10_000)
    days = forms.IntegerField(
        label=_("Expires after (days)"),
        required=False,
        min_value=1,
        max_value=36_500,
        help_text=_("Default: never"),
    )
    grantable: Sequence[str] = ()

    class Meta:
        model = ApiToken
        fields = ("name", "tenant", "scopes", "addons")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if isinstance(scopes := self.fields.get("scopes"), forms.MultipleChoiceField):
            scopes.choices = [(scope, scope) for scope in self.grantable]

    def clean_name(self) -> str:
        return str(validate_with(validation.parse_identifier, self.cleaned_data["name"], "name"))

    def clean_tenant(self) -> str | None:
        tenant = self.cleaned_data["tenant"]
        return str(validate_with(validation.parse_tenant, tenant, "tenant")) if tenant else None

    def clean_addons(self) -> list[str] | None:
        names = [name.strip() for name in self.cleaned_data["addons"].split(",") if name.strip()]
        addons: list[str] | None = validate_with(tokens.parse_addons, names) if names else None
        return addons

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if {"name", "tenant"} <= cleaned.keys() and tokens.is_name_taken(cleaned["name"], cleaned["tenant"]):
            self.add_error("name", _("The tenant has a token of this name. Choose another one, or revoke that token."))
        return cleaned

    def _get_validation_exclusions(self) -> set[str]:
        """Leave the check of the name to `clean`: the constraint would report nothing but its own name."""
        return {"name"} | super()._get_validation_exclusions()  # type: ignore[misc]  # the stubs lack it


def _revoke(token: ApiToken, *, reason: str, actor: Actor) -> None:
    if token.revoked_at is not None:
        raise Conflict(_now("it was revoked before"))
    tokens.revoke(token.pk, reason=reason, actor=actor)


class ApiTokenAdmin(ServiceBackedAdmin):
    """A token cannot be edited; create another one and revoke the old one."""

    form = TokenForm
    change_form_template = "jobs/facts_page.html"
    add_form_template = "jobs/page_with_buttons.html"
    empty_text = _("No API tokens yet. Create one here or with manage.py createtoken.")
    object_actions = (
        ObjectAction(
            "revoke",
            pgettext_lazy("verb", "Revoke"),
            _("Revoke selected tokens"),
            ngettext_lazy("%(count)d token revoked", "%(count)d tokens revoked", "count"),
            f"{APP}.change_apitoken",
            _revoke,
            lambda token: token.revoked_at is None,
            needs_confirmation=True,
        ),
    )
    list_display = ("shown_name", "prefix", "shown_tenant", "shown_scopes", "shown_state", "last_used", "expires")
    name_field = "name"
    qualifiers = {"tenant": "tenant", "prefix": "prefix"}
    fieldsets = (
        (
            None,
            {
                "fields": (
                    *("shown_state", "prefix", "shown_tenant", "shown_scopes", "shown_addons", "shown_maker"),
                    *("created", "last_used", "expires", "revoked", "id"),
                )
            },
        ),
    )
    has_change_permission = has_delete_permission = deny_permission

    shown_name = column(_("name"), "name", isolate_text)
    shown_tenant = column(_("tenant"), "tenant", lambda tenant: _now("all") if tenant is None else isolate_text(tenant))
    shown_scopes = column(_("scopes"), "scopes", lambda scopes: isolate_text(", ".join(map(str, scopes))))
    shown_addons = column(
        _("addons"), "addons", lambda addons: _now("all") if addons is None else isolate_text(", ".join(addons))
    )
    created = column(_("created"), "created_at", format_relative_time)
    revoked = column(_("revoked"), "revoked_at", format_relative_time)
    last_used = column(_("last used"), "last_used_at", format_relative_time)
    expires = column(_("expires"), "expires_at", format_relative_time)

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> list[Any]:
        added = [(None, {"fields": ("name", "tenant", "scopes", "addons", "days")})]
        return added if obj is None else super().get_fieldsets(request, obj)

    def page_context(self, request: HttpRequest, row: ApiToken) -> dict[str, Any]:
        return {"title": _now("Token %s") % row.name, "subtitle": None}

    def get_form(self, request: HttpRequest, obj: Model | None = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, change, **kwargs)
        return type(form.__name__, (form,), {"grantable": list_grantable_scopes(request.user)})

    def has_add_permission(self, request: HttpRequest) -> bool:
        return super().has_add_permission(request) and bool(list_grantable_scopes(request.user))

    def save_model(self, request: HttpRequest, obj: ApiToken, form: Any, change: bool) -> None:
        days = form.cleaned_data["days"]
        token, secret = tokens.create(
            form.cleaned_data["name"],
            tenant=form.cleaned_data["tenant"],
            scopes=form.cleaned_data["scopes"],
            addons=form.cleaned_data["addons"],
            lifetime=None if days is None else timedelta(days=days),
            maker=request.user,
            actor=actors.make_user_actor(request.user),
        )
        obj.__dict__.update(token.__dict__)
        request.new_token = secret  # type: ignore[attr-defined]  # for this response only

    def response_add(self, request: HttpRequest, obj: Model, post_url_continue: str | None = None) -> HttpResponse:
        """Show the token on the only page that has it; it is in no redirect, cookie or session."""
        context = {
            **self.admin_site.each_context(request),
            "title": _("Token created"),
            "opts": self.opts,
            "token": obj,
            "secret": request.new_token,  # type: ignore[attr-defined]
            "page_url": change_url(self.admin_site, ApiToken, obj.pk),
        }
        response = TemplateResponse(request, "jobs/token_made.html", context)
        add_never_cache_headers(response)
        return response

    @computed_column(_("created by"))
    def shown_maker(self, token: ApiToken) -> SafeString | None:
        """Return the user name, or the key of a deleted user; None for a token of a command or Python code."""
        if token.maker is None:
            return None
        maker = tokens.find_maker(token)
        return isolate_text(f"#{token.maker}" if maker is None else maker.get_username())

    @computed_column(_("state"))
    def shown_state(self, token: ApiToken) -> SafeString:
        if token.revoked_at is not None:
            return badge("cancelled", _now("revoked"), "⊘")
        if token.expires_at is not None and token.expires_at <= timezone.now():
            return badge("warn", _now("expired"), "!")
        return badge("good", _now("valid"), "✓")
