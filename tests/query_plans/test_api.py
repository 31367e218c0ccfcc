"""At 200,000 jobs, a tenth of them live: every GET takes few statements, and none of them walks the history."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoDbBlocker

from jobs.models import JobEvent, JobLog
from jobs.services import targets, tokens
from jobs.states import EventKind
from jobs.stats import live_counts
from jobscheduler.api import api
from tests.api.routes import create_objects, list_routes
from tests.factories import (
    JobEventFactory,
    JobFactory,
    JobGroupFactory,
    JobLogFactory,
    JobTemplateFactory,
    WorkerFactory,
)
from tests.query_plans.explain import find_full_scans
from tests.query_plans.large_tables import LargeTables, delete_all_rows

pytestmark = pytest.mark.django_db

JOBS = 200_000
MOST_STATEMENTS = 12
FILTERS = (
    *("status=QUEUED", "status=RUNNING", "status=FAILED", "status=COMPLETED", "status=FAILED&status=CANCELLED"),
    *("job_type=tests.note", "job_type=nothing.like.it", "target=target%2010", "tenant=other", "tenant=nobody"),
    *("tag=rare", "tag=absent", "q=tests", "q=absent", "order=queue", "order=queue&tenant=other", "resource=none"),
    *("status=PAUSED&job_type=tests.note", "created_after=2026-01-01T00:00:00Z", "created_before=2026-01-01T00:00:00Z"),
)
ASKED = {"/api/schedules/preview": "?cron=0%203%20*%20*%20*"}  # what a path cannot do without
GETS = [
    *[f"{route.path}{ASKED.get(route.path, '')}" for route in list_routes() if route.is_safe],
    *[f"/api/jobs?{filters}" for filters in FILTERS],
    *[
        f"/api/job-runs?{filters}"
        for filters in ("status=FAILED", "status=RUNNING", "job_type=tests.note", "tenant=other")
    ],
    *["/api/stats?tenant=other", "/api/targets?tenant=other", "/metrics"],
]

DESCRIBED: dict[str, Any] = api.get_openapi_schema(path_prefix="/api")["paths"]
LISTS = [
    path
    for path, methods in DESCRIBED.items()
    if any(item["name"] == "limit" for item in methods.get("get", {}).get("parameters", ()))
]


@pytest.fixture(autouse=True)
def count_no_requests(settings: Any) -> None:
    """A token's request is counted once in sixty, by up to two statements: they would be those of a chance request."""
    settings.JOBSCHEDULER = {**getattr(settings, "JOBSCHEDULER", {}), "API_RATE_LIMIT": None}


class Values(dict[str, Any]):
    """Values of the path parameters; a missing one becomes an unknown id, which takes few statements, too."""

    def __missing__(self, name: str) -> str:
        return str(uuid4())


@dataclass(frozen=True)
class Scene:
    """What the paths name, and tokens to ask with."""

    values: Values
    everywhere: str
    of_one: str


@pytest.fixture(scope="module")
def scene(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Scene]:
    with django_db_blocker.unblock():
        crowd = LargeTables(connection, JOBS)
        crowd.fill()
        job_id = crowd.id_of(JOBS // 2)
        JobEventFactory.create_batch(100, job_id=job_id, job=None, kind=str(EventKind.UPDATED))
        JobLogFactory.create_batch(100, job_id=job_id, job=None)
        WorkerFactory.create_batch(5)
        templates = JobTemplateFactory.create_batch(600)
        group = JobGroupFactory.create()
        for index in range(50):
            JobFactory.create(group=group, group_index=index)
        targets.pause("target 10")
        (_, everywhere), (_, of_one) = tokens.create("a", tenant=None), tokens.create("b", tenant="other")
        known = {
            "job_id": job_id,
            "run_id": job_id,
            "key": "target 10",
            "template_id": templates[0].pk,
            "group_id": group.pk,
        }
        yield Scene(Values({**create_objects("default"), **known}), everywhere, of_one)
        live_counts.clear_cache()
        delete_all_rows()


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    live_counts.clear_cache()


def ask(path: str, token: str) -> list[dict[str, str]]:
    """The statements that one answer took."""
    client, headers = Client(), {"Authorization": f"Bearer {token}"}
    assert client.get(path, headers=headers).status_code in (200, 403, 404)  # some are not for one tenant
    live_counts.clear_cache()
    with CaptureQueriesContext(connection) as queries:
        client.get(path, headers=headers)
    return list(queries)


@pytest.mark.parametrize("path", GETS)
def test_a_get_takes_few_statements_and_no_walk(scene: Scene, path: str) -> None:
    for token in (scene.everywhere, scene.of_one):
        asked = ask(path.format_map(scene.values), token)
        assert len(asked) <= MOST_STATEMENTS, "\n".join(statement["sql"] for statement in asked)
        for statement in asked:
            walked = find_full_scans(statement["sql"])
            assert not walked, f"{statement['sql']}\n{walked}"


@pytest.mark.parametrize(
    "path", ["/api/jobs", "/api/job-runs", "/api/targets", "/api/job-templates", "/api/jobs?status=QUEUED"]
)
def test_a_page_far_down_is_like_the_first(scene: Scene, path: str) -> None:
    headers = {"Authorization": f"Bearer {scene.everywhere}"}
    first = ask(f"{path}{'&' if '?' in path else '?'}limit=50", scene.everywhere)
    cursor = Client().get(f"{path}{'&' if '?' in path else '?'}limit=500", headers=headers).json()["next_cursor"]
    assert cursor is not None
    later = ask(f"{path}{'&' if '?' in path else '?'}limit=50&cursor={cursor}", scene.everywhere)
    assert len(later) <= len(first)
    assert not any(find_full_scans(item["sql"]) for item in later)


@pytest.mark.parametrize("path", LISTS)
def test_a_longer_page_takes_no_more_statements_than_it_needs_to_measure_its_payload(scene: Scene, path: str) -> None:
    filled = path.format_map(scene.values)
    asked = {limit: ask(f"{filled}?limit={limit}", scene.everywhere) for limit in (1, 50, 500)}
    counts = {limit: len(statements) for limit, statements in asked.items()}
    assert counts[1] == counts[50] <= counts[500] <= counts[1] + 2, counts
    assert not any(find_full_scans(statement["sql"]) for statement in asked[500])


def test_the_guard_sees_a_walk(scene: Scene) -> None:
    with CaptureQueriesContext(connection) as queries:
        list(JobEvent.objects.order_by().filter(reason="none like it")[:1])
        list(JobLog.objects.filter(job_id=scene.values["job_id"]))
    assert [bool(find_full_scans(statement["sql"])) for statement in queries] == [True, False]
