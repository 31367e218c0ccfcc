"""Authentication by API token or staff session, and authorization by scope or permission.

Missing or invalid credentials are 401; a missing scope or permission is 403. Tokens have scopes, users permissions; a
token that a user made needs both, the permissions as that user has them now. A session also needs its CSRF token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
from jobs.conf import conf
from jobs.errors import NotFound
from jobs.models import ApiToken, Job
from jobs.models.job import JobQuerySet
from jobs.services import failed_attempts, permissions, tokens
from jobs.services import jobs as job_services
from jobs.services.failed_attempts import UNKNOWN_TOKENS
from jobs.services.permissions import CHANGE_JOB, RUN_TEMPLATE, VIEW_PAYLOAD, Requirement
from jobs.validation import fields


@dataclass(frozen=True)
class Principal:
    """The authenticated token or user of a request.

    `tenant` None means all tenants. `user` is that of the session, or the user who made the token.
    """

    actor: Actor
    tenant: str | None = None
    token: ApiToken | None = None
    user: Any = None

    @property
    def token_id(self) -> UUID | None:
        return None if self.token is None else self.token.pk

    @property
    def can_view_payload(self) -> bool:
        """Whether responses show params, artifacts and logs: it takes the scope `read`, and the user's permission."""
        return self.has_scope("read") and self.has_permission(VIEW_PAYLOAD)

    @property
    def can_view_lease_ids(self) -> bool:
        """Whether events of starts show the lease: for workers and operators, of users those who may edit jobs."""
        return (self.has_scope("work") or self.has_scope("operate")) and self.has_permission(CHANGE_JOB)

    def require_token(self) -> ApiToken:
        """Return the token of an operation that no session may use."""
        assert self.token is not None
        return self.token

    def has_scope(self, scope: str) -> bool:
        """Return whether the token has a scope; a session has permissions instead."""
        return self.token is None or _has_scope(self.token, scope)

    def has_permission(self, name: str) -> bool:
        """Return whether the user has a permission; a token without a maker has its scopes instead."""
        return self.user is None or bool(self.user.has_perm(name))

    def require_template_permission(self, items: Iterable[Any]) -> None:
        """Raise Forbidden if one of these submissions names a template that the user may not run."""
        names_template = any(isinstance(item, Mapping) and item.get("template") is not None for item in items)
        if names_template and not self.has_permission(RUN_TEMPLATE):
            raise Forbidden(_("Using a template requires the permission to run templates."))

    def require_addon(self, addon_id: str) -> None:
        """Raise Forbidden if the token is bound to other addons."""
        addons = None if self.token is None else self.token.addons
        if addons is not None and addon_id not in addons:
            raise Forbidden(_("This token works for other addons only: %s.") % ", ".join(addons))

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

    def require_own_job(self, job_id: UUID) -> None:
        """Raise Forbidden if a token without the scope `operate` did not submit the job."""
        if not self.has_scope("operate") and not job_services.is_submitter(job_id, self.actor):
            raise Forbidden(_("With the scope “submit”, a token cancels only the jobs that it submitted."))

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


def build_authenticators(requirement: Requirement) -> list[Any]:
    """Return the authenticators of an operation. No session has the scope `work`."""
    return [Bearer(requirement), ApiKey(requirement), Console(requirement)]


class Bearer(HttpBearer):
    def __init__(self, requirement: Requirement) -> None:
        super().__init__()
        self.requirement = requirement

    def __call__(self, request: HttpRequest) -> Principal | None:
        kind, _space, token = request.headers.get("Authorization", "").strip().partition(" ")
        return _authenticate_token(request, token.strip(), self.requirement) if kind.lower() == "bearer" else None

    def authenticate(self, request: HttpRequest, token: str) -> Any:
        raise NotImplementedError  # __call__ does not use it


