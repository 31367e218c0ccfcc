"""Ids of parametrized tests."""

from __future__ import annotations

from typing import Any


def make_test_id(value: Any) -> str:
    """Return a short id for a value that may be too large or unprintable to be one itself."""
    if isinstance(value, str) and len(value) <= 40:
        return ascii(value)
    return type(value).__name__
