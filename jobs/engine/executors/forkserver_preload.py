"""Preload for the server that forks job processes: load Django once, and ignore signals meant for the worker."""

from __future__ import annotations

import contextlib
import os
import signal

import django

signal.signal(signal.SIGTERM, signal.SIG_IGN)
with contextlib.suppress(PermissionError):
    os.setsid()
django.setup()
