"""The operators' pages under a strict policy, and on an AdminSite of the host: nothing inline, no link out of it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from jobs.models import ConcurrencyLimit, JobGroup, JobTemplate, Target, Worker
from jobs.services import groups
from jobs.states import Status
from schedules.models import Schedule
from tests.factories import (
    ConcurrencyLimitFactory,
    JobFactory,
    JobMinuteFactory,
    JobTemplateFactory,
    ScheduleFactory,
    ScheduleFireFactory,
    TargetFactory,
    WorkerFactory,
    job_in,
)
from tests.support.admin_pages import get_list_url, get_page_url

INLINE = re.compile(
    r"<style|\sstyle=|\son[a-z]+=|javascript:|<script(?![^>]*\bsrc=)(?![^>]*application/json)[^>]*>", re.I
)
SCREENS = ("activity", "performance", "enqueue")


def rows() -> list[Any]:
    job_in(Status.FAILED, target="book-1")
    JobMinuteFactory.create()
    template = JobTemplateFactory.create(job_type="system.sleep")
    JobFactory.create(running=True)
    return [
        template,
        groups.create([{"job_type": "system.noop"}]),
        TargetFactory.create(key="book-1"),
        ConcurrencyLimitFactory.create(paused=True),
        WorkerFactory.create(),
    ]


def test_no_page_has_a_style_or_a_script_within(boss: Client) -> None:
    schedule = ScheduleFactory.create()
    ScheduleFireFactory.create(schedule=schedule, job=job_in(Status.COMPLETED))
    made = [*rows(), schedule]
    models = (JobTemplate, JobGroup, Target, ConcurrencyLimit, Worker, Schedule)
    screens = [reverse(f"admin:jobscheduler_jobs_{name}") for name in SCREENS]
    others = [
        reverse("admin:jobscheduler_jobs_template-run", args=[made[0].pk]),
        f"{screens[2]}?job_type=system.sleep",
        f"{reverse('admin:jobscheduler_schedules_schedule_preview')}?cron=0 9 * * *",
        f"{get_list_url(Schedule)}add/",
    ]
    for url in (*map(get_list_url, models), *map(get_page_url, made), *screens, *others):
        page = boss.get(url)
        assert (page.status_code, INLINE.findall(page.content.decode())) == (200, []), url
    asked = boss.post(get_page_url(made[1]).replace("/change/", "/verb/cancel/"))
    assert INLINE.findall(asked.content.decode()) == []


@pytest.mark.urls("tests.admin.urls")
def test_screens_and_verbs_stay_on_their_site(boss: Client) -> None:
    made = rows()
    urls = [reverse(f"backoffice:jobscheduler_jobs_{name}") for name in SCREENS]
    urls.append(reverse("backoffice:jobscheduler_jobs_template-run", args=[made[0].pk]))
    for url in urls:
        page = boss.get(url).content.decode()
        assert re.findall(r'(?:href|action)="/admin/[^"]*', page) == [], url
    for row, verb in ((made[2], "pause"), (made[3], "unpause"), (made[4], "quiet")):
        name = f"backoffice:jobscheduler_jobs_{row._meta.model_name}"
        answer = boss.post(reverse(f"{name}_verb", args=[row.pk, verb]))
        assert answer["Location"] == reverse(f"{name}_change", args=[row.pk])
    made_job = boss.post(urls[3], {})
    assert made_job["Location"].startswith("/backoffice/")
    asked = boss.post(reverse("backoffice:jobscheduler_jobs_jobgroup_verb", args=[made[1].pk, "cancel"]))
    assert '"/admin/' not in asked.content.decode()
