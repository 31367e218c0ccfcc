"""A backup taken beside a writer is a whole database, and a site starts from it."""

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
    assert run_process(env, "worker", "--burst", "--concurrency", "50").code == 0
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
    assert [path.name for path in tmp_path.iterdir()] == ["copy.sqlite3"]


@pytest.mark.sqlite_only
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("beside", ["", "-wal", "-shm", "-journal"])
def test_the_database_itself_is_never_replaced(beside: str, tmp_path: Path) -> None:
    kept = enqueue("system.noop").pk
    live = Path(connection.settings_dict["NAME"] + beside)
    there, before = live.exists(), Path(connection.settings_dict["NAME"]).stat().st_ino
    (tmp_path / "link").symlink_to(live)
    for path in (live, tmp_path / "link", Path(os.path.relpath(live))):
        answer = call("backup", path, "--force")
        assert (answer.code, answer.err) == (2, f"{path} belongs to the database itself; choose another file.\n")
    assert (live.exists(), Path(connection.settings_dict["NAME"]).stat().st_ino) == (there, before)
    connection.close()
    assert Job.objects.filter(pk=kept).exists()


@pytest.mark.sqlite_only
@pytest.mark.django_db(transaction=True)
def test_another_name_of_the_database_is_the_database(tmp_path: Path) -> None:
    enqueue("system.noop")
    (tmp_path / "hard").hardlink_to(connection.settings_dict["NAME"])
    assert call("backup", tmp_path / "hard", "--force").code == 2


@pytest.mark.sqlite_only
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("force", [[], ["--force"]], ids=["asking", "forced"])
def test_only_a_file_is_replaced_and_what_cannot_be_one_is_told_in_a_line(force: list[str], tmp_path: Path) -> None:
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
        answer = call("backup", path, *force)
        assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1), answer
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "fifo").is_fifo()


@pytest.mark.sqlite_only
@pytest.mark.django_db(transaction=True)
def test_the_longest_name_that_the_system_allows_will_do(tmp_path: Path) -> None:
    assert call("backup", tmp_path / ("x" * 255)).code == 0


@pytest.mark.pg_only
@pytest.mark.django_db
def test_on_postgresql_it_says_how_pg_dump_does_it(tmp_path: Path) -> None:
    answer = call("backup", tmp_path / "my copy; of.dump")
    assert answer.code == 1
    words = shlex.split(answer.err.partition("Run: ")[2])
    assert words[:2] == ["pg_dump", "--format=custom"]
    assert words[-2:] == [f"--file={tmp_path / 'my copy; of.dump'}", connection.settings_dict["NAME"]]
