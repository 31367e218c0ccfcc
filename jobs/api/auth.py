"""Who is calling, and whether they may: a token, or a staff session with its CSRF token; then scope or permission.

No or bad credentials are 401, a missing scope or permission is 403. Tokens have scopes, persons have permissions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings
from django.http import HttpRequest
from django.utils.translation import gettext as _
from ninja.security import APIKeyCookie, APIKeyHeader, HttpBearer
from ninja.utils import check_csrf

from jobs import actors
from jobs.actors import Actor
from jobs.api.problems import CsrfFailed, Forbidden, TooManyRequests, Unauthorized
from jobs.api.request_params import refuse_forms
from jobs.errors import NotFound
from jobs.models import Job
from jobs.models.job import JobQuerySet
from jobs.services import tokens
from jobs.validation import fields

APP = "jobscheduler_jobs"
VIEW_PAYLOAD = f"{APP}.view_payload"
PERMISSIONS = {"read": "view_job", "submit": "add_job"}  # of a session, where an operation names none of its own


@dataclass(frozen=True)
class Caller:
    """`tenant` None is all tenants. Without `payload`, params, artifacts and logs stay hidden."""

    actor: Actor
    tenant: str | None = None
    payload: bool = True
    token_id: UUID | None = None

    def sees(self, tenant: str) -> bool:
        return self.tenant is None or self.tenant == tenant

    def jobs(self) -> JobQuerySet:
        """Where every query for jobs starts."""
        found = Job.objects.all()
        return found if self.tenant is None else found.filter(tenant=self.tenant)

    def job_id(self, written: Any) -> UUID:
        """The id of a job that this caller may know of. Its tenant never changes, so it stays theirs."""
        known = fields.parse_id(written)
        if not self.jobs().filter(pk=known).exists():
            raise NotFound(_("There is no such object."))
        return known

    def tenant_for(self, said: Any) -> str:
        """The tenant of something new: the caller's own, unless one who has them all says which."""
        if said is None:
            return "default" if self.tenant is None else self.tenant
        named = fields.parse_tenant(said)
        if not self.sees(named):
            raise Forbidden(_("This token is of another tenant."))
        return named

    def require_all_tenants(self) -> None:
        if self.tenant is not None:
            raise Forbidden(_("This takes a token of all tenants."))


class ApiRequest(HttpRequest):
    """A request that got past the gate."""

    auth: Caller


def needs(scope: str, permission: str | None = None) -> list[Any]:
    """Authenticators for an operation: `auth=needs("operate", "cancel_job")`.

    Without a permission, sessions go by PERMISSIONS; a scope that has none there is for superusers, except `work`,
    which no session has.
    """
    return [Bearer(scope), ApiKey(scope), Console(scope, permission or PERMISSIONS.get(scope))]


class Bearer(HttpBearer):
    def __init__(self, scope: str) -> None:
        super().__init__()
        self.scope = scope

    def __call__(self, request: HttpRequest) -> Caller | None:
        kind, _space, written = request.headers.get("Authorization", "").strip().partition(" ")
        return _token_caller(written.strip(), self.scope) if kind.lower() == "bearer" else None

    def authenticate(self, request: HttpRequest, token: str) -> Any:
        raise NotImplementedError  # __call__ does not ask


class ApiKey(APIKeyHeader):
    param_name = "X-API-Key"

    def __init__(self, scope: str) -> None:
        super().__init__()
        self.scope = scope

    def authenticate(self, request: HttpRequest, key: str | None) -> Caller | None:
        return None if key is None else _token_caller(key.strip(), self.scope)


class Console(APIKeyCookie):
    """A person at the console. Without a session cookie nothing is asked of CSRF: that caller gets a plain 401."""

    def __init__(self, scope: str, permission: str | None) -> None:
        self.param_name = settings.SESSION_COOKIE_NAME
        super().__init__(csrf=True)
        self.scope, self.permission = scope, permission

    def __call__(self, request: HttpRequest) -> Caller | None:
        user = getattr(request, "user", None) if self.param_name in request.COOKIES else None
        if user is None or not user.is_authenticated:
            return None
        if not getattr(user, "is_staff", False):
            raise Forbidden(_("The API is for staff and for tokens."))
        refuse_forms(request)  # Django looks for a CSRF token in forms, and would read one of any size
        if check_csrf(request):
            raise CsrfFailed(_("A session needs its CSRF token, in the header X-CSRFToken."))
        if self.permission is None:
            is_allowed = getattr(user, "is_superuser", False)
        else:  # another app's permission is written with its label
            is_allowed = user.has_perm(self.permission if "." in self.permission else f"{APP}.{self.permission}")
        if self.scope == "work" or not is_allowed:
            raise Forbidden(_("You lack the permission for this."))
        return Caller(actors.user(user), payload=user.has_perm(VIEW_PAYLOAD))

    def authenticate(self, request: HttpRequest, key: str | None) -> Any:
        raise NotImplementedError  # __call__ does not ask


def _token_caller(written: str, scope: str) -> Caller:
    token = tokens.find(written)
    if token is None:
        raise Unauthorized(_("This token is unknown, has expired or was revoked."))
    wait_sec = tokens.seconds_to_wait(token)
    if wait_sec is not None:
        raise TooManyRequests(wait_sec)
    tokens.note_use(token)
    if scope not in token.scopes and "admin" not in token.scopes:
        raise Forbidden(_("This token lacks the scope “%s”.") % scope)
    return Caller(Actor(actors.ActorKind.TOKEN, token.name), token.tenant, token_id=token.pk)
