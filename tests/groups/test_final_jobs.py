"""The final job of a group: it starts once, after all members have ended, and has their results."""

from __future__ import annotations

import random
from typing import Any

import pytest
from django.test import override_settings

from jobs import group
from jobs.engine.groups import run_actions
from jobs.errors import IdempotencyKeyReused, InvalidInput, ResultsUnavailable, WrongState
from jobs.explain import explain as explain_job
from jobs.models import GroupStatus, Job, JobGroup
from jobs.outcomes import Completed, Skipped
from jobs.policies.groups import GroupFailureFacts
from jobs.services import groups
from jobs.services import jobs as job_services
from jobs.testing import drain
from tests.chaos import group_finals
from tests.sample_app.jobs import add, async_total, fail, noop, return_text, total
from tests.support import executor
from tests.support.snapshots import dump_tables, list_events
from tests.support.worker_processes import Fleet, wait_until_all_ended

ITEM = {"job_type": "sample.noop"}
KEYS = [{**ITEM, "idempotency_key": key} for key in "abc"]


def create(members: int = 3, **options: Any) -> JobGroup:
    return groups.create([ITEM] * members, then=ITEM, **options)


def get_place(made: JobGroup, index: int) -> Job:
    return groups.get_latest_attempts(made.pk).get(group_index=index)


def statuses(made: JobGroup) -> list[str]:
    return list(groups.get_latest_attempts(made.pk).values_list("status", flat=True))


def status(made: JobGroup) -> str:
    return JobGroup.objects.get(pk=made.pk).status


def complete(made: JobGroup, *indexes: int) -> None:
    for index in indexes:
        executor.complete(executor.claim(get_place(made, index)))


def test_the_final_job_starts_once_though_five_members_end_in_the_same_instant(
    fleet: Fleet, chance: random.Random
) -> None:
    verdict = group_finals.run(fleet, chance, groups=30)
    print(verdict)
    assert not verdict.broken, str(verdict)


@pytest.mark.pg_only  # on SQLite there is only one writer at a time
def test_without_the_groups_lock_some_final_job_never_starts(fleet: Fleet, chance: random.Random) -> None:
    verdict = group_finals.run(fleet, chance, groups=4, sabotage="skip_group_locks", slots=1)
    print(verdict)
    assert any("final jobs ran" in violation for violation in verdict.broken)


def test_a_handler_in_a_process_of_its_own_has_the_results(fleet: Fleet) -> None:
    fleet.start("--executor=process")
    made = group([add.s(a=1, b=2), add.s(a=3, b=4)], then=total.s()).enqueue()
    wait_until_all_ended(60, fleet)
    assert get_place(made, 2).run.artifacts == {"result": [3, 7]}


@pytest.mark.django_db
def test_the_final_job_waits_for_all_members_in_whatever_order_they_end() -> None:
    made = create()
    assert (made.then_index, made.on_failure, statuses(made)) == (3, "stop", ["QUEUED"] * 3 + ["PENDING"])
    running = [executor.claim(get_place(made, index)) for index in range(3)]
    for job in (running[2], running[0]):
        executor.complete(job)
        assert statuses(made)[3] == "PENDING"
    assert executor.finish(running[1], Skipped("nothing to do")) == "done"
    final = get_place(made, 3)
    released = list_events(final)[-1]
    assert (final.status, released.kind, released.reason) == ("QUEUED", "RELEASED", "all other members ended")
    assert status(made) == GroupStatus.RUNNING
    complete(made, 3)
    assert status(made) == GroupStatus.COMPLETED


@pytest.mark.django_db
@pytest.mark.parametrize("end", ["fail", "cancel"])
@pytest.mark.parametrize(
    ("on_failure", "final", "ended"),
    [("stop", "CANCELLED", "PARTIAL"), ("skip", "SKIPPED", "PARTIAL"), ("continue", "QUEUED", "RUNNING")],
)
def test_on_failure_decides_about_the_final_job_after_the_last_member(
    on_failure: str, final: str, ended: str, end: str
) -> None:
    made = create(2, on_failure=on_failure)
    if end == "fail":
        executor.fail(executor.claim(get_place(made, 0)))
    else:
        job_services.cancel(get_place(made, 0).pk)
    assert statuses(made)[1:] == ["QUEUED", "PENDING"]
    complete(made, 1)
    assert (statuses(made)[2], status(made)) == (final, ended)
    if final != "QUEUED":
        reason = "predecessor failed" if end == "fail" else "predecessor cancelled"
        assert get_place(made, 2).status_reason == reason


@pytest.mark.django_db
def test_a_policy_decides_about_each_failed_member_before_the_final_job() -> None:
    made = create(3, on_failure="stop")
    seen: list[GroupFailureFacts] = []
    with override_settings(JOBSCHEDULER={"GROUP_FAILURE_POLICY": f"{__name__}.StopAtSecond"}):
        StopAtSecond.seen = seen
        executor.fail(executor.claim(get_place(made, 0)))
        executor.fail(executor.claim(get_place(made, 1)))
        assert seen == []
        complete(made, 2)
    assert [(facts.index, facts.total, facts.status) for facts in seen] == [(0, 4, "FAILED"), (1, 4, "FAILED")]
    assert statuses(made)[3] == "SKIPPED"


