"""The console on an AdminSite of the host."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin import AdminSite, ModelAdmin
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse

import jobs.admin
import schedules.admin
import webhooks.admin
from jobs.admin import screens
from jobs.models import Job
from jobs.states import Status
from tests.admin.test_pages import SHOWN
from tests.factories import JobFactory, ScheduleFactory, job_in
from tests.support.admin_pages import read_messages
from tests.support.admin_rows import create_all_rows

pytestmark = pytest.mark.urls("tests.admin.urls")


def place(site: str, model: type, page: str, *args: Any) -> str:
    return reverse(f"{site}:{model._meta.app_label}_{model._meta.model_name}_{page}", args=args)


def test_each_app_registers_its_own_models_on_any_site() -> None:
    site = AdminSite(name="mine")
    for app in (jobs.admin, schedules.admin, webhooks.admin):
        app.register(site)
        app.register(site)  # again: nothing happens
    assert all(site.is_registered(model) for model in SHOWN)


def test_what_a_site_registered_itself_stays() -> None:
    class Own(ModelAdmin):
        pass

    site = AdminSite(name="mine")
    site.register(Job, Own)
    jobs.admin.register(site)
    assert type(site.get_model_admin(Job)) is Own


def test_the_default_site_is_left_alone_if_the_settings_say_so(settings: Any) -> None:
    site = AdminSite(name="mine")
    settings.JOBSCHEDULER = {"ADMIN_AUTOREGISTER": False}
    jobs.admin.register.autoregister(site)
    assert not site.is_registered(Job)
    settings.JOBSCHEDULER = {"ADMIN_AUTOREGISTER": True, "NONSENSE": 1}
    jobs.admin.register.autoregister(site)
    assert site.is_registered(Job)
    assert admin.site.is_registered(Job)


def test_pages_of_a_custom_site_lead_nowhere_else(boss: Client) -> None:
    for row in create_all_rows():
        if type(row)._meta.app_label == "jobscheduler_schedules":
            continue
        for url in (place("backoffice", type(row), "changelist"), place("backoffice", type(row), "change", row.pk)):
            page = boss.get(url)
            assert page.status_code == 200, url
            assert re.findall(r'(?:href|action)="/admin/[^"]*', page.content.decode()) == [], url


@pytest.mark.parametrize("site", ["backoffice", "narrow"])
def test_screens_of_a_custom_site_lead_nowhere_else(site: str, boss: Client) -> None:
    create_all_rows()
    for name in ("overview", "queue"):
        page = boss.get(reverse(f"{site}:jobscheduler_jobs_{name}"))
        assert page.status_code == 200
        assert re.findall(r'(?:href|action)="/(?!static|backoffice|narrow)[^"]*', page.content.decode()) in (
            [],
            ['href="/'],
        )
    listed = boss.get(f"/{site}/").content.decode()
    assert (f"/{site}/scheduler/overview/" in listed) is (site == "backoffice")


def test_a_site_with_a_job_list_of_its_own_has_no_screens_and_no_broken_links(rf: Any, boss: Client) -> None:
    class Own(ModelAdmin):
        pass

    site = AdminSite(name="own")
    site.register(Job, Own)
    jobs.admin.register(site)
    request = rf.get("/")
    request.user = get_user_model().objects.get()
    assert screens.list_screens(site, request) == []


def test_verbs_work_on_a_custom_site_and_return_to_it(boss: Client) -> None:
    failed, queued = job_in(Status.FAILED), job_in(Status.QUEUED)
    url = place("backoffice", Job, "verb", queued.pk, "cancel")
    assert boss.post(url)["Location"] == place("backoffice", Job, "change", queued.pk)
    listed = place("backoffice", Job, "changelist")
    response = boss.post(listed, {"action": "retry", "_selected_action": [failed.pk]})
    assert response["Location"] == listed
    assert "/backoffice/" in read_messages(response).split("Retried as")[1]


def test_a_site_that_shows_only_jobs_links_to_nothing_it_has_not(boss: Client) -> None:
    job = JobFactory.create(failed=True, in_lane=True, in_group=True, schedule=ScheduleFactory.create())
    page = boss.get(place("narrow", Job, "change", job.pk))
    assert page.status_code == 200
    assert "jobscheduler_schedules" not in page.content.decode()
    assert "jobscheduler_jobs/target" not in page.content.decode()
    assert boss.get(place("narrow", Job, "changelist")).status_code == 200
