"""LOG_LEVEL, as logging knows it."""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def log_level(name: str) -> str:
    if name.upper() not in LEVELS:
        raise ImproperlyConfigured(f"LOG_LEVEL must be one of {', '.join(LEVELS)}, not {name!r}.")
    return name.upper()
