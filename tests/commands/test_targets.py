"""`manage.py targets`: list, pause and unpause targets."""

from __future__ import annotations

import getpass
from typing import Any

import pytest

from jobs import ids
from jobs.engine import promoter
from jobs.models import Gate, Job, LaneMark, Target
from jobs.services import jobs as job_services
from tests.factories import JobFactory, TargetFactory
from tests.support.commands import call, run_process
from tests.support.executor import claim_next, fail

pytestmark = pytest.mark.django_db


def get_target(key: str) -> dict[str, Any]:
    row: dict[str, Any]
    (row,) = [row for row in call("targets", "list", "--json").json if row["key"] == key]
    return row


def test_a_paused_target_starts_nothing_until_it_is_unpaused() -> None:
    job_services.enqueue("sample.noop", target="book-1")

    assert call("targets", "pause", "book-1", "--reason=reindexing").code == 0
    assert claim_next() is None
    paused = get_target("book-1")
    assert (paused["paused"], paused["paused_by"], paused["reason"]) == (True, getpass.getuser(), "reindexing")
    assert paused["paused_at"].endswith("Z")

    assert call("targets", "unpause", "book-1").code == 0
    assert claim_next() is not None
    assert get_target("book-1")["paused"] is False


def test_a_ready_job_returns_to_its_lane_when_its_target_is_paused() -> None:
    job_services.enqueue("sample.noop", target="book-1")
    promoter.promote()
    assert Job.objects.get().gate == Gate.READY

    call("targets", "pause", "book-1")

    assert claim_next() is None
    assert Job.objects.get().gate == Gate.LANE


def test_a_target_can_be_paused_before_its_first_job() -> None:
    assert call("targets", "pause", "book-9", "--tenant=acme").code == 0

    target = Target.objects.get()
    assert (target.pk, target.tenant, target.paused) == (ids.derive_lane_id("acme", "book-9"), "acme", True)
    assert LaneMark.objects.filter(lane_id=target.pk).exists()
    job_services.enqueue("sample.noop", target="book-9", tenant="acme")
    assert claim_next() is None


def test_pausing_twice_keeps_the_first_and_unpausing_twice_is_no_error() -> None:
    call("targets", "pause", "book-1", "--reason=one")
    first = Target.objects.get()

    assert call("targets", "pause", "book-1").code == 0
    assert (Target.objects.get().paused_at, Target.objects.get().reason) == (first.paused_at, "one")
    assert [call("targets", "unpause", "book-1").code for _ in range(2)] == [0, 0]
    assert Target.objects.get().reason == ""


def test_an_unknown_target_cannot_be_unpaused() -> None:
    result = call("targets", "unpause", "unknown")

    assert (result.code, result.err.count("\n")) == (1, 1)


def test_list_names_the_holder_and_the_blocking_job_of_a_target() -> None:
    for _ in range(3):
        job_services.enqueue("sample.noop", target="book-1")
    running = claim_next()
    assert running is not None
    assert (get_target("book-1")["holder"], get_target("book-1")["blocked_by"]) == (str(running.pk), None)

    fail(running)

    target = get_target("book-1")
    assert (target["holder"], target["blocked_by"], target["queued"]) == (str(running.pk), str(running.pk), 2)
    oldest = Job.objects.exclude(pk=running.pk).order_by("created_at").first()
    assert oldest is not None
    assert target["oldest_queued_at"][:19] == oldest.created_at.isoformat()[:19]
    assert "blocked" in call("targets", "list").out


def test_list_filters_by_tenant_paused_blocked_and_limit() -> None:
    TargetFactory.create(key="a", tenant="acme")
    TargetFactory.create(key="b", paused=True)
    TargetFactory.create(key="c")
    JobFactory.create(failed=True, target="c")

    def list_keys(*arguments: str) -> list[str]:
        return [target["key"] for target in call("targets", "list", "--json", *arguments).json]

    assert list_keys() == ["a", "b", "c"]
    assert list_keys("--tenant=acme") == ["a"]
    assert list_keys("--paused") == ["b"]
    assert list_keys("--blocked") == ["c"]
    assert list_keys("--limit=2") == ["a", "b"]


@pytest.mark.parametrize(
    "arguments", [["pause", "a/b"], ["pause", ""], ["pause", "a", "--tenant=b c"], ["list", "--limit=0"]]
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str]) -> None:
    result = call("targets", *arguments)

    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert not Target.objects.exists()


def test_as_a_process_it_pauses(process_env: dict[str, str]) -> None:
    result = run_process(process_env, "targets", "pause", "book-1", "--json")

    assert result.code == 0
    assert [target["paused"] for target in result.json] == [True]
