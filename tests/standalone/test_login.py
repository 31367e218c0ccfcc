"""Failed log-ins are logged with their source and limited by user name and address, over all processes."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models.functions import Now
from django.test import Client

from jobs.models import FailedAttempt
from jobs.services.failed_attempts import LOGINS_OF_ADDRESS, LOGINS_OF_USER

pytestmark = pytest.mark.django_db

PASSWORD = "a long passphrase"
HERE, ELSEWHERE = "192.0.2.7", "192.0.2.8"


@pytest.fixture(autouse=True)
def grace(db: None) -> User:
    return User.objects.create_superuser("grace", password=PASSWORD)


def log_in(name: str, password: str, address: str = HERE, **headers: str) -> Any:
    form = {"username": name, "password": password}
    return Client(REMOTE_ADDR=address).post("/admin/login/?next=/admin/", form, headers=headers)


def fail_often(name: str = "grace", address: str = HERE, count: int = LOGINS_OF_USER.maximum) -> None:
    for _ in range(count):
        assert log_in(name, "wrong", address).status_code == 200


def is_refused(response: Any) -> bool:
    return "Too many failed log-ins. Try again in 5 minutes." in response.content.decode()


def test_after_some_failures_not_even_the_right_password_is_accepted() -> None:
    fail_often(count=LOGINS_OF_USER.maximum - 1)
    assert not is_refused(log_in("grace", "wrong"))
    assert is_refused(log_in("grace", PASSWORD))
    assert is_refused(log_in("GRACE", PASSWORD))


def test_the_same_user_can_log_in_from_another_address_and_another_user_from_the_same() -> None:
    User.objects.create_superuser("ada", password=PASSWORD)
    fail_often()
    assert log_in("grace", PASSWORD, ELSEWHERE).status_code == 302
    assert log_in("ada", PASSWORD).status_code == 302


def test_an_address_that_tries_many_users_is_refused() -> None:
    for number in range(LOGINS_OF_ADDRESS.maximum):
        log_in(f"user-{number}", "wrong")
    assert is_refused(log_in("grace", PASSWORD))
    assert log_in("grace", PASSWORD, ELSEWHERE).status_code == 302


def test_all_addresses_of_one_ipv6_network_are_one_source() -> None:
    for number in range(LOGINS_OF_USER.maximum):
        log_in("grace", "wrong", f"2001:db8:0:1::{number:x}")
    assert is_refused(log_in("grace", PASSWORD, "2001:db8:0:1::ffff"))
    assert log_in("grace", PASSWORD, "2001:db8:0:2::1").status_code == 302


def test_the_window_ends_and_its_rows_are_removed() -> None:
    fail_often()
    FailedAttempt.objects.update(window_at=Now() - timedelta(minutes=6))
    assert log_in("grace", PASSWORD).status_code == 302
    log_in("ada", "wrong")
    assert FailedAttempt.objects.count() == 2  # of this user and of this address


def test_a_success_forgets_the_failures_of_its_user() -> None:
    for _ in range(2):
        fail_often(count=LOGINS_OF_USER.maximum - 1)
        assert log_in("grace", PASSWORD).status_code == 302


def test_neither_names_nor_addresses_are_stored() -> None:
    fail_often(count=1)
    assert {len(key) for key in FailedAttempt.objects.values_list("key", flat=True)} == {64}


def test_every_failure_is_a_log_line_with_name_and_address(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "jobscheduler.login")
    log_in("gra\nce", "wrong")
    log_in("grace", PASSWORD)
    fail_often()
    log_in("grace", PASSWORD)
    messages = [record.getMessage() for record in caplog.records if record.name == "jobscheduler.login"]
    assert messages[0] == r"log-in of 'gra\\nce' from 192.0.2.7 failed"
    assert messages[1] == "log-in of 'grace' from 192.0.2.7"
    assert messages[-1] == "log-in of 'grace' from 192.0.2.7 refused: too many failures"
    assert PASSWORD not in caplog.text


def test_behind_a_proxy_the_source_is_what_the_proxy_has_seen(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    settings.JOBSCHEDULER = {"NUM_PROXIES": 1}
    for number in range(LOGINS_OF_USER.maximum):
        forged = f"198.51.100.{number}, {HERE}"  # the client sent the first, the proxy appended the second
        log_in("grace", "wrong", "127.0.0.1", **{"X-Forwarded-For": forged})
    assert is_refused(log_in("grace", PASSWORD, "127.0.0.1", **{"X-Forwarded-For": HERE}))
    assert log_in("grace", PASSWORD, "127.0.0.1", **{"X-Forwarded-For": ELSEWHERE}).status_code == 302
    assert f"log-in of 'grace' from {HERE} failed" in caplog.text


def test_without_a_proxy_the_header_is_ignored() -> None:
    for number in range(LOGINS_OF_USER.maximum):
        log_in("grace", "wrong", **{"X-Forwarded-For": f"198.51.100.{number}"})
    assert is_refused(log_in("grace", PASSWORD))
