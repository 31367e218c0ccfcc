"""The API's documentation in a real browser, under the policy of the site."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect

from tests.browser.conftest import Opener
from tests.factories import JobFactory

pytestmark = [pytest.mark.browser, pytest.mark.once, pytest.mark.django_db(transaction=True)]


def test_the_page_shows_the_operations_and_tries_them_with_the_session(open_as: Opener) -> None:
    job = JobFactory.create()
    page = open_as(User.objects.create_superuser("boss"), "/api/docs")
    page.set_default_timeout(60_000)  # a click renders 90 operations; beside other tests that took 20 s
    operation = page.locator("#operations-jobs-jobs_cancel")
    operation.locator(".opblock-summary-control").click()
    operation.get_by_role("button", name="Try it out").click()
    operation.locator('tr[data-param-name="job_id"] input').fill(str(job.pk))
    operation.get_by_role("button", name="Execute").click()
    expect(operation.locator(".live-responses-table tbody .response-col_status")).to_contain_text("200")
    job.refresh_from_db()
    assert job.status == "CANCELLED"
