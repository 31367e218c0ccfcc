from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser


class Command(BaseCommand):
    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("code", type=int)

    def handle(self, *args: Any, **given: Any) -> None:
        raise CommandError("as requested", returncode=given["code"])
