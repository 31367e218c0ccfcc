"""Groups in the console: cancel and retry by permission."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.models import GroupStatus, JobEvent, JobGroup
from jobs.services import groups
from tests.support.admin_pages import get_page_url, read_messages, run_action
from tests.support.admin_users import create_reader, log_in

pytestmark = pytest.mark.django_db
ITEM = {"job_type": "sample.noop"}


@pytest.mark.parametrize(
    ("verb", "before", "after"), [("cancel", "PENDING", "CANCELLED"), ("retry", "CANCELLED", "RUNNING")]
)
def test_a_verb_needs_its_permission(verb: str, before: str, after: str) -> None:
    made = groups.create([ITEM, ITEM])
    if before == GroupStatus.CANCELLED:
        groups.cancel(made.pk)
    run_action(log_in(create_reader("reader")), verb, [made])
    assert JobGroup.objects.get().status == before
    run_action(log_in(create_reader("operator", f"{verb}_jobgroup")), verb, [made], reason="as agreed")
    assert JobGroup.objects.get().status == after
    assert JobEvent.objects.filter(actor_kind="user", actor_name="operator", reason="as agreed").exists()


def test_what_cannot_be_done_is_said_and_the_rest_is_done() -> None:
    ended, waiting = groups.create([ITEM]), groups.create([ITEM])
    groups.cancel(ended.pk)
    response: Any = run_action(log_in(create_reader("operator", "cancel_jobgroup")), "cancel", [ended, waiting])
    messages = read_messages(response)
    assert "1 group changed" in str(messages)
    assert "cannot be cancelled" in str(messages)


def test_the_pages_of_a_group_and_of_its_jobs_count_alike_and_name_the_final_job() -> None:
    made = groups.create([ITEM, ITEM], then=ITEM, name="books")
    reader = log_in(create_reader("reader"))
    first, _second, final = groups.get_latest_attempts(made.pk)
    assert "3 (final job)" in reader.get(get_page_url(made)).content.decode()
    assert "books, place 1<" in reader.get(get_page_url(first)).content.decode()
    page = reader.get(get_page_url(final)).content.decode()
    assert ("books, final job<" in page, "1 sample.noop<" in page) == (True, True)
