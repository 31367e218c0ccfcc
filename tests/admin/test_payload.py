"""Who sees params, artifacts and logs; and that no stored text is ever more than text."""

from __future__ import annotations

from typing import Any

import pytest
from django.db.models import Model
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from jobs.models import Job, JobEvent, JobLog, JobRun
from jobs.redaction import MASK
from tests import factories
from tests.factories import JobFactory, JobLogFactory, JobRunFactory
from tests.support.admin_pages import get_list_url, get_page_url, read_messages, run_action
from tests.support.admin_users import create_reader, log_in
from tests.support.snapshots import dump_tables

PLAIN, SECRET = "plainly-visible", "hunter2"
PAYLOAD = {"note": PLAIN, "nested": [{"Password": SECRET}]}
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u202edesrever {{ 7 }} %s "


def rows_with_payload() -> list[Model]:
    job = JobFactory.create(completed=True, started=False, params=PAYLOAD, checkpoint=PAYLOAD)
    body = b'{"data": {"note": "plainly-visible", "token": "hunter2"}}'
    return [
        job,
        JobRunFactory.create(job=job, artifacts=PAYLOAD),
        factories.JobTemplateFactory.create(params=PAYLOAD),
        factories.ScheduleFactory.create(params=PAYLOAD),
        factories.WebhookDeliveryFactory.create(body=body),
    ]


def get_pages(client: Client, row: Model) -> str:
    return client.get(get_page_url(row)).content.decode() + client.get(get_list_url(type(row))).content.decode()


def test_payload_is_hidden_without_its_permission(looker: Client) -> None:
    for row in rows_with_payload():
        assert (PLAIN in get_pages(looker, row), SECRET in get_pages(looker, row)) == (False, False), row


def test_payload_is_shown_with_its_permission_and_its_secrets_are_masked(db: Any) -> None:
    client = log_in(create_reader("auditor", "view_payload"))
    for row in rows_with_payload():
        page = client.get(get_page_url(row)).content.decode()
        assert (PLAIN in page, SECRET in page, MASK in page) == (True, False, True), row


def test_log_lines_are_payload(looker: Client) -> None:
    line = JobLogFactory.create(message=PLAIN)
    auditor = log_in(create_reader("auditor", "view_payload"))
    assert PLAIN not in get_pages(looker, line) + get_pages(looker, line.job)
    for page in (get_list_url(JobLog), get_page_url(line), get_page_url(line.job)):
        assert PLAIN in auditor.get(page).content.decode()


@pytest.mark.parametrize(
    "lookup",
    [
        "params__note__startswith=p",
        "params__contains=x",
        "run__artifacts__note=x",
        "status__exact=QUEUED",
        "checkpoint=1",
    ],
)
def test_payload_cannot_be_guessed_through_the_url(lookup: str, looker: Client) -> None:
    JobFactory.create(params=PAYLOAD)
    assert looker.get(f"{get_list_url(Job)}?{lookup}").status_code == 400


def test_bytes_that_are_no_json_cannot_be_masked_and_are_not_shown(boss: Client) -> None:
    delivery = factories.WebhookDeliveryFactory.create(body=b"token=hunter2")
    page = boss.get(get_page_url(delivery)).content.decode()
    assert ("hunter2" in page, "13 bytes that are not JSON" in page) == (False, True)


def test_secrets_that_are_no_payload_are_on_no_page(boss: Client) -> None:
    token = factories.ApiTokenFactory.create()
    endpoint = factories.WebhookEndpointFactory.create(secret=b"encrypted-words")
    job = JobFactory.create(running=True)
    assert token.digest not in get_pages(boss, token)
    assert "encrypted-words" not in get_pages(boss, endpoint)
    assert str(job.lease_token) not in get_pages(boss, job)


def hostile_rows() -> list[Model]:
    """The same text in every place that takes text."""
    text, short = HOSTILE, HOSTILE[:60]
    group = factories.JobGroupFactory.create(name=text, tenant=short)
    job = JobFactory.create(
        failed=True,
        started=False,
        job_type=text,
        target=text,
        tenant=short,
        resource=text,
        addon_id=text,
        status_reason=text,
        progress_message=text,
        progress=0.5,
        params={text: text},
        tags=[text[:64]],
        checkpoint=text,
        idempotency_key=text,
        group=group,
        group_index=0,
    )
    waiting = JobFactory.create(
        job_type=text, target=f"{text} 2", tenant=short, resource=text, addon_id=text, params={text: text}
    )
    actor = {"actor_name": text, "reason": text, "data": {text: text}}
    return [
        group,
        job,
        waiting,
        factories.ActivityFactory.create(
            tenant=short, actor_name=text, object_id=text, object_name=text, reason=text, before={text: text}, after={}
        ),
        factories.PollerFactory.create(addon_id=text),
        JobRunFactory.create(job=job, error=text, artifacts={text: text}, worker=text),
        factories.JobEventFactory.create(job=job, **actor),
        JobLogFactory.create(job=job, message=text, level=short[:16]),
        factories.JobTemplateFactory.create(name=text, job_type=text, params={text: text}, tags=[text]),
        factories.TargetFactory.create(key=text, tenant=short, reason=text, paused_by=text),
        factories.ConcurrencyLimitFactory.create(key=text, reason=text, paused_by=text),
        factories.LeaseFactory.create(job_type=text, owner=text, outcome=text),
        factories.WorkerFactory.create(name=text, host=text, version=short[:50], serves={text: text}),
        factories.JobMinuteFactory.create(worker=text, job_type=text),
        factories.ApiTokenFactory.create(name=text, tenant=short, scopes=[text]),
        factories.ScheduleFactory.create(name=text, cron=text, params={text: text}, disabled_reason=text, source=text),
        factories.ScheduleFireFactory.create(note=text),
        factories.WebhookEndpointFactory.create(url=text, events=[text], disabled_reason=text),
        factories.WebhookDeliveryFactory.create(
            event=short[:32],
            error=text,
            body=b'{"a": "<script>alert(1)</script>"}',
        ),
        factories.WebhookAttemptFactory.create(error=text, response_head=text, response_body=text),
    ]


