"""Names as label values, of which there must never be too many: only what is declared has a series of its own.

Declared is what the code and the settings name, so a series changes its label with a deployment and not by itself.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from jobs.conf import conf
from jobs.registry import registry

OTHER = "other"
MOST_ADDONS = 100


def known(name: str | None, names: Container[str]) -> str:
    return name if name is not None and name in names else OTHER


def job_types() -> dict[str, str]:
    """Every job type that this process knows, old names too, and what it is called now."""
    handlers = [registry.get(name) for name in registry.names()]
    return {name: each.name for each in handlers for name in (each.name, *each.options.aliases)}


def resources() -> set[str]:
    """What the handlers and the limits of the settings name."""
    return {"default", *(resource for resource, _ in declared()), *conf.LIMITS.resource}


def declared() -> set[tuple[str, str]]:
    """Every job type with the resource that its handler names."""
    return {(registry.get(name).options.resource, name) for name in registry.names()}


def addons(found: Iterable[str]) -> set[str]:
    """Nobody declares addons, so they are counted: those with a limit first, and not more than so many."""
    limited = set(conf.LIMITS.addon)
    others = sorted(set(found) - limited)
    return {*limited, *others[: max(MOST_ADDONS - len(limited), 0)]}
