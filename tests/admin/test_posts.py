"""Every URL of the console by POST, with every action: users without a permission to change change no row."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.db.models import Model
from django.test import Client
from django.urls import URLPattern, reverse

from jobs import roles
from jobs.states import Status
from tests.support.admin_rows import create_all_rows
from tests.support.admin_users import APP_LABELS, create_reader, log_in
from tests.support.snapshots import dump_tables

pytestmark = [pytest.mark.django_db, pytest.mark.once, pytest.mark.usefixtures("errors_logged_alone")]

TRIES = 588  # of the attack by hand that these tests repeat, with the requests of three users

# What the forms and actions ask for, all at once.
FIELDS = dict(
    pair.split("=", 1)
    for pair in (
        *("confirmed=1", "post=yes", "_save=1", "reason=attack", "name=mine", "tenant=default", "params={}"),
        *("job_type=sample.noop", "cron=@daily", "timezone=UTC", "overlap=skip", "catchup=0", "position=top"),
        *("scope=resource", "key=gpu", "max=7", "url=https://example.org/", "events=*", "scopes=read", "priority=75"),
    )
)
LOOKERS: dict[str, Callable[[], User]] = {
    "viewer": lambda: create_member("Job viewer"),
    "user with the permissions to view": lambda: create_reader("reader"),
    "staff without a permission": lambda: User.objects.create_user("staff", is_staff=True),
}


OUR_PATHS = tuple(f"{name}/" for name in (*APP_LABELS, "scheduler"))
OF_OTHER_ROWS = {"scheduler/template-run/<uuid:template_id>/": "jobscheduler_jobs/jobtemplate"}


class Post(NamedTuple):
    url: str
    fields: dict[str, Any]


def create_member(role: str) -> User:
    roles.create_roles()
    user = User.objects.create_user(role, is_staff=True)
    user.groups.add(Group.objects.get(name=role))
    return user


def list_patterns(patterns: Any, base: str = "") -> Iterator[str]:
    for pattern in patterns:
        path = f"{base}{pattern.pattern}"
        if isinstance(pattern, URLPattern):
            yield path
        else:
            yield from list_patterns(pattern.url_patterns, path)


def list_posts() -> list[Post]:
    """Create rows, and return a request for every URL and action."""
    rows: dict[str, list[Model]] = defaultdict(list)
    for row in create_all_rows():
        rows[f"{row._meta.app_label}/{row._meta.model_name}"].append(row)
    rows["jobscheduler_jobs/job"].sort(key=lambda job: job.status != Status.QUEUED)  # type: ignore[attr-defined]
    admins = {f"{model._meta.app_label}/{model._meta.model_name}": made for model, made in admin.site._registry.items()}
    root = reverse("admin:index")
    posts: list[Post] = []
    for path in list_patterns(admin.site.get_urls()):
        kind = "/".join(path.split("/")[:2])
        if not path.startswith(OUR_PATHS):
            continue
        keys = [str(row.pk) for row in rows[OF_OTHER_ROWS.get(path, kind)]]
        verbs = list(admins[kind].page_actions()) if "object_id>/verb" in path else ["pause", "resume"]
        urls = {fill(path, keys[0] if keys else "", verb) for verb in verbs}
        posts += [Post(root + url, FIELDS) for url in sorted(urls)]
        if path == f"{kind}/" and kind in admins:
            names = [*(action.__name__ for action in admins[kind].actions or ()), "delete_selected"]
            selected = {**FIELDS, "_selected_action": keys, "index": 0}
            posts += [Post(root + path, {**selected, "action": name}) for name in names]
    return posts


def fill(path: str, key: str, verb: str) -> str:
    return re.sub("<slug:verb>", verb, re.sub(r"<(path|uuid):\w+>", key, path))


@pytest.mark.parametrize("create_user", LOOKERS.values(), ids=LOOKERS)
def test_a_user_without_a_permission_to_change_changes_no_row(create_user: Callable[[], User]) -> None:
    client, posts = log_in(create_user()), list_posts()
    before = dump_tables()
    for post in posts:
        assert client.post(*post).status_code in (200, 301, 302, 403, 404, 405), post
    assert dump_tables() == before
    assert len(posts) * len(LOOKERS) >= TRIES


def test_without_its_csrf_token_a_request_of_a_superuser_is_refused() -> None:
    client, posts = Client(enforce_csrf_checks=True), list_posts()
    client.force_login(User.objects.create_superuser("boss"))
    before = dump_tables()
    assert {client.post(*post).status_code for post in posts} == {403}
    assert dump_tables() == before
    assert len(posts) * len(LOOKERS) >= TRIES


def test_with_it_these_requests_change_rows_of_every_kind_that_users_may_change() -> None:
    client, posts = log_in(User.objects.create_superuser("boss")), list_posts()
    before = dump_tables()
    assert len(posts) * len(LOOKERS) >= TRIES
    for post in posts:
        client.post(*post)
    changed = {name for name, rows in dump_tables().items() if rows != before[name]}
    assert changed >= {
        *("Job", "JobGroup", "JobTemplate", "ConcurrencyLimit", "Worker", "ApiToken", "Schedule"),
        *("WebhookEndpoint", "WebhookDelivery", "Activity", "JobEvent"),
    }
