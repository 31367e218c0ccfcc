"""Paths work with and without a slash, without redirects, under any prefix."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client, override_settings
from django.urls import reverse

from tests.api.routes import Route, absent_values, create_objects, list_routes
from tests.factories import JobFactory
from tests.support.api_client import ApiClient

pytestmark = pytest.mark.django_db

ROUTES = [pytest.param(route, id=str(route)) for route in list_routes()]


@pytest.mark.parametrize("route", ROUTES)
def test_every_path_answers_the_same_with_and_without_a_slash(route: Route) -> None:
    api = ApiClient("admin", tenant=None)

    def send(path: str) -> Any:
        return api.client.generic(route.method, path, b'{"x": 1}', "application/json", headers=api.headers)

    bare = route.fill_path(absent_values()).rstrip("/")
    for append_slash in (True, False):
        with override_settings(APPEND_SLASH=append_slash):
            without, slashed = send(bare), send(f"{bare}/")
        assert without.status_code == slashed.status_code not in (301, 302, 307, 308)
        assert without.headers["Content-Type"] == slashed.headers["Content-Type"]


@override_settings(ROOT_URLCONF="tests.api.breaking_urls")
@pytest.mark.parametrize("prefix", ["", "/deep/scheduler"])
def test_it_may_be_included_twice_and_anywhere(prefix: str) -> None:
    api = ApiClient("admin")
    job = JobFactory.create()
    for path in ("/api/jobs", f"/api/jobs/{job.pk}", "/jobs/", f"/jobs/{job.pk}", "/api/docs", "/healthz"):
        assert api.client.get(prefix + path, headers=api.headers).status_code == 200, path
    assert api.client.get(f"{prefix}/api/nowhere").status_code == 404
    document = api.client.get(f"{prefix}/api/openapi.json").json()
    roots = tuple(f"{prefix}/{root}/" for root in ("api", "jobs", "targets"))
    assert all(f"{path}/".startswith(roots) for path in document["paths"])
    assert f"{prefix}/api/openapi.json" in api.client.get(f"{prefix}/api/docs/", headers=api.headers).content.decode()


def test_urls_have_stable_names() -> None:
    job = JobFactory.create()
    assert reverse("jobscheduler-api:jobs_list") == "/api/jobs"
    assert reverse("jobscheduler-api:jobs_cancel", args=[job.pk]) == f"/api/jobs/{job.pk}/cancel"
    assert reverse("jobscheduler-legacy:legacy_jobs_list") == "/jobs"


def test_a_path_param_is_never_a_lookup() -> None:
    api = ApiClient("admin")
    create_objects("default")
    for job_id in ("*", "%2A", "..", "null", "undefined", "0"):
        assert api.get(f"/jobs/{job_id}").status_code == 404


def test_the_openapi_document_needs_no_credentials_and_no_database(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        assert Client().get("/api/openapi.json").status_code == 200
