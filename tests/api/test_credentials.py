"""Every route × every kind of credential: the status follows from scopes and tenants alone."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db.models.functions import Now
from django.test import Client

from jobs.models import ApiToken
from jobs.models.token import SCOPES
from jobs.services import tokens
from tests.api.routes import Route, absent_values, create_objects, list_example_bodies, list_routes
from tests.factories import JobFactory
from tests.support.admin_users import APP_LABELS
from tests.support.api_client import find_free_name
from tests.support.snapshots import dump_all_but_tokens

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("errors_logged_alone")]

ROUTES = [pytest.param(route, id=str(route)) for route in list_routes()]
EXAMPLE_BODIES = list_example_bodies()
UNSAFE_ROUTES = [param for param in ROUTES if not param.values[0].is_safe]
OBJECT_ROUTES = [param for param in ROUTES if param.values[0].names_an_object]
COLLECTION_ROUTES = [param for param in ROUTES if not param.values[0].names_an_object]

# Routes that belong to no tenant, and bodies that name another tenant than the caller's.
FOR_ALL_TENANTS_ONLY = {"workers_list", "limits_put"}
CREATES_ITS_OBJECT = {"targets_pause"}  # pausing creates the target, also if no job has used it
SHARED = {"direct_run", "job_types_list", "limits_list", "stats_get", "schedules_preview_cron", "queue_kick"}
NEW_JOB = {"job_type": "tests.note", "params": {"text": "x"}, "tenant": "default"}
BODIES_OF_ANOTHER_TENANT: dict[str, Any] = {
    "jobs_create": NEW_JOB,
    "jobs_create_many": {"jobs": [NEW_JOB]},
    "groups_create": {"jobs": [{"job_type": "tests.note", "params": {"text": "x"}}], "tenant": "default"},
    "templates_create": {"name": "theirs", "job_type": "tests.note", "tenant": "default"},
    "schedules_create": {"name": "theirs", "cron": "@daily", **NEW_JOB},
    "webhooks_create": {"url": "https://example.org/", "events": ["*"], "tenant": "default"},
    "legacy_jobs_create": NEW_JOB,
    "queue_submit": {"addon_id": "visuals", "job_type": "indexing", "tenant": "default"},
    "lease_request": {"addon_id": "visuals", "job_type": "indexing", "tenant": "default"},
    "limits_put": {"scope": "global", "max": 1},
}


# Tries of the attacks by hand that tests here repeat.
UNAUTHENTICATED_TRIES, TENANT_TRIES, SCOPE_TRIES = 468, 182, 390

# Of another tenant: tokens of all scopes together and of the one that includes them, jobs that wait and that run.
TENANT_TOKENS = {"admin": ("admin",), "all others": tuple(scope for scope in SCOPES if scope != "admin")}
OTHER_JOBS: dict[str, dict[str, Any]] = {"waiting": {"queued": True}, "running": {"running": True}}


def send(route: Route, client: Client, body: Any = None, values: dict[str, Any] | None = None, **headers: str) -> Any:
    content = b"" if body is None else json.dumps(body)
    return client.generic(
        route.method, route.fill_path(values or absent_values()), content, "application/json", headers=headers
    )


def bearer_headers(token_text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token_text}"}


def create_token(*scopes: str, tenant: str | None = None) -> str:
    return tokens.create(find_free_name(tenant), tenant=tenant, scopes=scopes)[1]


def require_problem(response: Any, status: int, code: str) -> None:
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/problem+json"
    assert response.json()["code"] == code


@pytest.mark.parametrize("route", ROUTES)
def test_without_credentials_every_route_is_401(route: Route) -> None:
    response = send(route, Client(enforce_csrf_checks=True), {})
    require_problem(response, 401, "unauthorized")
    assert response["WWW-Authenticate"] == "Bearer"


BAD_HEADERS: dict[str, dict[str, str]] = {
    "unknown": {"Authorization": "Bearer js_unknown"},
    "empty": {"Authorization": "Bearer"},
    "endless": {"Authorization": "Bearer " + "x" * 5000},
    "of another kind": {"Authorization": "Basic YTpi"},
    "beyond ASCII": {"Authorization": "Bearer js_é"},
    "unknown key": {"X-API-Key": "js_unknown"},
    "empty key": {"X-API-Key": ""},
}


@pytest.mark.parametrize("route", ROUTES)
def test_bad_credentials_are_401(route: Route) -> None:
    for name, headers in BAD_HEADERS.items():
        response = send(route, Client(), {}, **headers)
        assert (name, response.status_code) == (name, 401), response.content
        require_problem(response, 401, "unauthorized")
        assert response["WWW-Authenticate"] == "Bearer"


def test_a_token_is_accepted_as_it_was_written_only() -> None:
    token_text = create_token("admin")
    stored = ApiToken.objects.get()
    (jobs_list,) = [route for route in list_routes() if route.name == "jobs_list"]
    assert send(jobs_list, Client(), **bearer_headers(token_text)).status_code == 200
    for text in (
        *(token_text[:-1], token_text[1:], f"{token_text}x", token_text.upper(), token_text.swapcase()),
        *(stored.digest, stored.prefix, f"{stored.prefix}%", str(stored.pk), f"{token_text}\0", "' OR 1=1 --"),
    ):
        require_problem(send(jobs_list, Client(), **bearer_headers(text)), 401, "unauthorized")


@pytest.mark.parametrize("route", ROUTES)
def test_a_forged_session_is_401(route: Route) -> None:
    client = Client(enforce_csrf_checks=True)
    client.cookies["sessionid"] = "a" * 32
    require_problem(send(route, client, {}), 401, "unauthorized")


@pytest.mark.parametrize("route", ROUTES)
def test_expired_and_revoked_tokens_are_401(route: Route) -> None:
    expired, revoked = create_token("admin"), create_token("admin")
    ApiToken.objects.filter(digest=tokens.hash_token(expired)).update(expires_at=Now() - timedelta(seconds=1))
    tokens.revoke(ApiToken.objects.get(digest=tokens.hash_token(revoked)).pk)
    for token_text in (expired, revoked):
        require_problem(send(route, Client(), {}, **bearer_headers(token_text)), 401, "unauthorized")


@pytest.mark.parametrize("route", ROUTES)
def test_every_other_scope_together_is_403(route: Route) -> None:
    others = [scope for scope in SCOPES if scope not in (route.scope, "admin")]
    before = dump_all_but_tokens()
    require_problem(send(route, Client(), {}, **bearer_headers(create_token(*others))), 403, "forbidden")
    assert dump_all_but_tokens() == before


@pytest.mark.parametrize("route", ROUTES)
def test_its_scope_or_admin_is_accepted_in_either_header(route: Route) -> None:
    for scope in {route.scope, "admin"}:
        token_text = create_token(scope)
        for headers in (bearer_headers(token_text), {"X-API-Key": token_text}):
            assert send(route, Client(), {}, **headers).status_code not in (401, 403), scope


@pytest.mark.parametrize("scopes", TENANT_TOKENS.values(), ids=TENANT_TOKENS)
@pytest.mark.parametrize("route", OBJECT_ROUTES)
def test_another_tenants_object_is_answered_like_an_absent_one(route: Route, scopes: tuple[str, ...]) -> None:
    headers = bearer_headers(create_token(*scopes, tenant="ours"))
    theirs = create_objects("theirs")
    for state, body in zip(OTHER_JOBS.values(), ({}, EXAMPLE_BODIES.get(route.name, {})), strict=True):
        values = {**theirs, "job_id": JobFactory.create(tenant="theirs", **state).pk}
        before = dump_all_but_tokens()
        foreign = send(route, Client(), body, values, **headers)
        if route.name in CREATES_ITS_OBJECT:
            assert foreign.json()["tenant"] == "ours"
            after = dump_all_but_tokens()
            others = [(model, row) for model, rows in before.items() for row in rows if row.get("tenant") != "ours"]
            assert all(row in after[model] for model, row in others)
            continue
        absent = send(route, Client(), body, absent_values(), **headers)
        if route.scope in scopes or "admin" in scopes:
            require_problem(foreign, 404, "not_found")
        else:
            require_problem(foreign, 403, "forbidden")
        assert (foreign.status_code, foreign.content) == (absent.status_code, absent.content)
        assert dump_all_but_tokens() == before


def test_each_scope_is_accepted_by_its_own_routes_alone() -> None:
    tries = 0
    for scope in SCOPES:
        headers = bearer_headers(create_token(scope))
        for route in list_routes():
            is_refused = send(route, Client(), {}, **headers).status_code == 403
            assert is_refused == (scope not in (route.scope, "admin")), (scope, route)
            tries += 1
    assert tries >= SCOPE_TRIES


@pytest.mark.parametrize("route", COLLECTION_ROUTES)
def test_a_collection_contains_the_callers_tenant_only(route: Route) -> None:
    create_objects("default")
    headers = bearer_headers(create_token("admin", tenant="ours"))
    response = send(route, Client(), BODIES_OF_ANOTHER_TENANT.get(route.name, {}), **headers)
    if route.name in FOR_ALL_TENANTS_ONLY or route.name in BODIES_OF_ANOTHER_TENANT:
        require_problem(response, 403, "forbidden")
    elif route.name not in SHARED:
        assert response.status_code == 200, response.content
        page = response.json()
        items = [item for item in page["items"] if item.get("action") != "token.create"]  # of the caller's token
        assert (items, page["next_cursor"]) == ([], None)


@pytest.mark.parametrize("route", UNSAFE_ROUTES)
def test_a_session_without_a_csrf_token_is_403(route: Route) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("boss"))
    require_problem(send(route, client, {}), 403, "csrf_failed")


@pytest.mark.parametrize("route", ROUTES)
def test_a_session_with_its_csrf_token_is_accepted(route: Route) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("boss"))
    client.cookies["csrftoken"] = "a" * 32
    response = send(route, client, {}, **{"X-CSRFToken": "a" * 32})
    expected = (403,) if route.scope == "work" else (401, 403)
    assert (response.status_code in expected) == (route.scope == "work"), response.content


OTHER_ORIGINS = {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Referer": "https://evil.example/"}
FORMS = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x")


@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
def test_a_page_of_another_site_changes_nothing_with_the_session_of_its_reader(secure: bool) -> None:
    """It can send forms, and requests with a body that looks like JSON, but cannot read the cookie."""
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("boss"))
    client.cookies["csrftoken"] = "a" * 32
    content, before = json.dumps({"job_type": "system.noop"}), dump_all_but_tokens()
    for headers in ({}, {"X-CSRFToken": "b" * 32}, *OTHER_ORIGINS, {"X-HTTP-Method-Override": "GET"}):
        for kind in ("application/json", *FORMS):
            for body in (content, f"csrfmiddlewaretoken={'a' * 32}"):
                response = client.generic("POST", "/api/jobs", body, kind, secure=secure, headers=headers)
                assert response.status_code in (403, 415), (headers, kind, response.content)
                assert not [name for name in response.headers if name.startswith("Access-Control")]
    for headers in OTHER_ORIGINS[: 3 if secure else 2]:  # without TLS, Django compares the origin alone
        forged = {**headers, "X-CSRFToken": "a" * 32}
        response = client.generic("POST", "/api/jobs", content, "application/json", secure=secure, headers=forged)
        require_problem(response, 403, "csrf_failed")
    assert dump_all_but_tokens() == before


@pytest.mark.parametrize("route", ROUTES)
def test_a_token_beside_a_session_needs_no_csrf_token(route: Route) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_user("visitor"))
    assert send(route, client, {}, **bearer_headers(create_token(route.scope))).status_code not in (401, 403)


@pytest.mark.parametrize("route", ROUTES)
def test_staff_need_the_routes_own_permission(route: Route) -> None:
    user = User.objects.create_user("staff", is_staff=True)
    client = Client()
    client.force_login(user)
    ours = Permission.objects.filter(content_type__app_label__in=APP_LABELS)
    named = ours.filter(codename__in=route.permissions)
    assert len(named) == len(route.permissions)
    for missing in named if named else [None]:  # each of them is needed; without any, only superusers are allowed
        others = Permission.objects.all() if missing is None else Permission.objects.exclude(pk=missing.pk)
        user.user_permissions.set(others)
        require_problem(send(route, client, {}), 403, "forbidden")
    if named:
        user.user_permissions.set(named)
        assert send(route, client, {}).status_code not in (401, 403)


@pytest.mark.parametrize("route", ROUTES)
def test_a_session_of_a_user_who_is_not_staff_is_403(route: Route) -> None:
    client = Client()
    user = User.objects.create_user("visitor")
    user.user_permissions.set(Permission.objects.all())
    client.force_login(user)
    require_problem(send(route, client, {}), 403, "forbidden")


def test_every_route_declares_a_known_scope_and_is_unique() -> None:
    assert all(route.scope in SCOPES for route in list_routes())
    assert len({(route.method, route.path) for route in list_routes()}) == len(list_routes())


def test_there_are_as_many_tries_as_in_the_attack() -> None:
    credentials = {"none", "forged session", *BAD_HEADERS}
    assert len(ROUTES) * len(credentials) >= UNAUTHENTICATED_TRIES
    assert len(OBJECT_ROUTES) * len(TENANT_TOKENS) * len(OTHER_JOBS) >= TENANT_TRIES
