"""The standalone site: settings, urls, wsgi and asgi for the apps jobs, schedules and webhooks.

The names of our packages are common words. Where another module shadows one, the apps, the urls and the settings
raise when they are imported. This package and its pytest plugin do not: a project that has a package `jobs` of its own
may have ours in its environment without using it.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

__version__ = "0.1.0"

OUR_PACKAGES = ("jobs", "schedules", "webhooks")
INSTALL_DIR = Path(__file__).resolve().parent.parent


def require_unshadowed(names: Iterable[str] = OUR_PACKAGES, install_dir: Path = INSTALL_DIR) -> None:
    """Raise ImportError if another module has the name of one of our packages."""
    if problem := find_shadow(names, install_dir):
        raise ImportError(problem)


def find_shadow(names: Iterable[str] = OUR_PACKAGES, install_dir: Path = INSTALL_DIR) -> str | None:
    """Return a sentence that names the module which shadows one of our packages; None if there is none."""
    for name in names:
        location = _locate(name)
        if location != install_dir / name:
            return (
                f"The package {name!r} of Job Scheduler ({install_dir / name}) is shadowed by {location or 'nothing'}: "
                "a site with a top-level package of that name cannot install Job Scheduler; rename one of the two."
            )
    return None


def _locate(name: str) -> Path | None:
    """Return the directory of the package, or the file of the module, that `import name` would load."""
    spec = find_spec(name)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin).resolve() if spec.origin else None
