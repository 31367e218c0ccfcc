"""`manage.py jobs`: list and show jobs, and act on them by id and by filter."""

from __future__ import annotations

import getpass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from jobs import clock
from jobs.management import bulk_actions
from jobs.models import Job
from jobs.states import Status
from tests.factories import JobFactory, JobGroupFactory, JobLogFactory, JobMinuteFactory, job_in
from tests.support.commands import call, run_process
from tests.support.past_jobs import create_old_job, make_id
from tests.support.snapshots import dump_tables, list_events

pytestmark = pytest.mark.django_db


def list_job_ids(*arguments: object) -> list[str]:
    result = call("jobs", "list", "--json", *arguments)
    assert result.code == 0, result.err
    return [job["id"] for job in result.json]


def change_jobs(verb: str, *arguments: object) -> list[str]:
    result = call("jobs", verb, "--json", *arguments)
    assert result.code == 0, result.err
    return [*result.json["changed"], *result.json["asked"]]


# ---------------------------------------------------------------------- list


def test_list_shows_the_newest_first_and_no_more_than_the_limit() -> None:
    jobs = [JobFactory.create() for _ in range(4)]

    assert list_job_ids("--limit", 3) == [str(job.pk) for job in jobs[:0:-1]]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--status", "failed"],
        ["--status=FAILED,PAUSED"],
        ["--status=FAILED", "--status=PAUSED"],
        ["--type=odd"],
        ["--type=odd,other"],
        ["--target=book-1"],
        ["--tenant=acme"],
        ["--tag=red"],
        ["--tag=red", "--tag=deep \"sea\" 'x'"],
        ["--resource=gpu"],
        ["--since=1h"],
        ["--status=FAILED", "--type=odd", "--tenant=acme", "--since=2h"],
    ],
)
def test_list_filters_by_fields_of_a_job(arguments: list[str]) -> None:
    tags = ["red", "deep \"sea\" 'x'"]
    odd = JobFactory.create(
        failed=True, job_type="odd", target="book-1", tenant="acme", resource="gpu", tags=tags, started=False
    )
    create_old_job(age=timedelta(hours=3), tags=["re", "red2", "sea"])
    JobFactory.create(id=make_id(clock.now() - timedelta(hours=2, minutes=5)), completed=True)

    assert list_job_ids(*arguments) == [str(odd.pk)]


def test_list_without_a_filter_prints_one_line_per_job() -> None:
    job = JobFactory.create(running=True, target="book-1", progress=0.4, progress_message="two\nlines")

    heading, line = call("jobs", "list").out.splitlines()

    assert heading.split() == ["ID", "STATUS", "TYPE", "TARGET", "AGE", "NOTE"]
    assert line.split()[:4] == [str(job.pk), "RUNNING", "tests.note", "book-1"]
    assert line.endswith("40% two\\nlines")


def test_list_scans_a_bounded_number_of_jobs_for_a_filter_without_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_actions, "SCAN_LIMIT", 2)
    oldest = JobFactory.create(completed=True, job_type="odd")
    live = JobFactory.create(job_type="odd")
    newer = [JobFactory.create() for _ in range(3)]

    assert list_job_ids("--type=odd") == []
    assert "newest" in call("jobs", "list", "--type=odd").err
    assert list_job_ids("--type=odd", "--since=1h") == [str(live.pk), str(oldest.pk)]
    assert list_job_ids("--type=odd", "--status=QUEUED") == [str(live.pk)]
    assert len(list_job_ids()) == len(newer) + 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["--status=DONE"],
        ["--status=,"],
        ["--since=yesterday"],
        ["--since=0s"],
        ["--since=10"],
        ["--since=999999999d"],
        ["--limit=0"],
        ["--limit=many"],
        ["--tenant=a b"],
        ["--target=a/b"],
        ["--tag= "],
    ],
)
def test_a_bad_filter_is_one_line_and_exit_code_2(arguments: list[str]) -> None:
    result = call("jobs", "list", *arguments)

    assert (result.code, result.out) == (2, "")
    assert result.err.count("\n") == 1


# ---------------------------------------------------------------------- show


