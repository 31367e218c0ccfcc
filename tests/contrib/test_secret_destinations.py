"""A secret that is masked for a user cannot be sent to a receiver of the user's choice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from django.test import override_settings
from django.urls import reverse

import tests.sample_app.job_types  # noqa: F401  templates and schedules name one of these types
from jobs.errors import InvalidInput
from jobs.models import Job, JobTemplate
from jobs.redaction import MASK
from jobs.services import groups, templates
from jobs.services import jobs as job_services
from jobs.testing import drain
from schedules import services as schedules
from schedules.firing import fire_due
from schedules.models import Schedule
from tests.contrib.test_system_types import register_types
from tests.support.admin_users import create_reader, log_in
from tests.support.api_client import ApiClient, read_error_locations
from tests.support.webhook_receiver import Receiver, run_receiver

pytestmark = [pytest.mark.django_db, pytest.mark.once]
SECRET = "Bearer TOPSECRET-4711"
HEADERS = {"Authorization": SECRET}


class Receivers(NamedTuple):
    inner: Receiver
    other: Receiver


@pytest.fixture
def receivers() -> Iterator[Receivers]:
    with (
        override_settings(JOBSCHEDULER={"SYSTEM_JOB_TYPES": True, "WEBHOOK_ALLOW_PRIVATE": True}),
        register_types(),
        run_receiver() as inner,
        run_receiver() as other,
    ):
        yield Receivers(inner, other)


@pytest.fixture
def template(receivers: Receivers) -> JobTemplate:
    params = {"url": receivers.inner.url, "headers": HEADERS}
    return templates.create({"name": "call", "job_type": "system.http", "params": params})


def run_all(receivers: Receivers) -> tuple[int, int]:
    """Run what was submitted; return how many requests with the secret each receiver got."""
    drain()
    inner, other = ([r for r in receiver.seen if SECRET in r.headers.values()] for receiver in receivers)
    return len(inner), len(other)


def test_a_run_of_a_template_with_a_secret_cannot_choose_where_it_goes(
    receivers: Receivers, template: JobTemplate
) -> None:
    api, path = ApiClient("submit"), f"/job-templates/{template.pk}/run"
    for params in ({"url": receivers.other.url}, {"method": "PUT"}, {"headers": {"X-Upstream": "other"}}):
        response = api.post(path, {"params": params})
        assert read_error_locations(response) == [["body", "params", *params]]
        assert "cannot be set in a run of this template" in response.json()["errors"][0]["msg"]
    member = {"template": "call", "params": {"url": receivers.other.url}}
    assert read_error_locations(api.post("/jobs", member)) == [["body", "params", "url"]]
    assert read_error_locations(api.post("/jobs/bulk", {"jobs": [member]})) == [["body", "jobs", 0, "params", "url"]]
    assert read_error_locations(api.post("/job-groups", {"jobs": [member]})) == [["body", "jobs", 0, "params", "url"]]
    with pytest.raises(InvalidInput, match="cannot be set"):
        groups.create([member])
    assert api.post(path, {"params": {"url": receivers.inner.url}}).status_code == 201  # the template's own value
    assert run_all(receivers) == (1, 0)


def test_the_console_cannot_run_a_template_with_another_destination(
    receivers: Receivers, template: JobTemplate
) -> None:
    form = reverse("admin:jobscheduler_jobs_template-run", args=[template.pk])
    for permissions in (["run_jobtemplate"], ["run_jobtemplate", "view_payload"]):
        client = log_in(create_reader("-".join(permissions), *permissions))
        page = client.post(form, {"param-url": receivers.other.url})
        assert "cannot be set" in str(page.context["form"].errors["param-url"])
    assert not Job.objects.exists()


def test_a_template_may_name_the_params_that_a_run_sets(receivers: Receivers, template: JobTemplate) -> None:
    params = {"url": receivers.inner.url, "headers": HEADERS}
    templates.update(template.pk, {"overridable": ["body"], "params": params})
    api, path = ApiClient("submit"), f"/job-templates/{template.pk}/run"
    assert api.post(path, {"params": {"body": "hello"}}).status_code == 201
    assert read_error_locations(api.post(path, {"params": {"url": receivers.other.url}})) == [["body", "params", "url"]]
    assert run_all(receivers) == (1, 0)
    assert receivers.inner.seen[0].body == b"hello"


def test_a_template_without_a_secret_is_overridden_freely_unless_it_names_params() -> None:
    free = templates.create({"name": "free", "job_type": "tests.anything", "params": {"a": 1}})
    assert job_services.enqueue(template=free.name, params={"a": 2, "b": 3}).params == {"a": 2, "b": 3}
    templates.update(free.pk, {"overridable": ["b"]})
    assert job_services.enqueue(template=free.name, params={"b": 3}).params == {"a": 1, "b": 3}
    with pytest.raises(InvalidInput, match=r"params.a: cannot be set .* \(overridable: b\)"):
        job_services.enqueue(template=free.name, params={"a": 2})


def test_a_run_does_not_choose_the_addon_that_gets_the_secret_of_its_template(template: JobTemplate) -> None:
    with pytest.raises(InvalidInput, match="addon_id: cannot be set"):
        job_services.enqueue(template=template.name, addon_id="other")
    JobTemplate.objects.update(overridable=["addon_id"])
    assert job_services.enqueue(template=template.name, addon_id="other").addon_id == "other"


def test_a_run_does_not_give_the_secret_of_its_template_to_a_job_that_waits_for_another_addon(
    receivers: Receivers, template: JobTemplate
) -> None:
    api, params = ApiClient("submit"), {"url": receivers.other.url}
    unique = {"unique_key": "k", "on_conflict": "replace"}
    trap = api.post("/jobs", {"job_type": "system.http", "params": params, "addon_id": "other", **unique}).json()["id"]
    item = {"template": "call", **unique}
    bodies = {"/jobs": item, "/jobs/bulk": {"jobs": [item]}, f"/job-templates/{template.pk}/run": unique}
    for path, body in bodies.items():
        response = api.post(path, body)
        assert (response.status_code, response.json()["code"]) == (409, "unique_key_taken"), response.content
        assert response.json()["job_id"] == trap
    assert Job.objects.get().params == params


@pytest.mark.parametrize("changes", [{"job_type": "tests.anything"}, {"overridable": ["url"]}])
def test_more_overridable_params_and_another_job_type_take_the_secret_again(
    changes: dict[str, Any], template: JobTemplate
) -> None:
    api, path = ApiClient("admin"), f"/job-templates/{template.pk}"
    masked = api.get(path).json()["params"]
    assert read_error_locations(api.patch(path, changes)) == [["body", "params"]]
    response = api.patch(path, {**changes, "params": masked})
    assert read_error_locations(response) == [["body", "params", "headers", "Authorization"]]
    written = {"url": template.params["url"], "headers": HEADERS}
    assert api.patch(path, {**changes, "params": written}).status_code == 200


@pytest.mark.parametrize("value", ["url", {"url": 1}, [1], [""], ["x" * 300], ["a"] * 101])
def test_overridable_must_be_a_list_of_names(value: Any, template: JobTemplate) -> None:
    response = ApiClient("admin").patch(f"/job-templates/{template.pk}", {"overridable": value})
    assert {tuple(loc[:2]) for loc in read_error_locations(response)} == {("body", "overridable")}


def test_an_edited_job_does_not_take_its_secret_to_another_receiver(receivers: Receivers) -> None:
    job = job_services.enqueue("system.http", {"url": receivers.inner.url, "headers": HEADERS})
    params = {"url": receivers.other.url, "headers": {"Authorization": MASK}}
    response = ApiClient("operate").patch(f"/jobs/{job.pk}", {"params": params})
    assert read_error_locations(response) == [["body", "params", "headers", "Authorization"]]
    assert run_all(receivers) == (1, 0)


def test_a_schedule_cannot_override_a_template_beside_its_secret(receivers: Receivers, template: JobTemplate) -> None:
    api = ApiClient("admin")
    rule = {"name": "often", "cron": "@daily", "template": "call"}
    response = api.post("/schedules", {**rule, "params": {"url": receivers.other.url}})
    assert read_error_locations(response) == [["body", "params", "url"]]
    made = schedules.create({**rule, "every_sec": 60, "cron": None, "fire_time_param": "body"})  # our own param
    Schedule.objects.update(next_fire_at=made.created_at)
    assert fire_due() == 1
    assert run_all(receivers) == (1, 0)


def test_a_schedule_does_not_take_its_secret_to_another_url_or_job_type(receivers: Receivers) -> None:
    params = {"url": receivers.inner.url, "headers": HEADERS}
    made = schedules.create({"name": "often", "cron": "@daily", "job_type": "system.http", "params": params})
    api, path = ApiClient("admin"), f"/schedules/{made.pk}"
    masked = api.get(path).json()["params"]
    hidden = ["body", "params", "headers", "Authorization"]
    assert read_error_locations(api.patch(path, {"params": {**masked, "url": receivers.other.url}})) == [hidden]
    assert read_error_locations(api.patch(path, {"job_type": "tests.anything"})) == [["body", "params"]]
    assert read_error_locations(api.patch(path, {"job_type": "tests.anything", "params": masked})) == [hidden]
    assert api.patch(path, {"params": masked, "priority": 60}).status_code == 200
    assert api.patch(path, {"job_type": "tests.anything", "params": params}).status_code == 200
