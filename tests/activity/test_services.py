"""Every change that Python code makes through the services is recorded once, in the transaction of the change."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import DatabaseError, connection, transaction

import tests.sample_app.job_types  # noqa: F401  the factories name these types
from jobs.actors import Actor, ActorKind, make_user_actor
from jobs.errors import JobSchedulerError
from jobs.models import Action, Activity, JobTemplate
from jobs.redaction import MASK
from jobs.services import activity, groups, limits, targets, templates, tokens, workers
from jobs.services import jobs as job_services
from schedules import services as schedules
from tests.factories import (
    ApiTokenFactory,
    JobTemplateFactory,
    ScheduleFactory,
    WebhookDeliveryFactory,
    WebhookEndpointFactory,
    WorkerFactory,
)
from tests.support.activities import record_new
from webhooks import services as webhooks

pytestmark = pytest.mark.django_db

ANN = Actor(ActorKind.USER, "ann", "17")
MEMBERS = [{"job_type": "sample.noop"}]


@dataclass(frozen=True)
class Change:
    """`prepare` returns the object; `run` changes it. `is_repeatable`: running it again is a change again."""

    action: Action
    prepare: Callable[[], Any]
    run: Callable[[Any, Actor], Any]
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    is_repeatable: bool = False

    def __str__(self) -> str:
        return self.action


def nothing() -> None:
    return None


def paused_limit() -> None:
    limits.pause("resource", "gpu")


def limit_of_three() -> None:
    limits.set_maximum("resource", "gpu", maximum=3)


def paused_target() -> None:
    targets.pause("book")


def quiet_worker() -> Any:
    worker = WorkerFactory.create()
    return workers.quiet(worker.pk)


def cancelled_group() -> Any:
    return groups.cancel(groups.create(MEMBERS).pk)


def disabled_schedule() -> Any:
    return schedules.disable(ScheduleFactory.create().pk)


def disabled_endpoint() -> Any:
    return webhooks.update(WebhookEndpointFactory.create().pk, {"enabled": False})


CHANGES = [
    Change(
        Action.LIMIT_SET,
        nothing,
        lambda _, actor: limits.set_maximum("resource", "gpu", maximum=3, actor=actor),
        {"max": None, "source": "settings"},
        {"max": 3, "source": "override"},
    ),
    Change(
        Action.LIMIT_RESET,
        limit_of_three,
        lambda _, actor: limits.reset("resource", "gpu", actor=actor),
        {"max": 3, "source": "override"},
        {"max": None, "source": "settings"},
    ),
    Change(
        Action.LIMIT_PAUSE,
        nothing,
        lambda _, actor: limits.pause("resource", "gpu", reason="heat", actor=actor),
        {"paused": False},
        {"paused": True},
    ),
    Change(
        Action.LIMIT_UNPAUSE,
        paused_limit,
        lambda _, actor: limits.unpause("resource", "gpu", actor=actor),
        {"paused": True},
        {"paused": False},
    ),
    Change(
        Action.TARGET_PAUSE,
        nothing,
        lambda _, actor: targets.pause("book", reason="heat", actor=actor),
        {"paused": False},
        {"paused": True},
    ),
    Change(
        Action.TARGET_UNPAUSE,
        paused_target,
        lambda _, actor: targets.unpause("book", actor=actor),
        {"paused": True},
        {"paused": False},
    ),
    Change(
        Action.WORKER_QUIET,
        WorkerFactory.create,
        lambda worker, actor: workers.quiet(worker.pk, actor=actor),
        {"request": ""},
        {"request": "QUIET"},
    ),
    Change(
        Action.WORKER_WAKE,
        quiet_worker,
        lambda worker, actor: workers.wake(worker.pk, actor=actor),
        {"request": "QUIET"},
        {"request": ""},
    ),
    Change(
        Action.WORKER_STOP,
        WorkerFactory.create,
        lambda worker, actor: workers.stop(worker.pk, actor=actor),
        {"request": ""},
        {"request": "STOPPING"},
    ),
    Change(
        Action.GROUP_CANCEL,
        lambda: groups.create(MEMBERS),
        lambda group, actor: groups.cancel(group.pk, actor=actor),
        {"status": "PENDING", "cancel_requested": False},
        {"status": "CANCELLED", "cancel_requested": True},
    ),
    Change(
        Action.GROUP_RETRY,
        cancelled_group,
        lambda group, actor: groups.retry(group.pk, actor=actor),
        {"status": "CANCELLED", "cancel_requested": True, "round": 1},
        {"status": "RUNNING", "cancel_requested": False, "round": 2},
    ),
    Change(
        Action.TEMPLATE_CREATE,
        nothing,
        lambda _, actor: templates.create({"name": "nightly", "job_type": "sample.noop"}, actor=actor),
        None,
        {"name": "nightly", "job_type": "sample.noop"},
    ),
    Change(
        Action.TEMPLATE_UPDATE,
        lambda: JobTemplateFactory.create(priority=50),
        lambda template, actor: templates.update(template.pk, {"priority": 75, "tags": []}, actor=actor),
        {"priority": 50},
        {"priority": 75},
    ),
    Change(
        Action.TEMPLATE_DELETE,
        lambda: JobTemplateFactory.create(name="old"),
        lambda template, actor: templates.delete(template.pk, actor=actor),
        {"name": "old", "job_type": "tests.note"},
        None,
    ),
    Change(
        Action.SCHEDULE_UPDATE,
        lambda: ScheduleFactory.create(cron="0 * * * *"),
        lambda schedule, actor: schedules.update(schedule.pk, {"cron": "1 * * * *"}, actor=actor),
        {"cron": "0 * * * *"},
        {"cron": "1 * * * *"},
    ),
    Change(
        Action.SCHEDULE_ENABLE,
        disabled_schedule,
        lambda schedule, actor: schedules.enable(schedule.pk, actor=actor),
        {"enabled": False},
        {"enabled": True},
    ),
    Change(
        Action.SCHEDULE_DISABLE,
        ScheduleFactory.create,
        lambda schedule, actor: schedules.disable(schedule.pk, reason="broken", actor=actor),
        {"enabled": True},
        {"enabled": False},
    ),
    Change(
        Action.ENDPOINT_UPDATE,
        lambda: WebhookEndpointFactory.create(url="https://example.org/a"),
        lambda endpoint, actor: webhooks.update(endpoint.pk, {"url": "https://example.org/b"}, actor=actor),
        {"url": "https://example.org/a"},
        {"url": "https://example.org/b"},
    ),
    Change(
        Action.ENDPOINT_ENABLE,
        disabled_endpoint,
        lambda endpoint, actor: webhooks.update(endpoint.pk, {"enabled": True}, actor=actor),
        {"enabled": False},
        {"enabled": True},
    ),
    Change(
        Action.ENDPOINT_DISABLE,
        WebhookEndpointFactory.create,
        lambda endpoint, actor: webhooks.update(endpoint.pk, {"enabled": False}, actor=actor),
        {"enabled": True},
        {"enabled": False},
    ),
    Change(
        Action.ENDPOINT_ROTATE_SECRET,
        WebhookEndpointFactory.create,
        lambda endpoint, actor: webhooks.rotate_secret(endpoint.pk, actor=actor),
        None,
        None,
        is_repeatable=True,
    ),
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_change_is_recorded_once_with_its_actor_and_the_fields_that_changed(change: Change) -> None:
    row = change.prepare()
    with record_new() as recorded:
        change.run(row, ANN)
    (found,) = recorded
    assert (found.action, found.object_kind) == (change.action, change.action.object_kind)
    assert (found.actor_kind, found.actor_id, found.actor_name) == ("user", "17", "ann")
    assert (found.before, found.after) == (change.before, change.after)
    if not change.is_repeatable:
        with record_new() as recorded, suppress(JobSchedulerError):  # some cannot be repeated
            change.run(row, ANN)
        assert recorded == [], "nothing changed"


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_change_that_is_rolled_back_leaves_no_activity(change: Change) -> None:
    row = change.prepare()
    with record_new() as recorded, transaction.atomic():
        change.run(row, ANN)
        transaction.set_rollback(True)
    assert recorded == []


def test_a_change_that_cannot_be_recorded_is_not_made() -> None:
    template = JobTemplateFactory.create(priority=50)
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE jobscheduler_activity RENAME TO hidden_activity")
        with pytest.raises(DatabaseError, match="jobscheduler_activity"):
            templates.update(template.pk, {"priority": 75})
        assert JobTemplate.objects.get().priority == 50
        transaction.set_rollback(True)


def test_schedules_are_recorded_from_their_creation_to_their_end() -> None:
    with record_new() as recorded:
        values = {"name": "nightly", "cron": "0 3 * * *", "job_type": "sample.noop"}
        schedule = schedules.create(values, tenant="acme", actor=ANN)
        due = schedule.next_fire_at
        schedules.skip_next(schedule.pk, reason="holiday", actor=ANN)
        job = schedules.trigger(schedule.pk, actor=ANN)
        schedules.delete(schedule.pk, actor=ANN)
    assert due is not None
    actions = ["create", "skip_next", "trigger", "delete"]
    assert [row.action for row in recorded] == [f"schedule.{name}" for name in actions]
    created, skipped, triggered, deleted = recorded
    assert {(row.tenant, row.object_id, row.object_name) for row in recorded} == {
        ("acme", str(schedule.pk), "nightly"),
    }
    assert created.after is not None
    assert created.after["cron"] == "0 3 * * *"
    assert (skipped.reason, skipped.before) == ("holiday", {"next_fire_at": due.isoformat().replace("+00:00", "Z")})
    assert triggered.after == {"job_id": str(job.pk)}
    assert deleted.before is not None
    assert deleted.before["enabled"] is True


def test_endpoints_are_recorded_and_their_secrets_are_not() -> None:
    with record_new() as recorded:
        endpoint, secret = webhooks.create("https://example.org/a", ["job.*"], tenant="acme", actor=ANN)
        _, rotated = webhooks.rotate_secret(endpoint.pk, actor=ANN)
        webhooks.send_test(endpoint.pk, actor=ANN)
        WebhookDeliveryFactory.create(endpoint=endpoint, failed=True)
        webhooks.resend_failed(endpoint.pk, actor=ANN)
        webhooks.delete(endpoint.pk, actor=ANN)
    actions = ["create", "rotate_secret", "test", "resend", "delete"]
    assert [row.action for row in recorded] == [f"endpoint.{name}" for name in actions]
    assert {(row.tenant, row.object_name) for row in recorded} == {("acme", str(endpoint))}
    stored = json.dumps(list(Activity.objects.values("before", "after", "reason", "object_name")))
    assert secret not in stored
    assert rotated not in stored


def test_resent_deliveries_are_recorded_for_each_endpoint() -> None:
    first, second = WebhookDeliveryFactory.create_batch(2, failed=True)
    with record_new() as recorded:
        webhooks.resend(first.pk, actor=ANN)
        webhooks.resend_many([first.pk, second.pk], actor=ANN)
    assert [row.action for row in recorded] == ["endpoint.resend"] * 3


def test_tokens_are_recorded_without_their_text() -> None:
    with record_new() as recorded:
        token, text = tokens.create("robot", tenant=None, scopes=["read"], lifetime=timedelta(days=1), actor=ANN)
        tokens.revoke(token.pk, reason="leaked", actor=ANN)
        tokens.revoke(token.pk, actor=ANN)
    created, revoked = recorded
    assert (created.action, revoked.action, revoked.reason) == ("token.create", "token.revoke", "leaked")
    assert (created.object_id, created.object_name, created.tenant) == (str(token.pk), "robot", None)
    assert created.after is not None
    assert created.after["scopes"] == ["read"]
    assert text not in json.dumps([created.after, revoked.before, revoked.after])


def test_secrets_are_masked_and_a_changed_secret_is_a_change() -> None:
    params = {"text": "a", "login": {"password": "hunter2"}}
    template = JobTemplateFactory.create(job_type="tests.anything", params=params)
    with record_new() as recorded:
        templates.update(template.pk, {"params": {**params, "login": {"password": "hunter3"}}}, actor=ANN)
    (row,) = recorded
    masked = {"params": {"text": "a", "login": {"password": MASK}}}
    assert (row.before, row.after) == (masked, masked)


def test_large_fields_are_left_out_and_marked() -> None:
    template = JobTemplateFactory.create(job_type="tests.anything", params={"text": "x" * 20_000}, priority=50)
    with record_new() as recorded:
        templates.update(template.pk, {"params": {"text": "y" * 30_000}, "priority": 75}, actor=ANN)
    (row,) = recorded
    assert row.after == {"params": {"truncated": True, "bytes": 30_024}, "priority": 75}
    assert len(json.dumps(row.before)) < activity.FIELDS_LIMIT


def test_several_fields_and_a_pause_in_one_request_are_two_activities() -> None:
    with record_new() as recorded:
        limits.put({"scope": "tenant", "key": "acme", "max": 5, "paused": True, "reason": "trial"}, actor=ANN)
    assert [(row.action, row.reason, row.tenant) for row in recorded] == [
        ("limit.set", "trial", "acme"),
        ("limit.pause", "trial", "acme"),
    ]
    assert {row.object_id for row in recorded} == {"tenant:acme"}
    with record_new() as recorded:
        limits.put({"scope": "tenant", "key": "acme", "paused": True, "reason": "longer"}, actor=ANN)
    assert [(row.action, row.before, row.after) for row in recorded] == [
        ("limit.pause", {"reason": "trial"}, {"reason": "longer"})
    ]


def test_a_call_without_an_actor_is_recorded_as_python() -> None:
    with record_new() as recorded:
        targets.pause("book")
    assert [(row.actor_kind, row.actor_name, row.actor_id) for row in recorded] == [("scheduler", "python", None)]


def test_the_actor_of_a_user_has_the_id_of_the_user() -> None:
    user = User.objects.create_user("ann")
    actor = make_user_actor(user)
    assert (actor.kind, actor.name, actor.id) == (ActorKind.USER, "ann", str(user.pk))
    assert actor == Actor(ActorKind.USER, "ann"), "events and comparisons know the name only"


def test_actions_on_jobs_and_use_of_tokens_are_no_activities() -> None:
    token = ApiTokenFactory.create()
    with record_new() as recorded:
        job = job_services.enqueue("sample.noop", actor=ANN)
        job_services.cancel(job.pk, actor=ANN)
        tokens.record_use(token)
    assert recorded == []