def test_show_prints_everything_with_secrets_masked() -> None:
    job = JobFactory.create(failed=True, target="book-1", params={"text": "sea", "password": "hunter2"})
    JobLogFactory.create(job=job, message="a line\x1b[2J of the log")
    call("jobs", "resolve", job.pk, "--reason", "known")

    text, document = call("jobs", "show", job.pk), call("jobs", "show", job.pk, "--json").json

    assert text.code == 0
    for expected in (str(job.pk), "book-1", "sea", "boom", "RESOLVED", "known", "a line"):
        assert expected in text.out
    assert "hunter2" not in text.out
    assert "\x1b" not in text.out
    assert document["id"] == str(job.pk)
    assert document["run"]["status"] == "FAILED"
    assert [event["kind"] for event in document["events"]] == ["RESOLVED"]
    assert document["params"]["password"] != "hunter2"


def test_show_of_a_missing_job_shows_the_others_and_exits_1() -> None:
    job, missing = JobFactory.create(), uuid4()

    result = call("jobs", "show", job.pk, missing)

    assert (result.code, result.err) == (1, f"There is no job {missing}.\n")
    assert str(job.pk) in result.out
    assert call("jobs", "show", "not-an-id").code == 1


# ---------------------------------------------------------------------- actions by id


@pytest.mark.parametrize(
    ("verb", "before", "after"),
    [
        ("cancel", Status.QUEUED, Status.CANCELLED),
        ("cancel", Status.PAUSED, Status.CANCELLED),
        ("pause", Status.QUEUED, Status.PAUSED),
        ("resume", Status.PAUSED, Status.QUEUED),
        ("release", Status.PENDING, Status.QUEUED),
    ],
)
def test_an_action_by_id_changes_the_job_and_records_actor_and_reason(verb: str, before: Status, after: Status) -> None:
    job = job_in(before)

    result = call("jobs", verb, job.pk, "--reason", "because I can")

    job.refresh_from_db()
    assert (result.code, job.status) == (0, after)
    assert result.out.startswith(f"{verb}: 1 changed")
    last = list_events(job)[-1]
    assert (last.actor_kind, last.actor_name, last.reason) == ("cli", getpass.getuser(), "because I can")


def test_a_running_job_is_asked_to_stop() -> None:
    job = JobFactory.create(running=True)

    assert call("jobs", "pause", job.pk).out == "pause: 0 changed, 1 stop requests, 0 skipped.\n"

    job.refresh_from_db()
    assert (job.status, job.cancel_requested, job.cancel_mode) == (Status.RUNNING, True, "PAUSE")


def test_a_retry_names_the_new_job() -> None:
    job = JobFactory.create(failed=True)

    result = call("jobs", "retry", job.pk, "--json")

    retry = Job.objects.get(retry_of=job)
    assert result.json["made"] == {str(job.pk): str(retry.pk)}


def test_refused_jobs_are_named_and_make_exit_code_1() -> None:
    done, queued, missing = JobFactory.create(completed=True), JobFactory.create(), uuid4()

    result = call("jobs", "cancel", done.pk, queued.pk, missing, "rubbish")

    queued.refresh_from_db()
    assert (result.code, queued.status) == (1, Status.CANCELLED)
    assert result.out.startswith("cancel: 1 changed, 0 stop requests, 3 skipped.")
    assert f"1 job skipped: already completed ({done.pk})" in result.out
    assert f"2 jobs skipped: there is no such job ({missing}, rubbish)" in result.out


def test_resolving_twice_is_refused_with_the_reason() -> None:
    job = JobFactory.create(failed=True)

    assert call("jobs", "resolve", job.pk).code == 0
    second = call("jobs", "resolve", job.pk)

    assert second.code == 1
    assert "already resolved" in second.out


def test_a_reason_that_is_too_long_is_bad_input() -> None:
    job = JobFactory.create()

    assert call("jobs", "cancel", job.pk, "--reason", "x" * 3000).code == 2
    assert call("jobs", "cancel", "--type", job.job_type, "--reason", "x" * 3000).code == 2


def test_move_changes_the_position_in_the_queue() -> None:
    first, second, third = (JobFactory.create() for _ in range(3))

    assert call("jobs", "move", third.pk, "--top").code == 0
    assert call("jobs", "move", first.pk, "--after", second.pk, "--reason=later").code == 0

    order = Job.objects.in_dispatch_order().values_list("pk", flat=True)
    assert list(order) == [third.pk, second.pk, first.pk]
    assert call("jobs", "move", JobFactory.create(running=True).pk, "--bottom").code == 1
    assert call("jobs", "move", uuid4(), "--bottom").code == 1


