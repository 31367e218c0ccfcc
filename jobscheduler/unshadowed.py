"""Importing this module raises if another one shadows our packages. It is imported before the first of them."""

from __future__ import annotations

from jobscheduler import require_unshadowed

require_unshadowed()
