"""What `manage.py worker` refuses, in one clear line and with exit code 2; and what its options choose."""

from __future__ import annotations

import subprocess
import sys

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import transaction

from jobs.engine.claim import ServedJobs
from jobs.engine.worker import WorkerOptions
from jobs.engine.worker.registration import Registration
from jobs.explain import explain
from jobs.models import LaneMark, Worker
from jobs.services import jobs as job_services
from jobs.states import Status
from tests.support.worker_processes import LONG_LEASE_SETTINGS, MANAGE, Fleet, get_job, wait_for_status

BAD = (
    (["--concurrency=0"], "--concurrency: must be"),
    (["--concurrency=-3"], "--concurrency"),
    (["--concurrency=1001"], "--concurrency"),
    (["--concurrency=many"], "--concurrency"),
    (["--types=sample.noop,sample.unheard_of"], "sample.unheard_of"),
    (["--types=,"], "--types: is empty"),
    (["--resources="], "--resources: is empty"),
    (["--tenant=a/b"], "--tenant"),
    (["--exclude-types=sample.unheard_of"], "--exclude-types: no handler is registered"),
    (["--types=sample.noop", "--exclude-types=sample.noop"], "--exclude-types: leaves no job type"),
    (["--exclude-resources="], "--exclude-resources: is empty"),
    (["--resources=a,b", "--exclude-resources=b,a"], "--exclude-resources: leaves no resource"),
    (["--max-jobs=0"], "--max-jobs"),
    (["--max-jobs=few"], "--max-jobs"),
    (["--max-rss=-1"], "--max-rss"),
    (["--max-rss=200M"], "--max-rss"),
    (["--name=a@b"], "--name"),
    (["--name=a#1"], "--name"),
    (["--name="], "--name"),
    (["--name=two\nlines"], "--name"),
)


@pytest.mark.parametrize(("options", "text"), BAD)
def test_a_bad_option_is_refused_by_name(db: None, options: list[str], text: str) -> None:
    with pytest.raises(CommandError) as refusal:
        call_command("worker", *options)
    assert refusal.value.returncode == 2
    assert text in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert Worker.objects.count() == 0


@pytest.mark.parametrize(
    ("option", "text"),
    [("--concurrency=0", "--concurrency"), ("--types=sample.unheard_of", "unheard_of"), ("--executor=fibre", "fibre")],
)
def test_bad_options_end_with_exit_2_and_one_clear_line(fleet: Fleet, option: str, text: str) -> None:
    refused = worker(fleet, option)
    assert refused.returncode == 2, refused.stderr
    assert text in refused.stderr.splitlines()[-1]
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("concurrency", "types", "text"),
    [(1, ("a",), "1 slot, thread executor, 1 job type"), (4, ("a", "b"), "4 slots, thread executor, 2 job types")],
)
def test_a_worker_says_in_words_what_it_serves(concurrency: int, types: tuple[str, ...], text: str) -> None:
    options = WorkerOptions(concurrency=concurrency, serves=ServedJobs(types=types))
    assert Registration(options).describe() == text


def test_a_live_namesake_is_a_refusal_to_start(fleet: Fleet) -> None:
    first = fleet.start("--name=twin", settings=LONG_LEASE_SETTINGS)
    refused = worker(fleet, "--name=twin")
    assert refused.returncode == 1
    assert refused.stderr.strip().count("\n") == 0
    assert f"twin is already running (host {Worker.objects.get().host}, pid {first.pid})" in refused.stderr
    assert first.alive


def test_a_name_is_free_again_after_an_orderly_end_and_after_a_kill(fleet: Fleet) -> None:
    for end in ("terminate", "kill", "terminate"):
        item = fleet.start("--name=again", settings=LONG_LEASE_SETTINGS)
        getattr(item, end)()
        assert item.wait_for_end() == (0 if end == "terminate" else -9)


def test_a_burst_ends_by_itself_when_nothing_is_left(fleet: Fleet) -> None:
    made = [job_services.enqueue("sample.work", {"seconds": 0.05}, target="lane") for _ in range(5)]
    burst = fleet.start("--burst", "--concurrency=2", settings=LONG_LEASE_SETTINGS, wait=False)
    assert burst.wait_for_end() == 0, burst.output
    assert {get_job(item.pk).status for item in made} == {Status.COMPLETED}


@pytest.mark.pg_only
def test_a_burst_does_not_end_while_somebody_has_a_lane_in_hand(fleet: Fleet) -> None:
    """Its own housekeeping, say, which lets the lane's next job forward just then."""
    behind = [job_services.enqueue("sample.noop", target="lane") for _ in range(2)]
    other = job_services.enqueue("sample.noop")
    with transaction.atomic():
        assert list(LaneMark.objects.select_for_update())
        burst = fleet.start("--burst", "--no-housekeeping", settings=LONG_LEASE_SETTINGS)
        wait_for_status(other.pk, Status.COMPLETED, fleet=fleet)
        with pytest.raises(AssertionError, match="did not end"):
            burst.wait_for_end(1.0)
    assert burst.wait_for_end() == 0, burst.output
    assert {get_job(item.pk).status for item in behind} == {Status.COMPLETED}


def test_a_burst_leaves_what_is_ready_for_others(fleet: Fleet) -> None:
    theirs, ours = job_services.enqueue("sample.work"), job_services.enqueue("sample.noop")
    assert fleet.start("--burst", "--types=sample.noop", settings=LONG_LEASE_SETTINGS, wait=False).wait_for_end() == 0
    assert (get_job(theirs.pk).status, get_job(ours.pk).status) == (Status.QUEUED, Status.COMPLETED)


def test_a_worker_takes_only_what_it_serves(fleet: Fleet) -> None:
    fleet.start("--types=sample.noop", "--resources=attic", "--tenant=acme", settings=LONG_LEASE_SETTINGS)
    others = [
        job_services.enqueue("sample.work", resource="attic", tenant="acme"),
        job_services.enqueue("sample.noop", resource="cellar", tenant="acme"),
        job_services.enqueue("sample.noop", resource="attic", tenant="other"),
    ]
    mine = job_services.enqueue("sample.noop", resource="attic", tenant="acme")
    wait_for_status(mine.pk, Status.COMPLETED, fleet=fleet)
    assert {get_job(item.pk).status for item in others} == {Status.QUEUED}


def test_a_worker_leaves_what_it_excludes(fleet: Fleet) -> None:
    """Also where what it excludes stands first in the queue."""
    others = [
        job_services.enqueue("sample.work", priority="URGENT"),
        job_services.enqueue("sample.noop", resource="attic", priority="URGENT"),
        job_services.enqueue("sample.noop", resource="cellar", priority="URGENT"),
    ]
    mine = job_services.enqueue("sample.noop")
    options = ("--exclude-types=sample.work,sample.rare", "--exclude-resources=attic,cellar", "--concurrency=4")
    fleet.start(*options, settings=LONG_LEASE_SETTINGS)
    wait_for_status(mine.pk, Status.COMPLETED, fleet=fleet)
    assert {get_job(item.pk).status for item in others} == {Status.QUEUED}
    assert [{reason.code for reason in explain(item.pk).reasons} for item in others] == [{"no_worker"}] * 3


def worker(fleet: Fleet, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(MANAGE), "worker", *options]
    return subprocess.run(command, env=fleet.env, capture_output=True, text=True, check=False, timeout=60)