# ---------------------------------------------------------------------- actions by filter


def test_an_action_by_filter_selects_only_jobs_it_applies_to() -> None:
    waiting = [JobFactory.create(job_type="odd") for _ in range(3)]
    running = JobFactory.create(job_type="odd", running=True)
    JobFactory.create(job_type="odd", completed=True)
    JobFactory.create()

    assert change_jobs("cancel", "--type=odd") == [str(job.pk) for job in (*waiting, running)]

    assert Job.objects.filter(status=Status.CANCELLED).count() == 3
    running.refresh_from_db()
    assert running.cancel_requested


def test_a_dry_run_predicts_the_real_run_and_changes_nothing() -> None:
    for status in Status:
        job_in(status, job_type="odd", target=f"lane of {status}")
    JobFactory.create(job_type="odd", running=True, cancel_requested=True, cancel_mode="CANCEL")
    JobFactory.create(job_type="odd", running=True, cancel_requested=True, cancel_mode="PAUSE")
    for verb in bulk_actions.ACTIONS:
        before = dump_tables()
        dry_run = call("jobs", verb, "--type=odd", "--dry-run", "--json")
        assert dump_tables() == before, verb
        real_run = call("jobs", verb, "--type=odd", "--json")
        assert {**dry_run.json, "made": {}, "dry_run": False} == {**real_run.json, "made": {}}, verb


def test_a_dry_run_counts_changes_and_skips_with_their_reasons() -> None:
    failed = JobFactory.create(failed=True)
    JobFactory.create(failed=True, resolved_at=clock.now())
    followed = JobFactory.create(failed=True)
    JobFactory.create(retry_of=followed)

    result = call("jobs", "resolve", "--status", "FAILED", "--dry-run")

    assert result.out.splitlines()[0] == "resolve (dry run): 1 would change, 0 stop requests, 2 skipped."
    assert f"1 job skipped: already retried (latest attempt: queued) ({followed.pk})" in result.out
    assert "1 job skipped: already resolved" in result.out
    failed.refresh_from_db()
    assert failed.resolved_at is None


def test_a_dry_run_by_id_predicts_the_real_run() -> None:
    chain = JobFactory.create(failed=True)
    tail = JobFactory.create(failed=True, retry_of=chain)
    live = JobFactory.create(failed=True)
    JobFactory.create(running=True, retry_of=live)
    queued = JobFactory.create()
    arguments = [chain.pk, live.pk, queued.pk]

    dry_run, real_run = (
        call("jobs", "retry", *arguments, "--dry-run", "--json"),
        call("jobs", "retry", *arguments, "--json"),
    )

    assert dry_run.json["changed"] == real_run.json["changed"] == [str(chain.pk)]
    assert dry_run.json["skipped"] == real_run.json["skipped"]
    assert (dry_run.code, real_run.code) == (1, 1)
    assert Job.objects.get(retry_of=tail).status == Status.QUEUED


def test_retry_by_filter_selects_failures_unless_a_status_is_given() -> None:
    failed, done = JobFactory.create(failed=True), JobFactory.create(completed=True)

    assert change_jobs("retry", "--type=tests.note", "--dry-run") == [str(failed.pk)]
    assert change_jobs("retry", "--status=COMPLETED", "--dry-run") == [str(done.pk)]


def test_retry_by_filter_reruns_each_chain_once() -> None:
    first = JobFactory.create(failed=True)
    second = JobFactory.create(failed=True, retry_of=first)

    assert change_jobs("retry", "--status=FAILED") == [str(second.pk)]
    assert Job.objects.filter(retry_of=second).count() == 1


def test_since_and_limit_bound_an_action() -> None:
    create_old_job(age=timedelta(hours=2), failed=True)
    recent = [JobFactory.create(failed=True) for _ in range(3)]

    assert change_jobs("retry", "--status=FAILED", "--since=1h", "--limit=2") == [str(job.pk) for job in recent[:2]]


def test_an_action_over_many_chunks_changes_each_job_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_actions, "CHUNK_SIZE", 2)
    jobs = [JobFactory.create(failed=True) for _ in range(5)]

    assert change_jobs("retry", "--status=FAILED") == [str(job.pk) for job in jobs]
    assert Job.objects.count() == 10


