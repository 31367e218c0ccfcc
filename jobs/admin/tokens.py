"""Tokens of the API: made here and shown once, revoked here, never edited."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.widgets import AdminTextInputWidget
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.cache import add_never_cache_headers
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from jobs import actors, parsing, tokens
from jobs.admin.reading import LeanAdmin
from jobs.admin.showing import change_url, isolated, shown
from jobs.errors import InvalidInput
from jobs.models import ApiToken
from jobs.models.token import SCOPES

APP = "jobscheduler_jobs"
LONGEST_DAYS = 36_500
# What a person needs to give a scope away: one cannot hand out more than one has.
GRANTED_BY = {
    "read": ("view_job", "view_payload"),
    "submit": ("add_job",),
    "operate": (
        *("cancel_job", "pause_job", "resume_job", "retry_job", "resolve_job", "release_job", "reorder_job"),
        *("change_job", "pause_target"),
    ),
}


def grantable(user: Any) -> list[str]:
    if user.is_superuser:
        return list(SCOPES)
    return [scope for scope, needed in GRANTED_BY.items() if user.has_perms([f"{APP}.{each}" for each in needed])]


class TokenForm(forms.ModelForm):
    tenant = forms.CharField(
        label=_("Tenant"),
        required=False,
        initial="default",
        max_length=64,
        help_text=_("Empty: all tenants."),
        widget=AdminTextInputWidget,
    )
    scopes = forms.MultipleChoiceField(label=_("Scopes"), widget=forms.CheckboxSelectMultiple)
    days = forms.IntegerField(
        label=_("Expires after (days)"),
        required=False,
        min_value=1,
        max_value=LONGEST_DAYS,
        help_text=_("Empty: never."),
    )

    granted: Sequence[str] = ()

    class Meta:
        model = ApiToken
        fields = ("name", "tenant", "scopes")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if isinstance(scopes := self.fields.get("scopes"), forms.MultipleChoiceField):
            scopes.choices = [(scope, scope) for scope in self.granted]

    def clean_name(self) -> str:
        return self._through(parsing.identifier, "name")

    def clean_tenant(self) -> str | None:
        return self._through(parsing.tenant, "tenant") if self.cleaned_data["tenant"] else None

    def _through(self, gate: Any, name: str) -> str:
        try:
            passed: str = gate(self.cleaned_data[name], name)
        except InvalidInput as error:
            raise forms.ValidationError(error.errors[0]["msg"]) from None
        return passed


class ApiTokenAdmin(LeanAdmin):
    """Nothing of a token is edited: whoever needs another one makes it and revokes the old one."""

    form = TokenForm
    actions = ("revoke",)
    list_display = ("shown_name", "prefix", "tenant", "shown_scopes", "last_used_at", "expires_at", "revoked_at")
    name_field = "name"
    qualifiers = {"tenant": "tenant", "prefix": "prefix"}
    fieldsets = (
        (None, {"fields": ("id", "shown_name", "prefix", "tenant", "shown_scopes")}),
        (_("When"), {"fields": ("created_at", "last_used_at", "expires_at", "revoked_at")}),
    )
    add_fieldsets = ((None, {"fields": ("name", "tenant", "scopes", "days")}),)

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> list[Any]:
        return list(self.add_fieldsets) if obj is None else super().get_fieldsets(request, obj)

    def get_form(self, request: HttpRequest, obj: Model | None = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, change, **kwargs)
        return type(form.__name__, (form,), {"granted": grantable(request.user)})

    def has_add_permission(self, request: HttpRequest) -> bool:
        return super().has_add_permission(request) and bool(grantable(request.user))

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(f"{APP}.change_apitoken")

    def save_model(self, request: HttpRequest, obj: ApiToken, form: Any, change: bool) -> None:
        days = form.cleaned_data["days"]
        made, written = tokens.create(
            form.cleaned_data["name"],
            tenant=form.cleaned_data["tenant"],
            scopes=form.cleaned_data["scopes"],
            lifetime=None if days is None else timedelta(days=days),
            actor=actors.user(request.user),
        )
        obj.__dict__.update(made.__dict__)
        request.made_token = written  # type: ignore[attr-defined]  # for this one answer only

    def response_add(self, request: HttpRequest, obj: Model, post_url_continue: str | None = None) -> HttpResponse:
        """The one page that shows it; it goes through no redirect, cookie or session."""
        context = {
            **self.admin_site.each_context(request),
            "title": _("Token made"),
            "opts": self.opts,
            "token": obj,
            "written": request.made_token,  # type: ignore[attr-defined]
            "page_url": change_url(self.admin_site, ApiToken, obj.pk),
        }
        response = TemplateResponse(request, "jobs/token_made.html", context)
        add_never_cache_headers(response)
        return response

    @admin.action(permissions=["revoke"], description=_("Revoke selected tokens"))
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiToken]) -> None:
        chosen: Any = list(queryset.filter(revoked_at__isnull=True))
        for token in chosen:
            tokens.revoke(token.pk, actor=actors.user(request.user))
        if chosen:
            user_id: Any = request.user.pk
            LogEntry.objects.log_actions(user_id, chosen, CHANGE, "revoke")
        count = len(chosen)
        told = ngettext("%(count)d token revoked.", "%(count)d tokens revoked.", count) % {"count": count}
        self.message_user(request, told, messages.SUCCESS if count else messages.WARNING)

    @shown(_("name"))
    def shown_name(self, token: ApiToken) -> SafeString:
        return isolated(token.name)

    @shown(_("scopes"))
    def shown_scopes(self, token: ApiToken) -> SafeString:
        return isolated(", ".join(map(str, token.scopes)))
