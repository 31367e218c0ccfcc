from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from jobs.admin import jobs, queue
from tests.support.admin_users import logged_in, reader


@pytest.fixture(autouse=True)
def counted_anew() -> None:
    """What another test counted is no answer here."""
    jobs._count_cache.clear()
    queue._queue_cache.clear()


@pytest.fixture
def boss(db: Any) -> Client:
    """A superuser's browser."""
    return logged_in(User.objects.create_superuser("boss"))


@pytest.fixture
def looker(db: Any) -> Client:
    """The browser of somebody who may view everything and do nothing."""
    return logged_in(reader("looker"))
