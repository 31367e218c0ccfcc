"""A development secret, made once and kept beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import NamedTemporaryFile

from django.core.management.utils import get_random_secret_key


def kept_secret(path: Path) -> str:
    """The secret in `path`; the first caller makes it, and two first callers agree on one."""
    if not path.exists():
        _make(path)
    return path.read_text().strip()


def _make(path: Path) -> None:
    with NamedTemporaryFile("w", dir=path.parent, prefix=path.name) as draft:  # readable by its owner only
        draft.write(get_random_secret_key() + "\n")
        draft.flush()
        try:
            os.link(draft.name, path)  # fails if another was first, and never shows a half-written file
        except FileExistsError:
            return
