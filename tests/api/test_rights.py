"""A token never gives more than its maker has: at its creation, and at each request."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from jobs.models import ApiToken, Job
from jobs.models.token import SCOPES
from jobs.services import tokens
from jobs.services.permissions import OPERATIONS, list_grantable_scopes
from tests.api.routes import Route, create_objects, list_routes
from tests.factories import JobFactory, JobTemplateFactory, ScheduleFactory
from tests.sample_app import job_types  # noqa: F401 — registers the types
from tests.support.admin_pages import get_list_url
from tests.support.admin_users import APP_LABELS, log_in

pytestmark = [pytest.mark.django_db, pytest.mark.once]

ROUTES = [pytest.param(route, id=str(route)) for route in list_routes()]
READ = {name for route in list_routes() if route.scope == "read" for name in route.permissions}
LIMITED_PERSONS: dict[str, tuple[str, ...]] = {
    "submitter": ("view_job", "add_job"),
    "submitter who runs templates": ("view_job", "add_job", "run_jobtemplate", "cancel_job"),
    "operator of jobs": (
        *("view_job", "view_payload", "add_job", "cancel_job", "pause_job", "resume_job", "retry_job", "resolve_job"),
        *("release_job", "reorder_job", "change_job", "pause_target"),
    ),
    "reader": tuple(sorted(READ)),
    "reader without payload": tuple(sorted(READ - {"view_payload"})),
}


CLOCK_FIELDS = dict.fromkeys(("as_of", "oldest_queued_age_sec"))  # of `/stats`: they differ between two requests


def create_person(*names: str, name: str = "person", **fields: Any) -> User:
    user = User.objects.create_user(name, is_staff=True, **fields)
    user.user_permissions.set(find_ours(*names))
    return user


def find_ours(*names: str) -> Any:
    return Permission.objects.filter(content_type__app_label__in=APP_LABELS, codename__in=names)


def find_permissions(scope: str) -> set[str]:
    """Return the names of the permissions that sessions need for the operations of a scope."""
    return {name for route in list_routes() if route.scope == scope for name in route.permissions}


def create_in_console(user: User, *scopes: str) -> str | None:
    """Create a token of all tenants by the form of the console; return its text, or None if the form is refused."""
    page = log_in(user).post(f"{get_list_url(ApiToken)}add/", {"name": "robot", "tenant": "", "scopes": scopes})
    found = re.search(r'id="token">([^<]+)<', page.content.decode())
    return None if found is None else found[1]


def send(route: Route, values: dict[str, Any], client: Client | None = None, **headers: str) -> Any:
    """Send a request and undo what it changed."""
    with transaction.atomic():
        response = (client or Client()).generic(
            route.method, route.fill_path(values), b"" if route.is_safe else b"{}", "application/json", headers=headers
        )
        transaction.set_rollback(True)
    return response


def require_no_more_than_session(route: Route, user: User, token_text: str) -> None:
    values = create_objects("default")
    by_session = send(route, values, log_in(user))
    by_token = send(route, values, Authorization=f"Bearer {token_text}")
    if by_session.status_code == 403 and route.scope != "work":
        assert by_token.status_code == 403, by_token.content
    if route.is_safe and by_token.status_code == 200:
        shown, seen = (json.loads(response.content) for response in (by_token, by_session))
        assert {**shown, **CLOCK_FIELDS} == {**seen, **CLOCK_FIELDS}


def test_every_operation_is_in_the_table_and_is_checked_by_it() -> None:
    declared = {name: (entry.scope, len(entry.permissions)) for name, entry in OPERATIONS.items()}
    assert {route.name: (route.scope, len(route.permissions)) for route in list_routes()} == declared


@pytest.mark.parametrize("scope", ["read", "submit", "operate"])
def test_a_scope_takes_every_permission_that_a_session_needs_for_its_operations(scope: str) -> None:
    needed = find_permissions(scope)
    able = create_person(*needed)
    assert scope in list_grantable_scopes(able)
    for name in needed:
        lacking = create_person(*needed - {name}, name=f"without {name}")
        assert scope not in list_grantable_scopes(lacking), name


def test_read_takes_every_view_permission_of_the_api_and_the_payload() -> None:
    names = {"view_job", "view_jobrun", "view_jobgroup", "view_jobtemplate", "view_target", "view_worker"}
    names |= {"view_concurrencylimit", "view_schedule", "view_schedulefire"}
    names |= {"view_webhookendpoint", "view_webhookdelivery", "view_lease", "view_payload", "view_activity"}
    assert find_permissions("read") == names


def test_view_job_alone_opens_the_reads_of_jobs_and_nothing_else() -> None:
    client, values = log_in(create_person("view_job")), create_objects("default")
    reads = [route for route in list_routes() if route.is_safe and route.scope == "read"]
    opened = {route.name for route in reads if send(route, values, client).status_code != 403}
    assert opened == {
        *("jobs_list", "jobs_get", "jobs_events", "jobs_explain", "job_types_list", "stats_get"),
        *("queue_list", "queue_get", "legacy_jobs_list", "legacy_jobs_get"),
    }


def test_work_and_admin_are_granted_by_superusers_only() -> None:
    person = create_person(*Permission.objects.values_list("codename", flat=True))
    assert list_grantable_scopes(person) == ["read", "submit", "operate"]
    assert list_grantable_scopes(create_person(name="boss", is_superuser=True)) == list(SCOPES)


@pytest.mark.parametrize("permissions", LIMITED_PERSONS.values(), ids=LIMITED_PERSONS)
def test_the_form_refuses_each_scope_that_the_user_has_not(permissions: tuple[str, ...]) -> None:
    user = create_person("add_apitoken", "view_apitoken", *permissions)
    for scope in SCOPES:
        assert (create_in_console(user, scope) is not None) == (scope in list_grantable_scopes(user)), scope
        ApiToken.objects.all().delete()


@pytest.mark.parametrize("route", ROUTES)
def test_the_widest_token_that_a_person_can_make_gives_no_more_than_the_session(route: Route) -> None:
    for number, permissions in enumerate(LIMITED_PERSONS.values()):
        user = create_person("add_apitoken", "view_apitoken", *permissions, name=f"person {number}")
        scopes = list_grantable_scopes(user)
        token_text = create_in_console(user, *scopes) if scopes else None
        if token_text is not None:
            require_no_more_than_session(route, user, token_text)
        ApiToken.objects.all().delete()


@pytest.mark.parametrize("route", ROUTES)
def test_a_token_loses_what_its_maker_loses(route: Route) -> None:
    user = create_person(is_superuser=True)
    token_text = tokens.create("robot", tenant=None, scopes=["admin"], maker=user)[1]
    values = create_objects("default")
    assert send(route, values, Authorization=f"Bearer {token_text}").status_code not in (401, 403)
    User.objects.update(is_superuser=False)
    user = User.objects.get()
    for permissions in ((), *LIMITED_PERSONS.values()):
        user.user_permissions.set(find_ours(*permissions))
        require_no_more_than_session(route, user, token_text)


def test_without_the_payload_permission_a_token_shows_no_payload() -> None:
    user = create_person(*find_permissions("read"))
    token_text = tokens.create("robot", tenant=None, scopes=["read"], maker=user)[1]
    headers = {"Authorization": f"Bearer {token_text}"}
    job_id = create_objects("default")["job_id"]
    assert Client().get(f"/api/jobs/{job_id}", headers=headers).json()["params"] is not None
    user.user_permissions.remove(Permission.objects.get(codename="view_payload"))
    assert Client().get(f"/api/jobs/{job_id}", headers=headers).json()["params"] is None
    assert Client().get(f"/api/jobs/{job_id}/logs", headers=headers).status_code == 403


@pytest.mark.parametrize("fields", [{"is_active": False}, {"is_staff": False}, None], ids=["inactive", "guest", "gone"])
def test_the_token_of_a_user_without_access_is_401(fields: dict[str, Any] | None) -> None:
    user = create_person(is_superuser=True)
    token_text = tokens.create("robot", scopes=["admin"], maker=user)[1]
    headers = {"Authorization": f"Bearer {token_text}"}
    assert Client().get("/api/jobs", headers=headers).status_code == 200
    if fields is None:
        user.delete()
    else:
        User.objects.update(**fields)
    response = Client().get("/api/jobs", headers=headers)
    assert (response.status_code, response.json()["code"]) == (401, "unauthorized")
    assert "who made this token" in response.json()["detail"]
    ApiToken.objects.update(maker="not a key")
    assert Client().get("/api/jobs", headers=headers).status_code == 401


def test_a_token_of_a_command_is_bounded_by_its_scopes_alone() -> None:
    token, token_text = tokens.create("robot", scopes=["read"])
    assert token.maker is None
    assert Client().get("/api/jobs", headers={"Authorization": f"Bearer {token_text}"}).status_code == 200


def test_the_maker_costs_one_statement_and_two_for_permissions() -> None:
    def count_statements(maker: User | None) -> int:
        name = "robot" if maker is None else maker.get_username()
        token_text = tokens.create(name, tenant=None, scopes=["read"], maker=maker)[1]
        with CaptureQueriesContext(connection) as queries:
            response = Client().get("/api/jobs", headers={"Authorization": f"Bearer {token_text}"})
        assert response.status_code == 200
        return len(queries)

    count_statements(create_person(name="warm-up", is_superuser=True))
    plain = count_statements(None)
    assert count_statements(create_person(name="boss", is_superuser=True)) == plain + 1
    assert count_statements(create_person(*find_permissions("read"))) == plain + 3


def test_the_console_keeps_the_maker() -> None:
    user = create_person(is_superuser=True)
    assert create_in_console(user, "read") is not None
    token = ApiToken.objects.get()
    assert token.maker == str(user.pk)
    page = log_in(user).get(f"{get_list_url(ApiToken)}{token.pk}/change/").content.decode()
    assert user.get_username() in page


NOTE: dict[str, Any] = {"job_type": "tests.note", "params": {"text": "x"}}
FROM_TEMPLATE = {"template": "nightly"}
SUBMISSIONS_FROM_TEMPLATE: dict[str, tuple[str, Any]] = {
    "job": ("/api/jobs", FROM_TEMPLATE),
    "legacy": ("/jobs/", FROM_TEMPLATE),
    "bulk": ("/api/jobs/bulk", {"jobs": [NOTE, FROM_TEMPLATE]}),
    "member": ("/api/job-groups", {"jobs": [NOTE, FROM_TEMPLATE]}),
    "final job": ("/api/job-groups", {"jobs": [NOTE], "then": FROM_TEMPLATE}),
    "run": ("/api/job-templates/{template_id}/run", {}),
}


@pytest.mark.parametrize(("path", "body"), SUBMISSIONS_FROM_TEMPLATE.values(), ids=SUBMISSIONS_FROM_TEMPLATE)
def test_a_submission_from_a_template_takes_the_permission_to_run_templates(path: str, body: Any) -> None:
    template = JobTemplateFactory.create(name="nightly", job_type="tests.note", params={"text": "t"})
    user = create_person("add_job")
    maker_token = tokens.create("robot", scopes=["submit"], maker=user)[1]

    def submit_by_both() -> list[int]:
        url = path.format(template_id=template.pk)
        by_token = {"Authorization": f"Bearer {maker_token}"}
        answers = [
            log_in(user).post(url, body, content_type="application/json"),
            Client().post(url, body, content_type="application/json", headers=by_token),
        ]
        return [answer.status_code for answer in answers]

    assert submit_by_both() == [403, 403]
    assert not Job.objects.exists()
    user.user_permissions.add(Permission.objects.get(codename="run_jobtemplate"))
    assert submit_by_both() == [201, 201]


def test_a_submission_without_a_template_takes_no_permission_to_run_templates() -> None:
    client = log_in(create_person("add_job"))
    for path, body in (("/api/jobs", {**NOTE, "template": None}), ("/api/jobs/bulk", {"jobs": [NOTE]})):
        assert client.post(path, body, content_type="application/json").status_code == 201


def test_without_read_the_responses_of_a_token_have_no_payload() -> None:
    token_texts = {
        scopes: tokens.create(" ".join(scopes), tenant=None, scopes=scopes)[1]
        for scopes in (("submit",), ("operate",), ("submit", "read"), ("operate", "read"))
    }
    template = JobTemplateFactory.create(job_type="tests.note", params={"text": "x"})
    schedule = ScheduleFactory.create(params={"text": "x"}, job_type="tests.note")

    def post(scopes: tuple[str, ...], path: str, body: Any = None) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {token_texts[scopes]}"}
        response = Client().post(path, body or {}, content_type="application/json", headers=headers)
        assert response.status_code in (200, 201), response.content
        document: dict[str, Any] = response.json()
        return document

    for scopes, is_shown in ((("submit",), False), (("submit", "read"), True)):
        documents = [
            post(scopes, "/api/jobs", NOTE),
            post(scopes, f"/api/job-templates/{template.pk}/run"),
            post(scopes, "/api/job-groups", {"jobs": [NOTE]})["jobs"][0],
        ]
        assert [document["params"] is not None for document in documents] == [is_shown] * 3
        assert all(document["id"] and document["status"] and document["job_type"] for document in documents)
        failed = JobFactory.create(failed=True, idempotency_key="-".join(scopes))
        operate = ("operate", *scopes[1:])
        assert (post(operate, f"/api/jobs/{failed.pk}/resolve")["run"]["artifacts"] is not None) == is_shown
        queued = JobFactory.create()
        assert (post(operate, f"/api/jobs/{queued.pk}/cancel")["params"] is not None) == is_shown
        assert (post(operate, f"/api/schedules/{schedule.pk}/disable")["params"] is not None) == is_shown
        assert (post(operate, f"/api/schedules/{schedule.pk}/trigger")["params"] is not None) == is_shown
