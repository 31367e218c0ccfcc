"""Makes the first administrator of a new installation, and does nothing in one that has an administrator."""

from __future__ import annotations

import os
import secrets
from typing import Any

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError


class Command(BaseCommand):
    requires_system_checks = ["jobs"]
    help = (
        "Makes an administrator if there is none: ADMIN_USERNAME (default admin) with ADMIN_PASSWORD, "
        "or with a generated password that is printed once."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self._ensure()
        except OperationalError as error:
            raise CommandError(f"The database cannot be used: {str(error).splitlines()[0]}") from None

    def _ensure(self) -> None:
        name = os.environ.get("ADMIN_USERNAME") or "admin"
        known = User.objects.filter(is_superuser=True, is_active=True).order_by("pk").first()
        if known is not None:
            self.stdout.write(f"Administrator: {known.get_username()!r}, with the password it has.")
            if os.environ.get("ADMIN_PASSWORD") and known.get_username() != name:
                self.stdout.write("ADMIN_USERNAME and ADMIN_PASSWORD were not used: they are for the first start.")
            return
        if User.objects.filter(username=name).exists():
            raise CommandError(f"The account {name!r} exists and is no administrator; choose another ADMIN_USERNAME.")
        given = os.environ.get("ADMIN_PASSWORD")
        password = given or secrets.token_urlsafe(12)
        try:
            User(username=name).full_clean(exclude=["password"])
        except ValidationError as error:
            raise CommandError(f"ADMIN_USERNAME {name!r}: {' '.join(error.messages)}", returncode=2) from None
        User.objects.create_superuser(name, password=password)
        self.stdout.write(self.style.SUCCESS(f"Made the administrator {name!r}."))
        if not given:
            self.stdout.write(f"  username: {name}\n  password: {password}   (shown only this once)")
