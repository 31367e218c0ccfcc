"""Behind a transaction pooler LISTEN is lost without an error: workers, `doctor` and `check` test it."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

import pytest
from django.core.management import call_command
from django.db import connection

from jobs.services import jobs as job_services
from jobs.states import Status
from tests.conftest import database_url
from tests.support.commands import run_process
from tests.support.transaction_pooler import TransactionPooler
from tests.support.worker_processes import FAST_SETTINGS, LONG_LEASE_SETTINGS, Fleet, get_event, wait_for_status

pytestmark = pytest.mark.pg_only
SOON_SEC = 2 * FAST_SETTINGS["POLL_SEC"]  # less than the fallback poll of a worker that listens, 10 * POLL_SEC
NOTICE = "transaction pooler"
SETTING = "DISABLE_SERVER_SIDE_CURSORS=True"


def test_a_worker_says_so_once_and_looks_for_jobs_every_poll_sec(fleet: Fleet) -> None:
    with TransactionPooler(database_url()) as pooler:
        worker = fleet.start("--concurrency=2", settings=LONG_LEASE_SETTINGS, env=connect_through(pooler))
        for target in (None, None, "book-1"):
            made = job_services.enqueue("sample.noop", target=target)
            wait_for_status(made.pk, Status.COMPLETED, fleet=fleet)
            submitted, started = (get_event(made.pk, kind).at for kind in ("SUBMITTED", "RUNNING"))
            assert (started - submitted).total_seconds() < SOON_SEC
        worker.terminate()
        assert worker.wait_for_end() == 0
    assert worker.output.count(NOTICE) == 1
    assert "DISABLE_SERVER_SIDE_CURSORS" in worker.output
    assert "rejected" not in worker.output  # prepared statements of another client, or none of that name
    assert "cannot be reached" not in worker.output


def test_a_worker_with_the_documented_setting_has_nothing_to_say(fleet: Fleet) -> None:
    with TransactionPooler(database_url()) as pooler:
        worker = fleet.start(settings=LONG_LEASE_SETTINGS, env=connect_through(pooler, SETTING))
        made = job_services.enqueue("sample.noop")
        wait_for_status(made.pk, Status.COMPLETED, fleet=fleet)
        worker.terminate()
        assert worker.wait_for_end() == 0
    assert NOTICE not in worker.output


def test_without_a_pooler_notifications_arrive_and_nothing_is_said(fleet: Fleet) -> None:
    """The fallback poll comes after ten minutes."""
    worker = fleet.start("--no-housekeeping", settings={**LONG_LEASE_SETTINGS, "POLL_SEC": 60})
    for _ in range(2):
        wait_for_status(job_services.enqueue("sample.noop").pk, Status.COMPLETED, fleet=fleet)
    assert NOTICE not in worker.output


def test_the_doctor_and_the_check_of_the_database_make_the_same_test(process_env: dict[str, str]) -> None:
    with TransactionPooler(database_url()) as pooler:
        behind = {**process_env, **connect_through(pooler)}
        examined = run_process(behind, "doctor", "--json")
        checked = run_process(behind, "check", "--database", connection.alias)
        configured = run_process({**process_env, **connect_through(pooler, SETTING)}, "doctor", "--json")
    assert read_levels(examined.out) == ["warning"]
    assert "jobs.W007" in checked.out + checked.err
    assert "DISABLE_SERVER_SIDE_CURSORS" in checked.out + checked.err
    assert read_levels(configured.out) == ["ok"]


def test_the_check_of_a_database_without_a_pooler_is_silent(
    transactional_db: None, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("check", databases=[connection.alias])
    assert "jobs.W007" not in "".join(capsys.readouterr())


def connect_through(pooler: TransactionPooler, query: str = "") -> dict[str, str]:
    url = urlsplit(database_url())
    netloc = url.netloc.replace(f":{url.port}", f":{pooler.port}")
    return {"DATABASE_URL": url._replace(netloc=netloc, query=query).geturl()}


def read_levels(printed: str) -> list[str]:
    return [item["level"] for item in json.loads(printed)["findings"] if item["topic"] == "notifications"]
