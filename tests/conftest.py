"""One suite, two databases: DATABASE_URL says which one this run is on."""

from __future__ import annotations

import gc
import logging
import os
import random
import secrets
import signal
import threading
from collections import defaultdict
from collections.abc import Generator, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from django.db import connection
from django.utils import translation

if TYPE_CHECKING:
    from django.test import Client

    from tests.support.worker_processes import Fleet

logging.getLogger("factory").setLevel(logging.WARNING)  # it spells everything that it makes, asked or not
# The many processes that tests start need not compile everything anew, each time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["PYTHONPYCACHEPREFIX"] = str(Path(__file__).resolve().parent.parent / ".pytest_cache" / "bytecode")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    # A shell's background has no Ctrl-C, and neither have its children, which tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


gc.set_threshold(100_000, 20, 20)  # frequent collections find little in tests; they took 8 % of the CPU time


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", action="store_true", help="write the pictures of the documentation anew")


def pytest_report_header() -> str:
    return f"database: {connection.vendor}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the clicks of each operator task, see tests/browser/test_operator_tasks.py."""
    reports = [report for report in terminalreporter.getreports("") if getattr(report, "when", "") == "teardown"]
    clicks = {report.nodeid.rpartition("::")[2]: dict(report.user_properties).get("clicks") for report in reports}
    for name, number in clicks.items():
        if number is not None:
            terminalreporter.write_line(f"{number} clicks: {name}")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Begin each worker's share with tests that wait for processes: at the end they would wait alone.

    A worker gets a share of consecutive tests, and takes from another's end when it has finished its own. Tests that
    use one wheel, one browser or one module's fixtures stay together.
    """
    yield  # to pytest-django, which puts tests that commit last
    shares: list[list[pytest.Item]] = [[] for _ in range(int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))]
    waiting: dict[Path, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if key := _waiting_group(item):
            waiting[key].append(item)
    for group in sorted(waiting.values(), key=len, reverse=True):
        min(shares, key=len).extend(group)
    others = iter([item for item in items if not _waiting_group(item)])
    size = -(-len(items) // len(shares))
    items[:] = [item for share in shares for item in (*share, *islice(others, max(size - len(share), 0)))]


def _waiting_group(item: pytest.Item) -> Path | None:
    """Return the directory or module that a test shares processes or large tables with, or None."""
    if item.path.parent.name in ("packaging", "browser"):
        return item.path.parent
    if item.path.parent.name in ("query_plans", "source_documents"):  # a module fills large tables or starts a product
        return item.path
    mark = item.get_closest_marker("django_db")
    commits = mark is not None and mark.kwargs.get("transaction", False)
    return item.path if commits or "transactional_db" in getattr(item, "fixturenames", ()) else None


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
def errors_logged_alone() -> Iterator[None]:
    """Log no warnings: formatting those of thousands of refused requests takes as long as the requests."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


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


@pytest.fixture
def fleet(process_env: dict[str, str], tmp_path: Path) -> Iterator[Fleet]:
    """Start worker processes on the test's database; what they printed is shown if the test fails."""
    from tests.support.worker_processes import Fleet  # only here: some runs of this suite have other settings

    with Fleet(process_env, tmp_path) as fleet:
        yield fleet
        print(fleet.logs())


@pytest.fixture
def chance() -> random.Random:
    """Return the random choices of a test; SEED repeats those of an earlier run."""
    seed = os.environ.get("SEED") or secrets.token_hex(4)
    print(f"SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def boss(db: None) -> Client:
    """Return the browser of a superuser."""
    from django.contrib.auth.models import User

    from tests.support.admin_users import log_in

    return log_in(User.objects.create_superuser("boss"))


@pytest.fixture
def looker(db: None) -> Client:
    """Return the browser of a user who may view everything and change nothing."""
    from tests.support.admin_users import create_reader, log_in

    return log_in(create_reader("looker"))
