"""Authentication by API token or staff session, and authorization by scope or permission.

Missing or invalid credentials are 401; a missing scope or permission is 403. Tokens have scopes, users permissions. A
session also needs its CSRF token.
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
from jobs.api.peers import get_peer_network
from jobs.api.problems import CsrfFailed, Forbidden, TooManyRequests, Unauthorized
from jobs.api.request_params import reject_forms
from jobs.errors import NotFound
from jobs.models import Job
from jobs.models.job import JobQuerySet
from jobs.services import failed_attempts, tokens
from jobs.services.failed_attempts import UNKNOWN_TOKENS
from jobs.validation import fields

APP = "jobscheduler_jobs"
VIEW_PAYLOAD = f"{APP}.view_payload"
PERMISSIONS = {"read": "view_job", "submit": "add_job"}  # of a session, by scope, unless the operation names one


@dataclass(frozen=True)
class Principal:
    """The authenticated token or user of a request.

    `tenant` None means all tenants. Without `can_view_payload`, params, artifacts and logs are hidden.
    """

    actor: Actor
    tenant: str | None = None
    can_view_payload: bool = True
    token_id: UUID | None = None

    def can_see_tenant(self, tenant: str) -> bool:
        return self.tenant is None or self.tenant == tenant

    def visible_jobs(self) -> JobQuerySet:
        """Return the jobs of the principal's tenant: every query for jobs starts from these."""
        jobs = Job.objects.all()
        return jobs if self.tenant is None else jobs.filter(tenant=self.tenant)

    def require_job_id(self, value: Any) -> UUID:
        """Return the id of a visible job, or raise NotFound. A job never changes its tenant, so it stays visible."""
        job_id = fields.parse_id(value)
        if not self.visible_jobs().filter(pk=job_id).exists():
            raise NotFound(_("There is no such object."))
        return job_id

    def resolve_tenant(self, tenant: Any) -> str:
        """Return the tenant of a new object: the given one, or the principal's own.

        Raise Forbidden for another tenant than that of the principal.
        """
        if tenant is None:
            return "default" if self.tenant is None else self.tenant
        name = fields.parse_tenant(tenant)
        if not self.can_see_tenant(name):
            raise Forbidden(_("This token belongs to another tenant."))
        return name

    def require_all_tenants(self) -> None:
        """Raise Forbidden unless the principal may see all tenants."""
        if self.tenant is not None:
            raise Forbidden(_("This requires a token for all tenants."))


class ApiRequest(HttpRequest):
    """An authenticated request."""

    auth: Principal


def build_authenticators(scope: str, permission: str | None = None) -> list[Any]:
    """Return the authenticators of an operation: `auth=build_authenticators("operate", "cancel_job")`.

    Without `permission`, a session needs that of PERMISSIONS; for a scope without one it must be a superuser's. No
    session has the scope `work`.
    """
    return [Bearer(scope), ApiKey(scope), Console(scope, permission or PERMISSIONS.get(scope))]


class Bearer(HttpBearer):
    def __init__(self, scope: str) -> None:
        super().__init__()
        self.scope = scope

    def __call__(self, request: HttpRequest) -> Principal | None:
        kind, _space, token = request.headers.get("Authorization", "").strip().partition(" ")
        return _authenticate_token(request, token.strip(), self.scope) if kind.lower() == "bearer" else None

    def authenticate(self, request: HttpRequest, token: str) -> Any:
        raise NotImplementedError  # __call__ does not use it


class ApiKey(APIKeyHeader):
    param_name = "X-API-Key"

    def __init__(self, scope: str) -> None:
        super().__init__()
        self.scope = scope

    def authenticate(self, request: HttpRequest, key: str | None) -> Principal | None:
        return None if key is None else _authenticate_token(request, key.strip(), self.scope)


class Console(APIKeyCookie):
    """A staff session of the admin console.

    Without a session cookie no CSRF token is required, so that such a request gets 401 and not 403.
    """

    def __init__(self, scope: str, permission: str | None) -> None:
        self.param_name = settings.SESSION_COOKIE_NAME
        super().__init__(csrf=True)
        self.scope, self.permission = scope, permission

    def __call__(self, request: HttpRequest) -> Principal | None:
        user = getattr(request, "user", None) if self.param_name in request.COOKIES else None
        if user is None or not user.is_authenticated:
            return None
        if not getattr(user, "is_staff", False):
            raise Forbidden(_("The API requires a staff account or a token."))
        reject_forms(request)  # Django would read a form of any size to find its CSRF token
        if check_csrf(request):
            raise CsrfFailed(_("A session requires its CSRF token in the header X-CSRFToken."))
        if self.permission is None:
            is_allowed = getattr(user, "is_superuser", False)
        else:  # a permission of another app has its app label
            is_allowed = user.has_perm(self.permission if "." in self.permission else f"{APP}.{self.permission}")
        if self.scope == "work" or not is_allowed:
            raise Forbidden(_("You lack the permission for this."))
        return Principal(actors.make_user_actor(user), can_view_payload=user.has_perm(VIEW_PAYLOAD))

    def authenticate(self, request: HttpRequest, key: str | None) -> Any:
        raise NotImplementedError  # __call__ does not use it


def _authenticate_token(request: HttpRequest, text: str, scope: str) -> Principal:
    """Return the principal of a token. Raise Unauthorized, TooManyRequests or Forbidden."""
    token = tokens.find(text)
    if token is None:
        _count_unknown_token(request)
        raise Unauthorized(_("This token is unknown, has expired or was revoked."))
    wait_sec = tokens.count_request(token)
    if wait_sec is not None:
        raise TooManyRequests(wait_sec)
    tokens.record_use(token)
    if scope not in token.scopes and "admin" not in token.scopes:
        raise Forbidden(_("This token lacks the scope “%s”.") % scope)
    return Principal(Actor(actors.ActorKind.TOKEN, token.name), token.tenant, token_id=token.pk)


def _count_unknown_token(request: HttpRequest) -> None:
    """Raise TooManyRequests for an address that sends many. Its requests with known tokens are answered."""
    network = get_peer_network(request)
    wait_sec = failed_attempts.get_wait_sec(UNKNOWN_TOKENS, network)
    if wait_sec is not None:
        raise TooManyRequests(wait_sec, _("Too many requests with unknown tokens from this address."))
    failed_attempts.count_failure(UNKNOWN_TOKENS, network)