def test_markup_in_any_text_stays_text(boss: Client) -> None:
    for row in hostile_rows():
        page = get_pages(boss, row)
        assert "<script>alert" not in page, row
        assert "<img src=x" not in page, row
        assert "&lt;script&gt;" in page, row


def test_markup_stays_text_on_every_screen_and_long_texts_stay_short(boss: Client) -> None:
    for text in (HOSTILE, "x" * 1_000_000):
        job = JobFactory.create(
            failed=True, started=False, status_reason=text, job_type=text[:200], resource=text[:200], target=text[:200]
        )
        JobRunFactory.create(job=job, error=text)
        JobFactory.create(job_type=text[:200], resource=text[:200], target=text[:200], tenant=text[:60])
        factories.ConcurrencyLimitFactory.create(
            scope="resource", key=text[:200], paused=True, paused_by=text[:200], reason=text
        )
        factories.ScheduleFactory.create(name=text[:200], next_fire_at=timezone.now())
        asked = boss.post(
            get_list_url(Job), {"action": "retry", "dry_run": "on", "_selected_action": [job.pk], "reason": text[:2000]}
        )
        screens = [boss.get(reverse(f"admin:jobscheduler_jobs_{name}")) for name in ("overview", "queue")]
        for page in (asked, boss.get(get_list_url(Job)), *screens):
            shown = page.content.decode()
            assert (page.status_code, "<script>alert" in shown, "<img src=x" in shown) == (200, False, False)
            assert (len(shown) < 150_000, shown.rstrip().endswith("</html>")) == (True, True)


def test_a_direction_override_in_json_is_spelled_out(boss: Client) -> None:
    job = JobFactory.create(params={"a": "x\u202ey"})
    page = boss.get(get_page_url(job)).content.decode()
    assert ("\u202e" in page, "x\\u202ey" in page) == (False, True)


def test_text_of_any_direction_beside_other_text_is_isolated(boss: Client) -> None:
    job = JobFactory.create(failed=True, status_reason="\u202edesrever")
    assert "<bdi>\u202edesrever</bdi>" in boss.get(get_list_url(Job)).content.decode()
    assert "<bdi>\u202edesrever</bdi>" in boss.get(get_page_url(job)).content.decode()


def test_texts_of_any_length_make_short_lists_and_bounded_pages(boss: Client) -> None:
    endless = "x" * 1_000_000
    job = JobFactory.create(failed=True, started=False, status_reason=endless, params={"a": endless})
    JobRunFactory.create(job=job, error=endless)
    JobLogFactory.create(job=job, message=endless)
    factories.JobEventFactory.create(job=job, reason=endless)
    for model in (Job, JobRun, JobEvent, JobLog):
        assert len(boss.get(get_list_url(model)).content) < 100_000, model
    assert len(boss.get(get_page_url(job)).content) < 400_000


def test_a_hostile_reason_is_kept_and_shown_as_text(boss: Client) -> None:
    job = JobFactory.create()
    assert read_messages(run_action(boss, "cancel", [job], reason=HOSTILE)) == "1 job cancelled."
    assert "<script>alert" not in boss.get(get_page_url(job)).content.decode()
    assert "<script>alert" not in boss.get(get_page_url(job).replace("/change/", "/history/")).content.decode()


@pytest.mark.parametrize(
    "query",
    [
        *("q=%00", "q=" + "9" * 5000, "q='; DROP", "q=%25", "q=type:%25", "q=group:nonsense", 'q="unclosed', "q=::"),
        *("status=%00", "status=NONSENSE", "created=1", "job_type=%00", "p=-1", "p=99999999999", "p=x", "all=1"),
        *("o=99", "o=x.y", "o=-1.-2", "_facets=1", "e=1", "_popup=1"),
    ],
)
def test_odd_query_strings_are_answered_calmly(query: str, boss: Client) -> None:
    factories.JobEventFactory.create()
    before = dump_tables()
    for model in (Job, JobEvent):
        wanted = {"status", "created", "job_type"} if model is Job else set()
        if query.split("=")[0] in {"status", "created", "job_type"} - wanted:
            continue
        assert boss.get(f"{get_list_url(model)}?{query}").status_code in (200, 302), model
    assert dump_tables() == before
