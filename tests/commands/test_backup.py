"""A backup taken during writes is a complete database, and a site starts from it."""

from __future__ import annotations

import os
import shlex
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from django.db import connection

from jobs.models import Job
from jobs.services.jobs import enqueue, enqueue_many
from tests.support.commands import call, run_process


@pytest.mark.sqlite_only
@pytest.mark.django_db(transaction=True)
def test_a_restored_backup_has_all_that_was_committed_and_runs(process_env: dict[str, str], tmp_path: Path) -> None:
    expected_ids = [enqueue("system.noop").pk for _ in range(20)]
    stop = threading.Event()

    def insert_jobs() -> None:
        while not stop.is_set():
            enqueue_many([{"job_type": "system.noop"}] * 50)
        connection.close()

    writer = threading.Thread(target=insert_jobs)
    writer.start()
    try:
        result = call("backup", tmp_path / "copy.sqlite3")
    finally:
        stop.set()
        writer.join()
    assert (result.code, result.out.strip()) == (0, str(tmp_path / "copy.sqlite3"))
    assert [path.name for path in tmp_path.iterdir()] == ["copy.sqlite3"]
    assert (tmp_path / "copy.sqlite3").stat().st_mode & 0o077 == 0

    # Restore drill: another site starts on the copy, finds every job and runs it.
    with closing(sqlite3.connect(tmp_path / "copy.sqlite3")) as copy:
        copied_ids = {row[0] for row in copy.execute("SELECT id FROM jobscheduler_job")}
    assert {job_id.hex for job_id in expected_ids} <= copied_ids
    env = {**process_env, "DATABASE_URL": f"sqlite:///{tmp_path}/copy.sqlite3", "JOBSCHEDULER_LIMITS": '{"global": 50}'}
    assert run_process(env, "worker", "--burst", "--concurrency", "50").code == 0
    with closing(sqlite3.connect(tmp_path / "copy.sqlite3")) as copy:
        counts = dict(copy.execute("SELECT status, count(*) FROM jobscheduler_job GROUP BY status"))
    assert counts == {"COMPLETED": len(copied_ids)}
    assert Job.objects.filter(status="COMPLETED").count() == 0  # the original is unchanged


@pytest.mark.sqlite_only
@pytest.mark.django_db(transaction=True)
def test_a_file_is_replaced_only_with_force_and_a_failure_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "copy.sqlite3"
    path.write_text("mine")
    assert call("backup", path).code == 1
    assert path.read_text() == "mine"
    assert call("backup", path, "--force").code == 0
    assert call("backup", tmp_path / "no" / "such" / "place").code == 1
    assert [path.name for path in tmp_path.iterdir()] == ["copy.sqlite3"]


@pytest.mark.sqlite_only
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
def test_the_database_itself_is_never_replaced(suffix: str, tmp_path: Path) -> None:
    job_id = enqueue("system.noop").pk
    database_file = Path(connection.settings_dict["NAME"] + suffix)
    existed, inode = database_file.exists(), Path(connection.settings_dict["NAME"]).stat().st_ino
    (tmp_path / "link").symlink_to(database_file)
    for path in (database_file, tmp_path / "link", Path(os.path.relpath(database_file))):
        result = call("backup", path, "--force")
        assert (result.code, result.err) == (2, f"{path} belongs to the database itself; choose another file.\n")
    assert (database_file.exists(), Path(connection.settings_dict["NAME"]).stat().st_ino) == (existed, inode)
    connection.close()
    assert Job.objects.filter(pk=job_id).exists()


@pytest.mark.sqlite_only
@pytest.mark.django_db(transaction=True)
def test_a_hard_link_to_the_database_is_never_replaced(tmp_path: Path) -> None:
    enqueue("system.noop")
    (tmp_path / "hard").hardlink_to(connection.settings_dict["NAME"])
    assert call("backup", tmp_path / "hard", "--force").code == 2


@pytest.mark.sqlite_only
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("force", [[], ["--force"]], ids=["plain", "forced"])
def test_only_a_regular_file_is_replaced_and_anything_else_is_an_error_in_one_line(
    force: list[str], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "pipe").symlink_to(tmp_path / "fifo")
    (tmp_path / "round").symlink_to(tmp_path / "round")
    before = sorted(tmp_path.iterdir())
    for path in (
        "",
        tmp_path / "fifo",
        tmp_path / "folder",
        tmp_path / "pipe",
        tmp_path / "round",
        tmp_path / ("x" * 300),
    ):
        result = call("backup", path, *force)
        assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), result
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "fifo").is_fifo()


@pytest.mark.sqlite_only
@pytest.mark.django_db(transaction=True)
def test_the_longest_file_name_that_the_system_allows_works(tmp_path: Path) -> None:
    assert call("backup", tmp_path / ("x" * 255)).code == 0


@pytest.mark.pg_only
@pytest.mark.django_db
def test_on_postgresql_it_prints_the_pg_dump_command(tmp_path: Path) -> None:
    result = call("backup", tmp_path / "my copy; of.dump")
    assert result.code == 1
    arguments = shlex.split(result.err.partition("Run: ")[2])
    assert arguments[:2] == ["pg_dump", "--format=custom"]
    assert arguments[-2:] == [f"--file={tmp_path / 'my copy; of.dump'}", connection.settings_dict["NAME"]]