class ApiKey(APIKeyHeader):
    param_name = "X-API-Key"

    def __init__(self, requirement: Requirement) -> None:
        super().__init__()
        self.requirement = requirement

    def authenticate(self, request: HttpRequest, key: str | None) -> Principal | None:
        return None if key is None else _authenticate_token(request, key.strip(), self.requirement)


class Console(APIKeyCookie):
    """A staff session of the admin console.

    Without a session cookie no CSRF token is required, so that such a request gets 401 and not 403.
    """

    def __init__(self, requirement: Requirement) -> None:
        self.param_name = settings.SESSION_COOKIE_NAME
        super().__init__(csrf=True)
        self.requirement = requirement

    def __call__(self, request: HttpRequest) -> Principal | None:
        user = getattr(request, "user", None) if self.param_name in request.COOKIES else None
        if user is None or not user.is_authenticated:
            return None
        if not getattr(user, "is_staff", False):
            raise Forbidden(_("The API requires a staff account or a token."))
        reject_forms(request)  # Django would read a form of any size to find its CSRF token
        if check_csrf(request):
            raise CsrfFailed(_("A session requires its CSRF token in the header X-CSRFToken."))
        if self.requirement.scope == "work" or not permissions.is_allowed(user, self.requirement):
            raise Forbidden(_("You lack the permission for this."))
        return Principal(actors.make_user_actor(user), user=user)

    def authenticate(self, request: HttpRequest, key: str | None) -> Any:
        raise NotImplementedError  # __call__ does not use it


class LegacyToken:
    """The token that LEGACY_TOKEN names, for requests to the deprecated paths that have no credentials."""

    def __init__(self, requirement: Requirement) -> None:
        self.requirement = requirement

    def __call__(self, request: HttpRequest) -> Principal | None:
        if conf.LEGACY_TOKEN is None:
            return None
        token = tokens.find_by_prefix(conf.LEGACY_TOKEN)
        if token is None:
            raise Unauthorized(_("The token that LEGACY_TOKEN names is unknown, has expired or was revoked."))
        return _authorize(token, self.requirement)


def _has_scope(token: ApiToken, scope: str) -> bool:
    return scope in token.scopes or "admin" in token.scopes


def _authenticate_token(request: HttpRequest, text: str, requirement: Requirement) -> Principal:
    """Return the principal of a token. Raise Unauthorized, TooManyRequests or Forbidden."""
    token = tokens.find(text)
    if token is None:
        _count_unknown_token(request)
        raise Unauthorized(_("This token is unknown, has expired or was revoked."))
    return _authorize(token, requirement)


def _authorize(token: ApiToken, requirement: Requirement) -> Principal:
    """Return the principal of a usable token. Raise Unauthorized, TooManyRequests or Forbidden."""
    wait_sec = tokens.count_request(token)
    if wait_sec is not None:
        raise TooManyRequests(wait_sec)
    tokens.record_use(token)
    maker = tokens.find_maker(token)
    if token.maker is not None and not (getattr(maker, "is_active", False) and getattr(maker, "is_staff", False)):
        raise Unauthorized(_("The user who made this token is not an active staff user."))
    if not _has_scope(token, requirement.scope):
        raise Forbidden(_("This token lacks the scope “%s”.") % requirement.scope)
    if maker is not None and not permissions.is_allowed(maker, requirement):
        raise Forbidden(_("The user who made this token lacks the permission for this."))
    return Principal(actors.make_token_actor(token.name, token.prefix, token.pk), token.tenant, token, maker)


def _count_unknown_token(request: HttpRequest) -> None:
    """Raise TooManyRequests for an address that sends many. Its requests with known tokens are answered."""
    if conf.API_RATE_LIMIT is None:
        return
    network = get_peer_network(request)
    wait_sec = failed_attempts.get_wait_sec(UNKNOWN_TOKENS, network)
    if wait_sec is not None:
        raise TooManyRequests(wait_sec, _("Too many requests with unknown tokens from this address."))
    failed_attempts.count_failure(UNKNOWN_TOKENS, network)
