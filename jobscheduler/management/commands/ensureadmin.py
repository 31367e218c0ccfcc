"""Makes the first administrator of a new installation, and does nothing in one that has an administrator."""

from __future__ import annotations

import os
import secrets
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError


class Command(BaseCommand):
    help = (
        "Makes an administrator if there is none: ADMIN_USERNAME (default admin) with ADMIN_PASSWORD, "
        "or with a generated password that is printed once."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        if User.objects.filter(is_superuser=True, is_active=True).exists():
            return
        name = os.environ.get("ADMIN_USERNAME") or "admin"
        if User.objects.filter(username=name).exists():
            raise CommandError(f"The account {name!r} exists and is no administrator; choose another ADMIN_USERNAME.")
        given = os.environ.get("ADMIN_PASSWORD")
        password = given or secrets.token_urlsafe(12)
        User.objects.create_superuser(name, password=password)
        self._tell(name, None if given else password)

    def _tell(self, name: str, password: str | None) -> None:
        self.stdout.write(self.style.SUCCESS(f"Made the administrator {name!r}."))
        if password:
            self.stdout.write(f"  username: {name}\n  password: {password}   (shown only this once)")
