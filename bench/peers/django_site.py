"""A minimal Django site for the app of a peer."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit


def configure(**settings: Any) -> None:
    import django
    from django.conf import settings as site

    url = urlsplit(os.environ["PEER_URL"])
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": url.path[1:],
        "USER": url.username,
        "PASSWORD": url.password,
        "HOST": url.hostname,
        "PORT": url.port,
        "CONN_MAX_AGE": None,
    }
    site.configure(
        SECRET_KEY="only for benchmarks",
        USE_TZ=True,
        DATABASES={"default": database},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        LOGGING={"version": 1, "root": {"level": "ERROR"}},
        **settings,
    )
    django.setup()


def migrate() -> None:
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
