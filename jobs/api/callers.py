"""Who is calling: a token or a person at the console, of one tenant or of all, and what they may see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.http import HttpRequest
from django.utils.translation import gettext as _

from jobs import actors, parsing
from jobs.actors import Actor
from jobs.api.problems import Forbidden
from jobs.errors import NotFound
from jobs.models import ApiToken, Job
from jobs.models.job import JobQuerySet

VIEW_PAYLOAD = "jobscheduler_jobs.view_payload"


@dataclass(frozen=True)
class Caller:
    """`tenant` None is all tenants. Without `payload`, params, artifacts and logs stay hidden."""

    actor: Actor
    tenant: str | None = None
    payload: bool = True
    token_id: UUID | None = None

    @classmethod
    def of_token(cls, token: ApiToken) -> Caller:
        return cls(Actor(actors.ActorKind.TOKEN, token.name), token.tenant, token_id=token.pk)

    @classmethod
    def of_user(cls, user: Any) -> Caller:
        return cls(actors.user(user), payload=user.has_perm(VIEW_PAYLOAD))

    def sees(self, tenant: str) -> bool:
        return self.tenant is None or self.tenant == tenant

    def jobs(self) -> JobQuerySet:
        """Where every query for jobs starts."""
        found = Job.objects.all()
        return found if self.tenant is None else found.filter(tenant=self.tenant)

    def job_id(self, written: Any) -> UUID:
        """The id of a job that this caller may know of. Its tenant never changes, so it stays theirs."""
        known = parsing.job_id(written)
        if not self.jobs().filter(pk=known).exists():
            raise NotFound(_("There is no such object."))
        return known

    def job_named(self, said: Any, field: str) -> UUID:
        """As `job_id`, for an id that a body names."""
        return self.job_id(parsing.text(said, field))

    def tenant_for(self, said: Any) -> str:
        """The tenant of something new: the caller's own, unless one who has them all says which."""
        if said is None:
            return "default" if self.tenant is None else self.tenant
        named = parsing.tenant(said)
        if not self.sees(named):
            raise Forbidden(_("This token is of another tenant."))
        return named

    def require_all_tenants(self) -> None:
        if self.tenant is not None:
            raise Forbidden(_("This takes a token of all tenants."))


class ApiRequest(HttpRequest):
    """A request that got past the gate."""

    auth: Caller
