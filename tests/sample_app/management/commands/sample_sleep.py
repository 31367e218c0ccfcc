from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser


class Command(BaseCommand):
    """Notes its process, and sleeps until it is ended."""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("note", type=Path)

    def handle(self, *args: Any, **given: Any) -> None:
        given["note"].write_text(str(os.getpid()))
        time.sleep(600)
