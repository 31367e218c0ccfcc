"""What each operation of the API requires of a user: the same for a session and for a token that the user made.

The API declares its operations here, and the console derives from them which scopes a user may grant to a token.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from jobs.models.token import SCOPES

APP_LABEL = "jobscheduler_jobs"
CHANGE_JOB = f"{APP_LABEL}.change_job"
VIEW_PAYLOAD = f"{APP_LABEL}.view_payload"
RUN_TEMPLATE = f"{APP_LABEL}.run_jobtemplate"
DEFAULT_PERMISSIONS = {"read": ("view_job",), "submit": ("add_job",)}  # by scope, unless the operation names some


class Requirement(NamedTuple):
    """The scope of an operation, and the permissions of a user; without permissions, only superusers have it."""

    scope: str
    permissions: tuple[str, ...]


OPERATIONS: dict[str, Requirement] = {}  # by operation id; filled as the modules of the API are imported


def build_requirement(scope: str, *permissions: str) -> Requirement:
    """Return the requirement of an operation. A permission without an app label is one of `jobs`."""
    names = permissions or DEFAULT_PERMISSIONS.get(scope, ())
    return Requirement(scope, tuple(name if "." in name else f"{APP_LABEL}.{name}" for name in names))


def is_allowed(user: Any, requirement: Requirement) -> bool:
    """Return whether the user has the permissions now. Django keeps them in `user` after the first look."""
    if not requirement.permissions:
        return bool(getattr(user, "is_superuser", False))
    return bool(user.has_perms(requirement.permissions))


def list_grantable_scopes(user: Any) -> list[str]:
    """Return the scopes whose operations the user may all use; `admin` has those of every scope."""
    if getattr(user, "is_superuser", False):
        return list(SCOPES)
    return [scope for scope in SCOPES if _is_grantable(user, scope)]


def _is_grantable(user: Any, scope: str) -> bool:
    requirements = [entry for entry in OPERATIONS.values() if scope in (entry.scope, "admin")]
    # A site without the API has no operations, and nothing to compare a scope with.
    return bool(requirements) and all(is_allowed(user, requirement) for requirement in requirements)
