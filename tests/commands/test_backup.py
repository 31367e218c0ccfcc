"""A backup taken beside a writer is a whole database, and a site starts from it."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from django.db import connection

from jobs.models import Job
from jobs.services import enqueue, enqueue_many
from tests.commands.saying import call, run


@pytest.mark.sqlite_only
@pytest.mark.django_db(transaction=True)
def test_a_restored_backup_has_all_that_was_committed_and_runs(process_env: dict[str, str], tmp_path: Path) -> None:
    kept = [enqueue("system.noop").pk for _ in range(20)]
    enough = threading.Event()

    def write_on() -> None:
        while not enough.is_set():
            enqueue_many([{"job_type": "system.noop"}] * 50)
        connection.close()

    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        answer = call("backup", tmp_path / "copy.sqlite3")
    finally:
        enough.set()
        writer.join()
    assert (answer.code, answer.out.strip()) == (0, str(tmp_path / "copy.sqlite3"))
    assert [path.name for path in tmp_path.iterdir()] == ["copy.sqlite3"]
    assert (tmp_path / "copy.sqlite3").stat().st_mode & 0o077 == 0

    # The drill: another site starts on the copy, finds every job, and works them off.
    with closing(sqlite3.connect(tmp_path / "copy.sqlite3")) as copy:
        found = {row[0] for row in copy.execute("SELECT id FROM jobscheduler_job")}
    assert {pk.hex for pk in kept} <= found
    env = {**process_env, "DATABASE_URL": f"sqlite:///{tmp_path}/copy.sqlite3", "JOBSCHEDULER_LIMITS": '{"global": 50}'}
    assert run(env, "worker", "--burst", "--concurrency", "50").code == 0
    with closing(sqlite3.connect(tmp_path / "copy.sqlite3")) as copy:
        ended = dict(copy.execute("SELECT status, count(*) FROM jobscheduler_job GROUP BY status"))
    assert ended == {"COMPLETED": len(found)}
    assert Job.objects.filter(status="COMPLETED").count() == 0  # the original is untouched


@pytest.mark.sqlite_only
@pytest.mark.django_db(transaction=True)
def test_a_file_is_replaced_only_if_asked_and_a_failure_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "copy.sqlite3"
    path.write_text("mine")
    assert call("backup", path).code == 1
    assert path.read_text() == "mine"
    assert call("backup", path, "--force").code == 0
    assert call("backup", tmp_path / "no" / "such" / "place").code == 1
    assert [each.name for each in tmp_path.iterdir()] == ["copy.sqlite3"]


@pytest.mark.pg_only
@pytest.mark.django_db
def test_on_postgresql_it_says_how_pg_dump_does_it(tmp_path: Path) -> None:
    answer = call("backup", tmp_path / "copy.dump")
    assert answer.code == 1
    assert "pg_dump --format=custom" in answer.err
    assert f"--file={tmp_path / 'copy.dump'} {connection.settings_dict['NAME']}" in answer.err
