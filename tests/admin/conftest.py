from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests.admin.people import logged_in, reader


@pytest.fixture
def boss(db: Any) -> Client:
    """A superuser's browser."""
    return logged_in(User.objects.create_superuser("boss"))


@pytest.fixture
def looker(db: Any) -> Client:
    """The browser of somebody who may view everything and do nothing."""
    return logged_in(reader("looker"))
