"""Limits and templates: what an operator may write, each field through the gate."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

import tests.sample_app.job_types  # noqa: F401  templates choose among the types that are known
from jobs.models import ConcurrencyLimit, JobTemplate
from jobs.redaction import MASK
from jobs.services import jobs as job_services
from tests.factories import ConcurrencyLimitFactory, JobTemplateFactory
from tests.support.admin_pages import get_list_url, get_page_url
from tests.support.admin_users import create_reader, log_in
from tests.support.snapshots import dump_tables

TEMPLATE = {"tenant": "default", "name": "nightly", "job_type": "tests.note", "params": '{"text": "hi"}'}


def errors(response: Any) -> dict[str, Any]:
    assert response.status_code == 200
    form = response.context["adminform"].form
    return {name: " ".join(messages) for name, messages in form.errors.items()}


def test_an_operator_sets_a_limit_and_pauses_it_under_his_name(db: Any) -> None:
    client = log_in(create_reader("operator", "change_limits"))
    limit = ConcurrencyLimitFactory.create(max=1, overridden=False)
    pause = get_page_url(limit).replace("/change/", "/verb/pause/")
    assert client.post(get_page_url(limit), {"max": "5", "reason": "more"}).status_code == 302
    client.post(pause, {"reason": "maintenance"})
    limit.refresh_from_db()
    assert (limit.max, limit.overridden, limit.paused, limit.paused_by) == (5, True, True, "operator")
    assert (limit.paused_at is not None, limit.reason) == (True, "maintenance")
    client.post(get_page_url(limit), {"max": "6", "overridden": "on"})
    limit.refresh_from_db()
    assert (limit.max, limit.paused, limit.reason) == (6, True, "maintenance")
    client.post(pause.replace("pause", "unpause"))
    limit.refresh_from_db()
    assert (limit.max, limit.paused, limit.paused_by, limit.paused_at) == (6, False, "", None)
    assert LogEntry.objects.count() == 4


def test_a_limit_goes_back_to_what_the_settings_say(boss: Client, settings: Any) -> None:
    settings.JOBSCHEDULER = {"LIMITS": {"resource": {"smtp": 7}}}
    limit = ConcurrencyLimitFactory.create(scope="resource", key="smtp", max=1)
    boss.post(get_page_url(limit), {"max": "1"})
    limit.refresh_from_db()
    assert (limit.max, limit.overridden) == (7, False)


def test_a_new_limit_needs_a_scope_and_the_key_that_belongs_to_it(boss: Client) -> None:
    add = f"{get_list_url(ConcurrencyLimit)}add/"
    assert boss.get(add).status_code == 200
    for scope, key in (
        ("resource", ""),
        ("global", "x"),
        ("tenant", "a/b"),
        ("resource", "a\nb"),
        ("resource", "x" * 201),
    ):
        assert "key" in errors(boss.post(add, {"scope": scope, "key": key, "max": "1", "overridden": "on"})), (
            scope,
            key,
        )
    assert "scope" in errors(boss.post(add, {"scope": "planet", "key": "x", "max": "1"}))
    assert boss.post(add, {"scope": "resource", "key": "smtp", "max": "2", "overridden": "on"}).status_code == 302
    assert errors(boss.post(add, {"scope": "resource", "key": "smtp", "max": "3", "overridden": "on"}))
    assert ConcurrencyLimit.objects.get().max == 2


@pytest.mark.parametrize("maximum", ["0", "-1", "1.5", "nan", "x", "9" * 30, "9" * 5000, str(2**31)])
def test_a_limit_is_a_whole_number_from_1(maximum: str, boss: Client) -> None:
    limit = ConcurrencyLimitFactory.create()
    before = dump_tables()
    assert "max" in errors(boss.post(get_page_url(limit), {"max": maximum, "overridden": "on"}))
    assert dump_tables() == before


def test_scope_and_key_of_a_limit_are_its_identity(boss: Client) -> None:
    limit = ConcurrencyLimitFactory.create(scope="resource", key="smtp")
    boss.post(get_page_url(limit), {"scope": "global", "key": "", "max": "2", "overridden": "on"})
    limit.refresh_from_db()
    assert (limit.scope, limit.key, limit.max) == ("resource", "smtp", 2)


def test_a_template_written_here_can_be_enqueued(boss: Client) -> None:
    policy = '{"max_attempts": 5, "base_sec": 0.5}'
    data = {**TEMPLATE, "retry_policy": policy, "tags": '["night"]', "priority": "75", "cost_units": "2"}
    assert boss.post(f"{get_list_url(JobTemplate)}add/", data).status_code == 302
    job = job_services.enqueue(template="nightly")
    assert (job.params, job.priority, job.tags, job.max_retries, job.cost_units) == (
        {"text": "hi"},
        75,
        ["night"],
        5,
        2,
    )


def test_params_of_a_template_may_be_incomplete_but_not_wrong(boss: Client) -> None:
    add = f"{get_list_url(JobTemplate)}add/"
    for params in ('{"text": 1}', '{"other": 1}', '{"text": "a", "times": "2"}'):
        assert "params" in errors(boss.post(add, {**TEMPLATE, "params": params})), params
    assert boss.post(add, {**TEMPLATE, "params": '{"times": 2}'}).status_code == 302


@pytest.mark.parametrize(
    ("field", "text"),
    [
        *(("params", text) for text in ("[]", "nul", "{", '{"a": NaN}', '{"a": 1e999}', '{"a": 1, "a": 2}')),
        *(
            ("params", text)
            for text in ("[" * 5000, '{"a": ' + "9" * 5000 + "}", '{"a": "\\u0000"}', '{"a": "\\ud800"}')
        ),
        ("params", '{"a": ' + str(2**64) + "}"),
        ("params", '{"a": ' * 40 + "1" + "}" * 40),
        *(("tags", text) for text in ("{}", "[1]", '["' + "x" * 65 + '"]', '[""]')),
        *(("retry_policy", text) for text in ("[]", '{"max_attempts": -1}', '{"what": 1}', '{"jitter": 2}')),
        *(("tenant", text) for text in ("a b", "", "a/b", "x" * 65)),
        *(("name", text) for text in ("", "a\nb", "x" * 201)),
        *(("target", text) for text in ("a/b", "a\tb")),
        *(("priority", text) for text in ("101", "-1", "x", "9" * 5000)),
        *(("max_runtime_sec", text) for text in ("0", "nan", "inf", "-1", "1e12")),
        *(("cost_units", text) for text in ("101", "-1")),
        *(("token_limit", text) for text in ("-1", "9" * 40)),
        ("job_type", "no.such.type"),
    ],
)
def test_a_template_with_a_bad_field_is_refused_by_name(field: str, text: str, boss: Client) -> None:
    before = dump_tables()
    data = {**TEMPLATE, "job_type": "tests.anything", field: text}
    assert set(errors(boss.post(f"{get_list_url(JobTemplate)}add/", data))) == {field}
    assert dump_tables() == before


def test_two_templates_of_a_tenant_cannot_share_a_name(boss: Client) -> None:
    JobTemplateFactory.create(name="nightly")
    assert errors(boss.post(f"{get_list_url(JobTemplate)}add/", TEMPLATE))


def test_masked_params_survive_an_edit(boss: Client) -> None:
    params = {"text": "a", "login": {"user": "x", "password": "hunter2"}, "hooks": [{"token": "t1"}, {"token": "t2"}]}
    template = JobTemplateFactory.create(job_type="tests.anything", params=params)
    page = boss.get(get_page_url(template))
    shown = page.context["adminform"].form["params"].value()
    assert "hunter2" not in shown
    data = {**TEMPLATE, "job_type": "tests.anything", "priority": "60", "params": shown}
    assert boss.post(get_page_url(template), data).status_code == 302
    template.refresh_from_db()
    assert (template.params, template.priority) == (params, 60)


def test_a_masked_secret_is_not_kept_beside_other_values_or_for_another_job_type(boss: Client) -> None:
    params = {"text": "a", "password": "hunter2"}
    template = JobTemplateFactory.create(job_type="tests.anything", params=params)
    shown = boss.get(get_page_url(template)).context["adminform"].form["params"].value()
    data = {**TEMPLATE, "job_type": "tests.anything", "params": shown}
    for changed, field in (
        ({"params": shown.replace('"a"', '"b"')}, "params"),
        ({"job_type": "tests.note"}, "params"),
        ({"overridable": '["text"]'}, "params"),
    ):
        page = boss.post(get_page_url(template), {**data, **changed})
        assert "write its value in again" in errors(page)[field], changed
    template.refresh_from_db()
    assert (template.params, template.job_type, template.overridable) == (params, "tests.anything", None)


def test_an_editor_who_does_not_see_params_cannot_give_their_secrets_to_another_job_type(db: Any) -> None:
    client = log_in(create_reader("editor", "change_jobtemplate"))
    template = JobTemplateFactory.create(job_type="tests.anything", params={"password": "hunter2"})
    page = client.post(get_page_url(template), {**TEMPLATE, "job_type": "tests.note"})
    assert "write them in again" in errors(page)["__all__"]
    template.refresh_from_db()
    assert template.job_type == "tests.anything"


def test_a_mask_that_stands_for_nothing_is_not_saved(boss: Client) -> None:
    template = JobTemplateFactory.create(
        job_type="tests.anything", params={"hooks": [{"token": "t1"}, {"token": "t2"}]}
    )
    for params in (f'{{"password": "{MASK}"}}', f'{{"hooks": [{{"token": "{MASK}"}}]}}'):
        data = {**TEMPLATE, "job_type": "tests.anything", "params": params}
        assert "is hidden here" in errors(boss.post(get_page_url(template), data))["params"]


def test_who_may_not_see_params_does_not_overwrite_them(db: Any) -> None:
    client = log_in(create_reader("editor", "change_jobtemplate"))
    template = JobTemplateFactory.create(params={"text": "kept"})
    assert "kept" not in client.get(get_page_url(template)).content.decode()
    assert client.post(get_page_url(template), {**TEMPLATE, "params": '{"text": "mine"}'}).status_code == 302
    template.refresh_from_db()
    assert (template.name, template.params) == ("nightly", {"text": "kept"})


def test_a_template_of_a_type_that_is_gone_can_still_be_opened_and_renamed(boss: Client) -> None:
    template = JobTemplateFactory.create(job_type="long.gone", params={})
    data = {**TEMPLATE, "job_type": "long.gone", "params": "{}"}
    assert boss.get(get_page_url(template)).status_code == 200
    assert boss.post(get_page_url(template), data).status_code in (200, 302)


def test_huge_params_are_edited_whole(boss: Client) -> None:
    params = {"text": "x" * 200_000}
    template = JobTemplateFactory.create(job_type="tests.anything", params=params)
    shown = boss.get(get_page_url(template)).context["adminform"].form["params"].value()
    boss.post(get_page_url(template), {**TEMPLATE, "job_type": "tests.anything", "params": shown})
    template.refresh_from_db()
    assert template.params == params


def test_rates_are_entered_shown_and_refused_by_name(boss: Client) -> None:
    limit = ConcurrencyLimitFactory.create(scope="resource", key="openai", max=8)
    form = {"max": "8", "rate": "60 / minute", "token_rate": "90000/min", "burst": "5", "overridden": "on"}
    page = f"{get_list_url(ConcurrencyLimit)}{limit.pk}/change/"
    assert boss.post(page, form).status_code == 302
    limit.refresh_from_db()
    assert limit.values == (8, "60/min", "90000/min", 5)
    for url in (page, get_list_url(ConcurrencyLimit)):
        text = boss.get(url).content.decode()
        assert "60/min starts, burst 5, 90000/min tokens (1500 left)" in text

    for name, value in (("rate", "60"), ("token_rate", "many"), ("burst", "0")):
        response = boss.post(page, {**form, name: value})
        assert (response.status_code, set(response.context["adminform"].form.errors)) == (200, {name})
    response = boss.post(page, {**form, "rate": ""})
    assert set(response.context["adminform"].form.errors) == {"burst"}
    limit.refresh_from_db()
    assert limit.values == (8, "60/min", "90000/min", 5)


def test_a_maximum_entered_in_the_list_keeps_the_rates(boss: Client) -> None:
    limit = ConcurrencyLimitFactory.create(scope="resource", key="openai", max=8, rate="60/min")
    form = {"form-TOTAL_FORMS": "1", "form-INITIAL_FORMS": "1", "form-0-id": limit.pk, "form-0-max": "3"}
    assert boss.post(get_list_url(ConcurrencyLimit), {**form, "_save": "Save"}).status_code == 302
    limit.refresh_from_db()
    assert limit.values == (3, "60/min", "", None)