class StopAtSecond:
    seen: list[GroupFailureFacts]

    def decide(self, facts: GroupFailureFacts) -> str:
        self.seen.append(facts)
        return "skip" if facts.index == 1 else "continue"


@pytest.mark.django_db
def test_the_final_job_waits_for_the_retry_of_a_failed_member() -> None:
    made = create(2)
    failed = executor.fail(executor.claim(get_place(made, 0)), retry_in=3600)
    complete(made, 1)
    assert statuses(made) == ["QUEUED", "COMPLETED", "PENDING"]
    job_services.retry(failed.pk)
    complete(made, 0)
    assert statuses(made)[2] == "QUEUED"


@pytest.mark.django_db
def test_the_retry_of_one_failed_member_does_not_start_the_final_job_while_another_is_failed() -> None:
    made = create(2)
    for index in range(2):
        executor.fail(executor.claim(get_place(made, index)))
    assert (statuses(made), status(made)) == (["FAILED", "FAILED", "CANCELLED"], "PARTIAL")
    job_services.retry(get_place(made, 0).pk)
    assert (statuses(made), status(made)) == (["QUEUED", "FAILED", "PENDING"], "RUNNING")
    complete(made, 0)
    assert (statuses(made), status(made)) == (["COMPLETED", "FAILED", "CANCELLED"], "PARTIAL")
    job_services.retry(get_place(made, 1).pk)
    complete(made, 1, 2)
    assert (statuses(made), status(made)) == (["COMPLETED"] * 3, "COMPLETED")
    assert JobGroup.objects.get().round == 3


@pytest.mark.django_db
def test_a_final_job_that_has_run_is_not_run_again_by_the_retry_of_a_member() -> None:
    made = create(2, on_failure="continue")
    executor.fail(executor.claim(get_place(made, 0)))
    complete(made, 1, 2)
    job_services.retry(get_place(made, 0).pk)
    complete(made, 0)
    assert (statuses(made), status(made)) == (["COMPLETED"] * 3, "COMPLETED")
    assert Job.objects.filter(group_index=2).count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize("end", ["stop", "skip", "continue", "cancel"])
def test_the_retry_of_a_group_ends_with_its_final_job(end: str) -> None:
    made = create(3, on_failure="stop" if end == "cancel" else end)
    if end == "cancel":
        groups.cancel(made.pk)
        assert statuses(made) == ["CANCELLED"] * 4
    else:
        for _index in range(2):
            executor.fail(executor.claim(get_place(made, _index)))
        complete(made, 2)
        if end == "continue":
            executor.fail(executor.claim(get_place(made, 3)))
    groups.retry(made.pk)
    assert statuses(made) == ["QUEUED", "QUEUED", "QUEUED" if end == "cancel" else "COMPLETED", "PENDING"]
    complete(made, 0, 1, *([2] if end == "cancel" else []), 3)
    assert (statuses(made), status(made)) == (["COMPLETED"] * 4, "COMPLETED")


@pytest.mark.django_db
def test_a_final_job_that_failed_alone_is_retried_at_once() -> None:
    made = create(2)
    complete(made, 0, 1)
    executor.fail(executor.claim(get_place(made, 2)))
    assert status(made) == "PARTIAL"
    groups.retry(made.pk)
    assert statuses(made) == ["COMPLETED", "COMPLETED", "QUEUED"]


@pytest.mark.django_db
def test_a_final_job_survives_actions_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.engine.groups.BATCH_SIZE", 2)
    made = create(5)
    groups.cancel(made.pk)
    run_actions(made.pk)
    assert (statuses(made), status(made)) == (["CANCELLED"] * 6, "CANCELLED")
    groups.retry(made.pk)
    run_actions(made.pk)
    assert statuses(made) == ["QUEUED"] * 5 + ["PENDING"]
    drain()
    assert (statuses(made), status(made)) == (["COMPLETED"] * 6, "COMPLETED")


@pytest.mark.django_db
def test_a_final_job_is_not_released_by_hand_before_its_time() -> None:
    made = groups.create([ITEM, ITEM], then={**ITEM, "hold": True})
    final = get_place(made, 2)
    with pytest.raises(WrongState, match="waits for another member of its group"):
        job_services.release(final.pk)
    (reason,) = (reason for reason in explain_job(final.pk).reasons if reason.code == "predecessor")
    assert reason.blocking_job_id == get_place(made, 0).pk
    complete(made, 0, 1)
    assert statuses(made)[2] == "PENDING"
    job_services.release(final.pk)
    complete(made, 2)
    assert status(made) == "COMPLETED"


