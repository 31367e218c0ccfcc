"""Our import names jobs, schedules and webhooks are plain words: say at start-up which file took one of them."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

OUR_PACKAGES = ("jobs", "schedules", "webhooks")
OUR_HOME = Path(__file__).resolve().parent.parent


def refuse_shadows(names: Iterable[str] = OUR_PACKAGES, home: Path = OUR_HOME) -> None:
    for name in names:
        found = _found_at(name)
        if found != home / name:
            raise ImportError(
                f"The package {name!r} of django-jobscheduler ({home / name}) is shadowed by {found or 'nothing'}: "
                "a site with a top-level package of that name cannot install django-jobscheduler."
            )


def _found_at(name: str) -> Path | None:
    """The directory of a package, or the file of a module, that `import name` would load."""
    spec = find_spec(name)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin).resolve() if spec.origin else None
