"""Bearer tokens: shown once, kept as a digest, found by it. Their times are the database's clock."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import DatabaseError
from django.db.models import BooleanField, ExpressionWrapper, F, Q
from django.db.models.functions import Now
from django.utils.translation import gettext as _

from jobs import clock, db
from jobs.actors import PYTHON, Actor
from jobs.conf import conf
from jobs.errors import InvalidInput, NotFound
from jobs.models import ApiToken
from jobs.models.token import SCOPES
from jobs.validation import fields

logger = logging.getLogger("jobs.services.tokens")

TOKEN_PREFIX = "js_"  # so that scanners for leaked secrets can know one
PREFIX_LENGTH = len(TOKEN_PREFIX) + 7
TOKEN_LENGTH_LIMIT = 200
WINDOW = timedelta(minutes=1)
DEFAULT_SCOPES = ("read", "submit")


def create(
    name: str,
    *,
    tenant: str | None = "default",
    scopes: Iterable[str] = DEFAULT_SCOPES,
    lifetime: timedelta | None = None,
    actor: Actor = PYTHON,
) -> tuple[ApiToken, str]:
    """A new token and its text, which nobody can ever ask for again. Tenant None is every tenant."""
    written = TOKEN_PREFIX + secrets.token_urlsafe(32)
    token = ApiToken(
        name=fields.parse_identifier(name, "name"),
        tenant=None if tenant is None else fields.parse_tenant(tenant),
        scopes=parse_scopes(scopes),
        prefix=written[:PREFIX_LENGTH],
        digest=hash_token(written),
        expires_at=None if lifetime is None else clock.now() + lifetime,
    )
    token.save(using=db.alias(), force_insert=True)
    token.refresh_from_db(using=db.alias())
    logger.info("token %s made by %s", token.prefix, actor.name or actor.kind)
    return token, written


def find(written: str) -> ApiToken | None:
    """The token that this is the text of, unless it has expired or was revoked."""
    if not 0 < len(written) <= TOKEN_LENGTH_LIMIT:
        return None
    usable = ApiToken.objects.filter(digest=hash_token(written), revoked_at__isnull=True)
    unexpired = usable.filter(Q(expires_at__isnull=True) | Q(expires_at__gt=Now()))
    unnoted = Q(last_used_at__isnull=True) | Q(last_used_at__lt=Now() - WINDOW)
    noted = unexpired.annotate(use_unnoted=ExpressionWrapper(unnoted, output_field=BooleanField()))
    return noted.order_by().first()


def record_use(token: ApiToken) -> None:
    """When it was last used, to the minute: a request that only reads should not have to write."""
    if not getattr(token, "use_unnoted", True):
        return
    try:
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=Now())
    except DatabaseError as error:  # a database that can only be read can still be read
        logger.warning("the use of token %s was not noted: %s", token.prefix, error)


def revoke(token_id: UUID, *, actor: Actor = PYTHON) -> ApiToken:
    """It is refused from now on. Revoking it again changes nothing."""
    if ApiToken.objects.filter(pk=token_id, revoked_at__isnull=True).update(revoked_at=Now()):
        logger.info("token %s revoked by %s", token_id, actor.name or actor.kind)
    token = ApiToken.objects.filter(pk=token_id).first()
    if token is None:
        raise NotFound(_("There is no such token."))
    return token


def count_request(token: ApiToken) -> float | None:
    """Count a request against API_RATE_LIMIT; None if it may go on.

    Counted in the token's row, so that the limit holds over all processes and hosts. A window begins with the
    first request after the last one has passed.
    """
    most = conf.API_RATE_LIMIT
    if most is None:
        return None
    row = ApiToken.objects.filter(pk=token.pk)
    open_since = Now() - WINDOW
    if row.filter(window_at__gt=open_since, window_count__lt=most).update(window_count=F("window_count") + 1):
        return None
    over = Q(window_at__isnull=True) | Q(window_at__lte=open_since)
    if row.filter(over).update(window_at=Now(), window_count=1):
        return None
    began = row.values_list("window_at", flat=True).first()
    return 0.0 if began is None else max((began + WINDOW - clock.now()).total_seconds(), 0.0)


def parse_scopes(given: Any) -> list[str]:
    """The scopes in their usual order; at least one."""
    asked = [given] if isinstance(given, str) else list(given)
    for scope in asked:
        if scope not in SCOPES:
            raise InvalidInput("scopes", _("must be some of %s") % ", ".join(SCOPES), "enum")
    if not asked:
        raise InvalidInput("scopes", _("must not be empty"), "too_short")
    return [scope for scope in SCOPES if scope in asked]


def hash_token(written: str) -> str:
    return hashlib.sha256(written.encode(errors="surrogatepass")).hexdigest()
