"""Sessions end some hours after the log-in, and earlier without activity."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import Client

from jobs.admin.screens import LIVE_HEADER
from jobscheduler.sessions import ACTIVE, REFRESH_HEADER, STARTED, WRITE_SEC

pytestmark = [pytest.mark.django_db, pytest.mark.once]
HOUR = 3600


@pytest.fixture
def client(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client


def shift(client: Client, **seconds: int) -> dict[str, int]:
    """Move times of the session into the past; return them."""
    session: Any = client.session
    for name, passed in seconds.items():
        session[{"started": STARTED, "active": ACTIVE}[name]] -= passed
    session.save()
    return {name: session[name] for name in (STARTED, ACTIVE)}


def is_logged_in(client: Client) -> bool:
    return client.get("/admin/scheduler/overview/").status_code == 200


def test_a_session_ends_twelve_hours_after_the_log_in_whatever_its_user_does(client: Client) -> None:
    shift(client, started=12 * HOUR - 60)
    assert is_logged_in(client)
    shift(client, started=61)
    assert not is_logged_in(client)
    assert not Session.objects.exists()


def test_a_session_ends_after_two_hours_without_a_page(client: Client) -> None:
    shift(client, active=2 * HOUR - 60)
    assert is_logged_in(client)
    assert client.session[ACTIVE] > shift(client, active=2 * HOUR + 1)[ACTIVE]
    assert not is_logged_in(client)


def test_a_page_that_refreshes_itself_is_no_activity(client: Client) -> None:
    active = shift(client, active=WRITE_SEC)[ACTIVE]
    client.get("/admin/", headers={LIVE_HEADER: "1"})
    assert client.session[ACTIVE] == active
    client.get("/admin/")
    assert client.session[ACTIVE] > active
    assert REFRESH_HEADER == LIVE_HEADER


def test_activity_is_recorded_at_most_once_a_minute(client: Client) -> None:
    active = shift(client, active=WRITE_SEC - 10)[ACTIVE]
    client.get("/admin/")
    assert client.session[ACTIVE] == active


def test_a_session_of_before_gets_its_times_with_its_next_page(client: Client) -> None:
    session: Any = client.session
    del session[STARTED], session[ACTIVE]
    session.save()
    assert is_logged_in(client)
    assert {STARTED, ACTIVE} <= set(client.session.keys())