@pytest.mark.django_db
def test_a_member_that_is_held_is_released_whatever_the_final_job_waits_for() -> None:
    made = groups.create([ITEM, {**ITEM, "hold": True}], then=ITEM)
    complete(made, 0)
    assert statuses(made) == ["COMPLETED", "PENDING", "PENDING"]
    job_services.release(get_place(made, 1).pk)
    complete(made, 1, 2)
    assert status(made) == "COMPLETED"


@pytest.mark.django_db
@pytest.mark.parametrize("final", [total, async_total])
def test_the_final_job_has_the_results_of_the_members_in_order(final: Any) -> None:
    members = [add.s(a=1, b=2), noop.s(), fail.using(max_retries=0).s(), return_text.s(length=2), add.s(a=3, b=4)]
    made = group(members, then=final.s(), on_failure="continue").enqueue()
    drain()
    assert get_place(made, 5).run.artifacts == {"result": [3, None, None, "xx", 7]}


@pytest.mark.django_db
def test_texts_that_look_like_json_stay_texts_and_a_retry_replaces_the_result() -> None:
    made = groups.create([{"job_type": "sample.total"}] * 2, then={"job_type": "sample.total"})
    for index, result in enumerate(["12", "null"]):
        running = executor.claim(get_place(made, index))
        executor.finish(running, Completed({"result": result}))
    first = job_services.retry(get_place(made, 0).pk)
    executor.finish(executor.claim(first), Completed({"result": ["ä"]}))
    drain()
    assert get_place(made, 2).run.artifacts == {"result": [["ä"], "null"]}


@pytest.mark.django_db
def test_members_of_a_sequence_have_the_results_of_their_predecessors() -> None:
    made = group([add.s(a=1, b=2), total.s()], then=total.s(), mode="sequential").enqueue()
    assert statuses(made) == ["QUEUED", "PENDING", "PENDING"]
    drain()
    assert get_place(made, 1).run.artifacts == {"result": [3]}
    assert get_place(made, 2).run.artifacts == {"result": [3, [3]]}


@pytest.mark.django_db
def test_results_over_the_limit_fail_the_final_job_and_say_so() -> None:
    half = 2**19
    fits = group([return_text.s(length=half - 2)] * 2, then=total.s()).enqueue()
    large = group([return_text.s(length=half - 2), return_text.s(length=half - 1)], then=total.s()).enqueue()
    drain()
    assert get_place(large, 2).status_reason.startswith(
        f"ResultsUnavailable: The results of group {large.pk} have 1048577 bytes, 1048576 are passed on at most"
    )
    assert Job.objects.filter(retry_of__isnull=False).count() == 0
    assert get_place(fits, 2).status == "COMPLETED"


@pytest.mark.django_db
def test_a_member_that_waits_for_no_other_has_no_results() -> None:
    made = group([noop.s(), total.s()]).enqueue()
    drain()
    job = get_place(made, 1)
    assert (job.status, job.status_reason.partition(":")[0]) == ("FAILED", ResultsUnavailable.__name__)


BAD: dict[str, tuple[Any, list[Any]]] = {
    "a group": (group([noop.s()]), ["then"]),
    "a list": ([ITEM], ["then"]),
    "a text": ("sample.noop", ["then"]),
    "no type": ({}, ["then", "job_type"]),
    "unknown type": ({"job_type": "sample.none"}, ["then", "job_type"]),
    "wrong params": ({"job_type": "sample.add", "params": {"a": "x", "b": 1}}, ["then", "params", "a"]),
    "own tenant": ({**ITEM, "tenant": "acme"}, ["then", "tenant"]),
    "unique": ({**ITEM, "unique_key": "k"}, ["then", "unique_key"]),
    "unknown field": ({**ITEM, "then": ITEM}, ["then", "then"]),
}


@pytest.mark.django_db
@pytest.mark.parametrize(("then", "location"), BAD.values(), ids=BAD)
def test_a_wrong_final_job_is_refused_by_name(then: Any, location: list[Any]) -> None:
    before = dump_tables()
    with pytest.raises(InvalidInput) as caught:
        groups.create([ITEM], then=then)
    assert caught.value.errors[0]["loc"] == location
    assert dump_tables() == before


@pytest.mark.django_db
def test_without_a_final_job_on_failure_has_no_effect_in_a_parallel_group() -> None:
    with pytest.raises(InvalidInput, match="without a final job"):
        groups.create([ITEM], on_failure="stop")
    assert groups.create([ITEM], then=ITEM, on_failure="skip").on_failure == "skip"


@pytest.mark.django_db
def test_a_group_with_a_final_job_is_another_submission_than_one_without() -> None:
    first = groups.create(KEYS[:2], then=KEYS[2], on_failure="continue")
    assert groups.create(KEYS[:2], then=KEYS[2], on_failure="continue").pk == first.pk
    with pytest.raises(IdempotencyKeyReused):
        groups.create(KEYS, on_failure="continue")
