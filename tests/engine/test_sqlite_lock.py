"""Writers wait for SQLite's only write lock outside of SQLite, and leave nothing that stops another thread."""

from __future__ import annotations

import gc
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from django.db import OperationalError, connection

from jobs import db, enqueue
from jobs.models import Job

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.sqlite_only]


@contextmanager
def write_lock() -> Iterator[sqlite3.Connection]:
    """Hold the write lock on another connection."""
    with closing(sqlite3.connect(str(connection.settings_dict["NAME"]), uri=True, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


@pytest.fixture
def short_timeout() -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout = 150")
    yield
    connection.close()


def read_timeout() -> int:
    with connection.cursor() as cursor:
        return int(cursor.execute("PRAGMA busy_timeout").fetchone()[0])


def count_cursors() -> int:
    return sum(isinstance(kept, sqlite3.Cursor) for kept in gc.get_objects())


def test_a_writer_gets_the_lock_when_it_is_free() -> None:
    waiting = threading.Event()

    def write() -> None:
        waiting.set()
        enqueue("sample.noop")
        connection.close()

    with write_lock() as other:
        writer = threading.Thread(target=write)
        writer.start()
        assert waiting.wait(5)
        other.execute("ROLLBACK")
    writer.join(20)
    assert Job.objects.count() == 1


def test_a_thread_that_holds_the_lock_for_long_leaves_it_to_others_before_it_takes_it_again() -> None:
    held: list[str] = []
    waiting = threading.Event()

    def write() -> None:
        waiting.set()
        with db.atomic():
            held.append("short")
        connection.close()

    with db.atomic():
        writer = threading.Thread(target=write)
        writer.start()
        assert waiting.wait(5)
        time.sleep(2 * db.LONG_LOCK_SEC)  # the long work
    for _turn in range(5):
        with db.atomic():
            held.append("long")
    writer.join(20)
    assert held[0] == "short"


def test_a_crowd_of_writers_polls_less_often_when_it_keeps_the_cpus_busy() -> None:
    patient, impatient, in_a_crowd = 0.0, db.LOCK_PATIENCE_SEC, db.CROWD_SEC
    assert db.compute_lock_pause(patient, 0.01) == db.LOCK_POLL_SEC
    assert db.compute_lock_pause(impatient, 0.01) < db.LOCK_POLL_SEC
    pauses = [db.compute_lock_pause(in_a_crowd, late_sec) for late_sec in (0.0, 0.001, 0.01)]
    assert pauses[0] < pauses[1] < pauses[2]
    assert db.compute_lock_pause(in_a_crowd, 60.0) == db.LONGEST_LOCK_POLL_SEC


def test_past_the_timeout_of_the_site_a_writer_gets_an_error(short_timeout: None) -> None:
    with write_lock(), pytest.raises(OperationalError, match="locked"), db.atomic():
        raise AssertionError("entered")
    assert read_timeout() == 150
    with db.atomic():
        assert read_timeout() == 150


def test_waiting_leaves_no_cursors_to_the_garbage_collector(short_timeout: None) -> None:
    """It runs in any thread, and would wait there for a connection that waits for the lock itself."""
    gc.collect()
    gc.disable()
    try:
        before = count_cursors()
        with write_lock(), pytest.raises(OperationalError), db.atomic():
            raise AssertionError("entered")
        assert count_cursors() - before <= 2  # of the error that was raised
    finally:
        gc.enable()
