"""One suite, two databases: DATABASE_URL says which one this run is on."""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path

import pytest
from django.db import connection
from django.utils import translation

logging.getLogger("factory").setLevel(logging.WARNING)  # it spells everything that it makes, asked or not
# The many processes that tests start need not compile everything anew, each time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["PYTHONPYCACHEPREFIX"] = str(Path(__file__).resolve().parent.parent / ".pytest_cache" / "bytecode")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    # A shell's background has no Ctrl-C, and neither have its children, which tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", action="store_true", help="write the pictures of the documentation anew")


def pytest_report_header() -> str:
    return f"database: {connection.vendor}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    _hang_up_in_the_middle()
    translation.deactivate()  # a request of the test client leaves its language active in this thread
    if item.get_closest_marker("pg_only") and connection.vendor != "postgresql":
        pytest.skip("needs PostgreSQL")
    if item.get_closest_marker("sqlite_only") and connection.vendor != "sqlite":
        pytest.skip("needs SQLite")
    if item.get_closest_marker("once") and connection.vendor != "sqlite":
        pytest.skip("is about no database")


def _hang_up_in_the_middle() -> None:
    """A test that ran out of time leaves its statement in the middle; the tests after it shall not fail for that."""
    raw = connection.connection
    if connection.vendor == "postgresql" and raw is not None and raw.info.transaction_status.name == "ACTIVE":
        connection.close()


@pytest.fixture
def process_env(transactional_db: None) -> dict[str, str]:
    """The environment in which a child process finds this test's database."""
    return {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": database_url()}


def database_url() -> str:
    """The test database of this run, in the form that settings read."""
    named = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{named['NAME']}"
    return f"postgres://{named['USER']}:{named['PASSWORD']}@{named['HOST']}:{named['PORT']}/{named['NAME']}"
