"""`manage.py ensureadmin`: create the first administrator, unless there is one."""

from __future__ import annotations

import os
import secrets
from typing import Any

from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError


class Command(BaseCommand):
    requires_system_checks = ["jobs"]
    help = (
        "Create an administrator if there is none: ADMIN_USERNAME (default admin) with ADMIN_PASSWORD, "
        "or with a generated password that is printed once."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self._ensure_admin()
        except OperationalError as error:
            raise CommandError(f"The database cannot be used: {str(error).splitlines()[0]}") from None

    def _ensure_admin(self) -> None:
        name = os.environ.get("ADMIN_USERNAME") or "admin"
        admin = User.objects.filter(is_superuser=True, is_active=True).order_by("pk").first()
        if admin is not None:
            self.stdout.write(f"Administrator: {admin.get_username()!r}; its password is unchanged.")
            if os.environ.get("ADMIN_PASSWORD") and admin.get_username() != name:
                self.stdout.write("ADMIN_USERNAME and ADMIN_PASSWORD are ignored: they apply to the first start only.")
            return
        if User.objects.filter(username=name).exists():
            message = f"The account {name!r} exists but is not an administrator; choose another ADMIN_USERNAME."
            raise CommandError(message)
        chosen_password = os.environ.get("ADMIN_PASSWORD")
        password = chosen_password or secrets.token_urlsafe(12)
        try:
            User(username=name).full_clean(exclude=["password"])
        except ValidationError as error:
            raise CommandError(f"ADMIN_USERNAME {name!r}: {' '.join(error.messages)}", returncode=2) from None
        if chosen_password:
            try:
                validate_password(chosen_password, User(username=name))
            except ValidationError as error:
                raise CommandError(f"ADMIN_PASSWORD: {' '.join(error.messages)}", returncode=2) from None
        User.objects.create_superuser(name, password=password)
        self.stdout.write(self.style.SUCCESS(f"Created the administrator {name!r}."))
        if not chosen_password:
            self.stdout.write(f"  username: {name}\n  password: {password}   (shown only once)")
