"""The standalone site: settings, urls, wsgi and asgi for the apps jobs, schedules and webhooks.

Importing it raises if another module shadows one of our packages, whose names (jobs, schedules, …) are common words.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

__version__ = "0.1.0"

OUR_PACKAGES = ("jobs", "schedules", "webhooks")
INSTALL_DIR = Path(__file__).resolve().parent.parent


def require_unshadowed(names: Iterable[str] = OUR_PACKAGES, install_dir: Path = INSTALL_DIR) -> None:
    for name in names:
        location = _locate(name)
        if location != install_dir / name:
            raise ImportError(
                f"The package {name!r} of django-jobscheduler ({install_dir / name}) is shadowed by "
                f"{location or 'nothing'}: "
                "a site with a top-level package of that name cannot install django-jobscheduler."
            )


def _locate(name: str) -> Path | None:
    """Return the directory of the package, or the file of the module, that `import name` would load."""
    spec = find_spec(name)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin).resolve() if spec.origin else None


require_unshadowed()
