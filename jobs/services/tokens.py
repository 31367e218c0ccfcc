"""API tokens: created once, stored as a digest, found by their text. Times are those of the database."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Iterable
from datetime import timedelta
from threading import Lock
from time import monotonic
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db import DatabaseError, IntegrityError
from django.db.models import BooleanField, ExpressionWrapper, F, Q
from django.db.models.functions import Now
from django.utils.translation import gettext as _

from jobs import clock, db
from jobs.actors import PYTHON, Actor
from jobs.conf import conf
from jobs.errors import InvalidInput, NotFound
from jobs.models import Action, ApiToken
from jobs.models.token import SCOPES
from jobs.services import activity
from jobs.services.templates import NameTaken
from jobs.validation import fields

logger = logging.getLogger("jobs.services.tokens")

TOKEN_PREFIX = "js_"  # recognised by scanners for leaked secrets
PREFIX_LENGTH = len(TOKEN_PREFIX) + 7
TOKEN_LENGTH_LIMIT = 200
WINDOW = timedelta(minutes=1)
DEFAULT_SCOPES = ("read", "submit")
MAX_ADDONS = 50


def create(
    name: str,
    *,
    tenant: str | None = "default",
    scopes: Iterable[str] = DEFAULT_SCOPES,
    addons: Iterable[str] | None = None,
    lifetime: timedelta | None = None,
    maker: Any = None,
    actor: Actor = PYTHON,
) -> tuple[ApiToken, str]:
    """Create a token. Return it and its text, which is not stored. Raise NameTaken.

    Tenant None: all tenants. `addons` are those that its scope `work` is for; None: all. `maker` is the user whose
    permissions bound it; None: it is bounded by its scopes alone.
    """
    text = TOKEN_PREFIX + secrets.token_urlsafe(32)
    token = ApiToken(
        name=fields.parse_identifier(name, "name"),
        tenant=None if tenant is None else fields.parse_tenant(tenant),
        scopes=parse_scopes(scopes),
        addons=None if addons is None else parse_addons(addons),
        maker=None if maker is None else str(maker.pk),
        prefix=text[:PREFIX_LENGTH],
        digest=hash_token(text),
        expires_at=None if lifetime is None else clock.now() + lifetime,
    )
    try:
        with db.atomic():
            token.save(using=db.alias(), force_insert=True)
            token.refresh_from_db(using=db.alias())
            fields_set = {name: getattr(token, name) for name in ("tenant", "scopes", "addons", "prefix", "expires_at")}
            activity.record(Action.TOKEN_CREATE, _to_object(token), actor=actor, after=fields_set)
    except IntegrityError:
        message = _("The tenant already has a token “%s”. Choose another name, or revoke that token first.")
        raise NameTaken(message % token.name) from None
    logger.info("token %s created by %s", token.prefix, actor)
    return token, text


def find(text: str) -> ApiToken | None:
    """Return the token with this text, unless it has expired or was revoked."""
    if not 0 < len(text) <= TOKEN_LENGTH_LIMIT:
        return None
    return _find_usable(digest=hash_token(text))


def find_by_prefix(prefix: str) -> ApiToken | None:
    """Return the token with this prefix, unless it has expired or was revoked, or another one has it, too."""
    return _find_usable(prefix=prefix)


def _find_usable(**condition: str) -> ApiToken | None:
    is_outdated = Q(last_used_at__isnull=True) | Q(last_used_at__lt=Now() - WINDOW)
    use_is_outdated = ExpressionWrapper(is_outdated, output_field=BooleanField())
    usable = ApiToken.objects.usable().filter(**condition).annotate(use_is_outdated=use_is_outdated)
    found = list(usable.order_by()[:2])
    return found[0] if len(found) == 1 else None


def is_name_taken(name: str, tenant: str | None) -> bool:
    """Return whether the tenant has a token of this name that was not revoked."""
    return ApiToken.objects.filter(name=name, tenant=tenant, revoked_at__isnull=True).exists()


def find_maker(token: ApiToken) -> Any:
    """Return the user who made a token; None if that user was deleted, or if a user did not make it."""
    users: Any = get_user_model()._default_manager
    try:
        return None if token.maker is None else users.filter(pk=token.maker).first()
    except (TypeError, ValueError, ValidationError):  # it is no key of the present user model
        return None


def record_use(token: ApiToken) -> None:
    """Record the time of use once a minute, so that most requests that only read do not write."""
    if not getattr(token, "use_is_outdated", True):
        return
    try:
        with db.atomic_on_sqlite():
            ApiToken.objects.filter(pk=token.pk).update(last_used_at=Now())
    except DatabaseError as error:  # with a read-only database, requests can still read
        logger.warning("the use of token %s was not recorded: %s", token.prefix, error)


def revoke(token_id: UUID, *, reason: str = "", actor: Actor = PYTHON) -> ApiToken:
    """Revoke a token. Revoking it again changes nothing."""
    with db.atomic():
        is_changed = ApiToken.objects.filter(pk=token_id, revoked_at__isnull=True).update(revoked_at=Now())
        token = ApiToken.objects.filter(pk=token_id).first()
        if token is None:
            raise NotFound(_("There is no such token."))
        if is_changed:
            before, after = {"revoked_at": None}, {"revoked_at": token.revoked_at}
            activity.record(
                Action.TOKEN_REVOKE, _to_object(token), actor=actor, before=before, after=after, reason=reason
            )
            logger.info("token %s revoked by %s", token_id, actor)
    return token


class CountedAhead:
    """Requests that this process has counted in a token's row ahead of time, so that not each request writes."""

    def __init__(self) -> None:
        self._left: dict[UUID, tuple[int, float]] = {}
        self._lock = Lock()

    def take(self, token_id: UUID) -> bool:
        """Use one of them; return False if none is left. They expire with the window, at the latest."""
        with self._lock:
            left, expires_at = self._left.pop(token_id, (0, 0.0))
            if left < 1 or monotonic() > expires_at:
                return False
            self._left[token_id] = (left - 1, expires_at)
            return True

    def add(self, token_id: UUID, count: int) -> None:
        with self._lock:
            self._left[token_id] = (count, monotonic() + WINDOW.total_seconds())


