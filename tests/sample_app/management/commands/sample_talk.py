from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser


class Command(BaseCommand):
    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--word", default="sea")

    def handle(self, *args: Any, **given: Any) -> None:
        self.stdout.write(f"said {given['word']}\nsaid it again")
