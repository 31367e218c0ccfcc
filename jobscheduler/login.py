"""The log-in of the standalone site: failures are logged with their source, and repeated ones delay the next."""

from __future__ import annotations

import logging
import math
from typing import Any

from django.contrib.admin.forms import AdminAuthenticationForm
from django.contrib.auth.signals import user_logged_in, user_login_failed
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.translation import ngettext

from jobs.api.peers import get_peer_address, get_peer_network
from jobs.services import failed_attempts
from jobs.services.failed_attempts import LOGINS_OF_ADDRESS, LOGINS_OF_USER
from jobs.validation.sanitize import escape_unprintable

logger = logging.getLogger("jobscheduler.login")


class LoginForm(AdminAuthenticationForm):
    """The admin's form. It checks no password while its source has too many failures."""

    def clean(self) -> dict[str, Any]:
        name, request = self.cleaned_data.get("username"), self.request
        if name and request is not None and (wait_sec := _get_wait_sec(request, name)) is not None:
            logger.warning("log-in of %s from %s refused: too many failures", _quote(name), get_peer_address(request))
            minutes = max(math.ceil(wait_sec / 60), 1)
            message = ngettext(
                "Too many failed log-ins. Try again in %(minutes)d minute.",
                "Too many failed log-ins. Try again in %(minutes)d minutes.",
                minutes,
            )
            raise ValidationError(message, code="too_many_failures", params={"minutes": minutes})
        cleaned: dict[str, Any] = super().clean()
        return cleaned


def record_failure(*, credentials: dict[str, Any], request: HttpRequest | None = None, **kwargs: Any) -> None:
    name = str(credentials.get("username", ""))
    if request is None:
        return
    logger.warning("log-in of %s from %s failed", _quote(name), get_peer_address(request))
    network = get_peer_network(request)
    failed_attempts.count_failure(LOGINS_OF_ADDRESS, network)
    failed_attempts.count_failure(LOGINS_OF_USER, name.casefold(), network)


def record_success(*, request: HttpRequest | None, user: Any, **kwargs: Any) -> None:
    if request is not None and request.POST:
        name = user.get_username()
        logger.info("log-in of %s from %s", _quote(name), get_peer_address(request))
        failed_attempts.forget_failures(LOGINS_OF_USER, name.casefold(), get_peer_network(request))


def _get_wait_sec(request: HttpRequest, name: str) -> float | None:
    network = get_peer_network(request)
    waits = (
        failed_attempts.get_wait_sec(LOGINS_OF_USER, name.casefold(), network),
        failed_attempts.get_wait_sec(LOGINS_OF_ADDRESS, network),
    )
    return max((wait for wait in waits if wait is not None), default=None)


def _quote(name: str) -> str:
    return repr(escape_unprintable(name[:100]))


user_login_failed.connect(record_failure, dispatch_uid="jobscheduler.login.failure")
user_logged_in.connect(record_success, dispatch_uid="jobscheduler.login.success")