counted_ahead = CountedAhead()


def count_request(token: ApiToken) -> float | None:
    """Count a request against API_RATE_LIMIT. Return None if it is allowed, else the seconds to wait.

    The count is in the token's row, so that the limit holds for all processes and hosts. A process counts 1 % of the
    limit at a time. A window starts with the first request after the previous window.
    """
    limit = conf.API_RATE_LIMIT
    if limit is None or counted_ahead.take(token.pk):
        return None
    share = max(limit // 100, 1)
    row = ApiToken.objects.filter(pk=token.pk)
    open_since = Now() - WINDOW
    has_room = row.filter(window_at__gt=open_since, window_count__lte=limit - share)
    is_closed = Q(window_at__isnull=True) | Q(window_at__lte=open_since)
    for _attempt in range(2):  # another request may open the window between the two statements
        with db.atomic_on_sqlite():
            is_counted = has_room.update(window_count=F("window_count") + share) or row.filter(is_closed).update(
                window_at=Now(), window_count=share
            )
        if is_counted:
            counted_ahead.add(token.pk, share - 1)
            return None
    started_at = row.values_list("window_at", flat=True).first()
    return 0.0 if started_at is None else max((started_at + WINDOW - clock.now()).total_seconds(), 0.0)


def _to_object(token: ApiToken) -> activity.ChangedObject:
    return activity.ChangedObject(token.pk, token.name, token.tenant)


def parse_scopes(value: Any) -> list[str]:
    """Validate the scopes, at least one; return them in the order of SCOPES."""
    scopes = [value] if isinstance(value, str) else list(value)
    for scope in scopes:
        if scope not in SCOPES:
            raise InvalidInput("scopes", _("must be some of %s") % ", ".join(SCOPES), "enum")
    if not scopes:
        raise InvalidInput("scopes", _("must not be empty"), "too_short")
    return [scope for scope in SCOPES if scope in scopes]


def parse_addons(value: Any) -> list[str]:
    """Validate the addons of a token, at least one; return each once."""
    names = list(dict.fromkeys(fields.parse_identifier(name, "addons") for name in value))
    if not names:
        raise InvalidInput("addons", _("must not be empty"), "too_short")
    if len(names) > MAX_ADDONS:
        raise InvalidInput("addons", _("has more than %d entries") % MAX_ADDONS, "too_long")
    return names


def hash_token(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
