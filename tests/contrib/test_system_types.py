"""Job types that need no code: management commands and HTTP calls, within what the operator allows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import override_settings

from jobs import job, jobs
from jobs.errors import InvalidInput
from jobs.models import Job, JobLog
from jobs.registry import registry
from jobs.services.jobs import cancel, enqueue
from jobs.states import Status
from jobs.testing import drain
from schedules import services as schedules
from tests.support.webhook_receiver import hang, run_receiver
from tests.support.webhook_receiver import respond as answers
from tests.support.worker_processes import Fleet, wait_for_status, wait_until
from webhooks import jobs as calling

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def allowed() -> Iterator[Any]:
    """The types are registered when the setting is on at start; here it comes on later."""
    with ExitStack() as stack:

        def tell(**fields: Any) -> None:
            stack.enter_context(override_settings(JOBSCHEDULER={"SYSTEM_JOB_TYPES": True, **fields}))

        tell(COMMAND_ALLOW=["check", "sample_talk", "sample_exit", "sample_sleep"], WEBHOOK_ALLOW_PRIVATE=True)
        with register_types():
            yield tell


@contextmanager
def register_types() -> Iterator[None]:
    before = registry._handlers
    job("system.command")(jobs.command)
    job("system.http")(calling.send_request)
    try:
        yield
    finally:
        registry._handlers = before


def test_a_command_runs_in_a_process_and_its_output_is_the_jobs_log(allowed: Any) -> None:
    enqueue("system.command", {"command": "sample_talk", "args": ["--word", "sea"]})
    (ran,) = drain()
    assert (ran.status, ran.run.artifacts) == (Status.COMPLETED, {"result": {"output": "said sea\nsaid it again"}})
    assert list(JobLog.objects.order_by("id").values_list("message", flat=True)) == ["said sea", "said it again"]


def test_a_command_that_fails_gives_the_job_its_exit_code_and_its_words_to_the_log_alone(allowed: Any) -> None:
    enqueue("system.command", {"command": "sample_exit", "args": ["3"]}, max_retries=0)
    (ran,) = drain()
    assert (ran.status, ran.run.exit_code) == (Status.FAILED, 3)
    assert ran.status_reason == "CommandFailed: the command ended with exit code 3"
    assert "as requested" not in ran.run.error
    assert "as requested" in JobLog.objects.latest("id").message


REFUSED_COMMANDS: list[dict[str, Any]] = [
    {"command": "flush"},
    {"command": "../check"},
    {"command": ""},
    {"command": "check", "args": ["--settings=evil"]},
    {"command": "check", "args": ["--settings", "evil"]},
    {"command": "check", "args": ["--pythonpath=/tmp"]},
    {"command": "check", "args": ["--pyth=/tmp"]},
    {"command": "check", "args": ["--se", "evil"]},
    {"command": "check", "args": ["a\0b"]},
    {"command": "check", "args": [1]},
    {"command": "check", "args": "-v 3"},
    {"command": "check", "env": {"A": "b"}},
    {},
    {"command": "CHECK"},
    {"command": " check"},
    {"command": "check\n"},
    {"command": "check\0"},
    {"command": "check --deploy"},
    {"command": "django.core.management.commands.check"},
    {"command": None},
    {"command": ["check"]},
    {"command": "x" * 1000},
    {"command": "check", "args": ["--s=evil"]},
    {"command": "check", "args": ["--pythonp", "/tmp"]},
    {"command": "check", "args": ["--", "--settings=evil"]},
    {"command": "check", "args": [None]},
    {"command": "check", "args": [["--deploy"]]},
    {"command": "check", "args": {"0": "--deploy"}},
    {"command": "check", "args": ["x" * 100_000]},
    {"command": "check", "args": ["x"] * 10_000},
]
# Tries of the attacks by hand that these tests repeat.
COMMAND_TRIES, CALL_TRIES = 23, 11


@pytest.mark.parametrize("params", REFUSED_COMMANDS, ids=lambda params: str(params)[:80])
def test_what_is_not_allowed_is_refused_at_the_gate(params: dict[str, Any], allowed: Any) -> None:
    with pytest.raises(InvalidInput):
        enqueue("system.command", params)
    assert not Job.objects.exists()


def test_there_are_as_many_tries_as_in_the_attacks() -> None:
    assert len(REFUSED_COMMANDS) >= COMMAND_TRIES
    assert len(REFUSED_CALLS) >= CALL_TRIES


def test_a_command_that_is_no_longer_allowed_does_not_run(allowed: Any) -> None:
    enqueue("system.command", {"command": "sample_talk"}, max_retries=0)
    allowed(COMMAND_ALLOW=["check"])
    (ran,) = drain()
    assert (ran.status, "COMMAND_ALLOW" in ran.run.error) == (Status.FAILED, True)


def test_the_types_exist_only_where_the_setting_is_on() -> None:
    look = "import django; django.setup(); from jobs.registry import registry; print(registry.names())"
    for item, there in (("True", True), ("False", False)):
        env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "JOBSCHEDULER_SYSTEM_JOB_TYPES": item}
        names = subprocess.check_output([sys.executable, "-c", look], env=env, cwd=ROOT, text=True)
        assert ("'system.command'" in names, "'system.http'" in names) == (there, there)
        assert "'system.noop'" in names


@pytest.mark.django_db(transaction=True)
def test_a_real_worker_ends_the_command_of_a_job_that_is_cancelled(process_env: dict[str, str], tmp_path: Path) -> None:
    env = {**process_env, "JOBSCHEDULER_SYSTEM_JOB_TYPES": "True", "JOBSCHEDULER_COMMAND_ALLOW": "sample_sleep"}
    note = tmp_path / "pid"
    with (
        override_settings(JOBSCHEDULER={"SYSTEM_JOB_TYPES": True, "COMMAND_ALLOW": ["sample_sleep"]}),
        register_types(),
    ):
        made = enqueue("system.command", {"command": "sample_sleep", "args": [str(note)]})
    with Fleet(env, tmp_path) as fleet:
        fleet.start()
        wait_until(lambda: note.exists() and note.read_text().strip(), what=fleet.logs)
        cancel(made.pk)
        wait_for_status(made.pk, Status.CANCELLED, fleet=fleet)
    wait_until(lambda: not _alive(int(note.read_text())), what="the command is gone")


def test_it_can_be_scheduled_and_submitted_from_a_terminal(allowed: Any, capsys: Any) -> None:
    made = schedules.create(
        {"name": "talk", "cron": "@daily", "job_type": "system.command", "params": {"command": "sample_talk"}}
    )
    schedules.trigger(made.pk)
    call_command("enqueue", "system.command", "command=sample_talk", 'args=["--word", "cli"]')
    assert [job.run.artifacts["result"]["output"].split("\n")[0] for job in drain()] == ["said sea", "said cli"]


# ---------------------------------------------------------------------- HTTP


def test_a_call_sends_what_it_is_told_and_keeps_the_answer(allowed: Any) -> None:
    with run_receiver() as there:
        params = {"url": there.url, "headers": {"X-Word": "sea"}, "body": {"order": 7}}
        enqueue("system.http", params)
        (ran,) = drain()
    (seen,) = there.seen
    assert (seen.document, seen.headers["X-Word"]) == ({"order": 7}, "sea")
    assert seen.headers["Content-Type"] == "application/json"
    assert (ran.status, ran.run.artifacts["result"]) == (Status.COMPLETED, {"status": 200})


@pytest.mark.parametrize(("status", "retried"), [(302, False), (404, False), (429, True), (503, True)])
def test_what_is_not_2xx_fails_and_only_what_may_pass_is_retried(status: int, retried: bool, allowed: Any) -> None:
    with run_receiver(answers(status, b"{}")) as there:
        enqueue("system.http", {"url": there.url})
        (ran,) = drain()
    assert (ran.status, hasattr(ran, "retried_by")) == (Status.FAILED, retried)
    assert ran.run.artifacts["response"] == {"status": status, "body": {}}


REFUSED_CALLS: list[dict[str, Any]] = [
    {"url": "http://127.0.0.1/"},
    {"url": "http://localhost/"},
    {"url": "http://[::1]/"},
    {"url": "http://169.254.169.254/latest/"},
    {"url": "http://2130706433/"},
    {"url": "http://user:word@example.com/"},
    {"url": "ftp://example.com/"},
    {"url": "file:///etc/passwd"},
    {"url": "https://example.com:22/"},
    {"url": "https://example.com/", "method": "TRACE"},
    {"url": "https://example.com/", "headers": {"Host": "other"}},
    {"url": "https://example.com/", "headers": {"content-LENGTH": "0"}},
    {"url": "https://example.com/", "headers": {"X": "a\r\nHost: b"}},
    {"url": "https://example.com/", "headers": {"X Y": "a"}},
    {"url": "https://example.com/", "timeout_sec": 0},
    {"url": "https://example.com/", "timeout_sec": -1},
    {"url": "https://example.com/", "timeout_sec": 10**9},
    {"url": "https://example.com/", "timeout_sec": "5"},
    {"url": "https://example.com/", "method": "CONNECT"},
    {"url": "https://example.com/", "method": "GET / HTTP/1.1\r\nX: y"},
    {"url": "https://example.com/", "headers": {"Transfer-Encoding": "chunked"}},
    {"url": "https://example.com/", "headers": {"Connection": "close"}},
    {"url": "https://example.com/", "headers": {"X\r\nHost": "a"}},
    {"url": "https://example.com/", "headers": {"X": "a\0b"}},
    {"url": "https://example.com/", "headers": {f"X-{number}": "a" for number in range(51)}},
    {"url": "https://example.com/", "headers": ["X: a"]},
    {"url": ["https://example.com/"]},
    {},
]


@pytest.mark.parametrize("params", REFUSED_CALLS, ids=lambda params: json.dumps(params)[:60])
def test_no_job_may_call_a_private_host_or_speak_for_the_library(params: dict[str, Any], allowed: Any) -> None:
    allowed(WEBHOOK_ALLOW_PRIVATE=False)
    with pytest.raises(InvalidInput):
        enqueue("system.http", params)


def test_a_name_that_turns_private_is_refused_and_its_address_is_for_operators_alone(
    allowed: Any, monkeypatch: Any, caplog: Any
) -> None:
    allowed(WEBHOOK_ALLOW_PRIVATE=False)
    enqueue("system.http", {"url": "http://example.com/"}, max_retries=0)
    monkeypatch.setattr("webhooks.url_guard.resolve", lambda *where: ["10.0.0.1"])
    with caplog.at_level("WARNING"):
        (ran,) = drain()
    stored = ran.status_reason + ran.run.error + "".join(JobLog.objects.values_list("message", flat=True))
    assert ("not a public address" in ran.status_reason, "10.0.0.1" in stored) == (True, False)
    assert "example.com is at 10.0.0.1" in caplog.text


def test_a_call_is_over_when_its_time_is(allowed: Any) -> None:
    with run_receiver(hang) as there:
        enqueue("system.http", {"url": there.url, "timeout_sec": 0.2}, max_retries=0)
        (ran,) = drain()
    assert "did not answer in time" in ran.status_reason


@pytest.mark.parametrize("status", [404, 503])
def test_a_failed_call_names_scheme_and_host_alone(status: int, allowed: Any) -> None:
    with run_receiver(answers(status, b"{}")) as there:
        enqueue("system.http", {"url": f"{there.url}/T0/HIDDENPATH?key=HIDDENKEY"}, max_retries=0)
        (ran,) = drain()
    assert ran.status_reason.endswith(f": http://127.0.0.1:{there.port} answered {status}")
    assert "HIDDEN" not in ran.status_reason + ran.run.error


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIG_DFL)
    except ProcessLookupError:
        return False
    return True