def test_jobs_submitted_during_an_action_are_not_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry that fails again at once must not be retried for ever."""
    monkeypatch.setattr(bulk_actions, "CHUNK_SIZE", 1)
    jobs = [JobFactory.create(failed=True) for _ in range(2)]
    retry = bulk_actions.ACTIONS["retry"]

    def retry_and_fail(job_id: UUID, **options: Any) -> Job:
        JobFactory.create(failed=True)
        return retry(job_id, **options)

    monkeypatch.setitem(bulk_actions.ACTIONS, "retry", retry_and_fail)
    assert change_jobs("retry", "--status=FAILED") == [str(job.pk) for job in jobs]


def test_release_by_filter_skips_jobs_that_wait_for_their_predecessor() -> None:
    group = JobGroupFactory.create(sequential=True)
    JobFactory.create(group=group, group_index=0)
    JobFactory.create(pending=True, hold=False, group=group, group_index=1)
    held = JobFactory.create(pending=True)

    result = call("jobs", "release", "--status=PENDING", "--json")

    assert result.json["changed"] == [str(held.pk)]
    assert [skipped["reason"] for skipped in result.json["skipped"]] == ["an earlier job of its group has not finished"]


@pytest.mark.parametrize(
    "arguments",
    [[], ["--dry-run"], ["--limit=5"], ["ID", "--type=odd"], ["--status=COMPLETED"], ["--status=FAILED,QUEUED"]],
)
def test_an_action_needs_valid_ids_or_filters(arguments: list[str]) -> None:
    job = JobFactory.create(completed=True, job_type="odd")

    result = call("jobs", "cancel", *[str(job.pk) if argument == "ID" else argument for argument in arguments])

    assert (result.code, result.out) == (2, "")


def test_a_filter_that_matches_nothing_is_no_error() -> None:
    result = call("jobs", "cancel", "--target=unknown")

    assert (result.code, result.out) == (0, "cancel: 0 changed, 0 stop requests, 0 skipped.\n")


def test_if_all_matching_jobs_are_refused_the_exit_code_is_1() -> None:
    JobFactory.create(failed=True, resolved_at=clock.now())

    assert call("jobs", "resolve", "--status=FAILED").code == 1


# ---------------------------------------------------------------------- stats


def test_stats_count_live_jobs_and_sum_ended_ones_from_the_rollup() -> None:
    for status in Status:
        job_in(status)
    JobMinuteFactory.create(outcome=Status.COMPLETED, jobs=40)
    JobMinuteFactory.create(outcome=Status.COMPLETED, jobs=2)

    document = call("jobs", "stats", "--json").json

    live = {str(status): 1 for status in ("PENDING", "QUEUED", "DISPATCHING", "RUNNING", "PAUSED")}
    assert document["jobs"] == {**live, "COMPLETED": 42, "FAILED": 0, "SKIPPED": 0, "CANCELLED": 0}
    assert document["oldest_queued_age_sec"] >= 0
    assert "QUEUED       1" in call("jobs", "stats").out


def test_the_oldest_waiting_job_is_one_that_could_run() -> None:
    later = clock.now() + timedelta(hours=1)
    create_old_job(age=timedelta(hours=9), not_before=later)
    in_lane = create_old_job(age=timedelta(hours=5), target="book-1")
    create_old_job(age=timedelta(hours=4))

    result = call("jobs", "stats")

    assert result.out.splitlines()[-1] == f"Oldest waiting: 5h 0m (tests.note {in_lane.pk})"


# ---------------------------------------------------------------------- as a process


@pytest.mark.once
def test_as_a_process_it_has_the_same_exit_codes(process_env: dict[str, str]) -> None:
    job = JobFactory.create()

    done = run_process(process_env, "jobs", "cancel", job.pk, "--json", "--settings=tests.settings", "--traceback")
    assert (done.code, done.err, done.json["changed"]) == (0, "", [str(job.pk)])

    refused = run_process(process_env, "jobs", "cancel", job.pk)
    assert (refused.code, refused.err) == (1, "CommandError: 1 job could not be changed.\n")

    bad_input = run_process(process_env, "jobs", "cancel", "--since=never", "--status=QUEUED")
    assert bad_input.code == 2
    assert bad_input.err.count("\n") == 1
    assert run_process(process_env, "jobs", "explode").code == 2
