"""A row of every entity, valid by itself. The traits of JobFactory are the states of a job's life."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from django.utils import timezone
from factory import builder, post_generation
from factory.declarations import (
    LazyAttribute,
    LazyFunction,
    Maybe,
    RelatedFactory,
    SelfAttribute,
    Sequence,
    SubFactory,
    Trait,
)
from factory.django import DjangoModelFactory

from jobs import ids
from jobs.actors import ActorKind
from jobs.models import (
    Activity,
    ApiToken,
    ConcurrencyLimit,
    FailedAttempt,
    Gate,
    GroupAction,
    GroupMode,
    GroupVerb,
    Job,
    JobEvent,
    JobGroup,
    JobLog,
    JobMinute,
    JobRun,
    JobTag,
    JobTemplate,
    LaneMark,
    Lease,
    LeaseKind,
    LimitScope,
    Poller,
    ShareAccount,
    SystemSnapshot,
    Target,
    TokenSpend,
    Waiter,
    Worker,
)
from jobs.states import ACTIVE, TERMINAL, EventKind, Status
from schedules.models import Schedule, ScheduleFire
from webhooks import subscriptions
from webhooks.models import (
    WebhookAttempt,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookMessage,
    WebhookSubscription,
)

SAMPLE_TYPE = "tests.note"  # see `tests.sample_app.job_types`
HOLDS_ITS_LANE = (*ACTIVE, Status.PAUSED)

# For each trait that is off, the library raises an error and formats every declaration for its text.
builder.DeclarationSet.__repr__ = object.__repr__  # type: ignore[method-assign]


def _ago(**span: float) -> Any:
    return LazyFunction(lambda: timezone.now() - timedelta(**span))


def _ahead(**span: float) -> Any:
    return LazyFunction(lambda: timezone.now() + timedelta(**span))


class TargetFactory(DjangoModelFactory[Target]):
    class Meta:
        model = Target

    tenant = "default"
    key = Sequence(lambda n: f"book-{n}")
    id = LazyAttribute(lambda o: ids.derive_lane_id(o.tenant, o.key))


class LaneMarkFactory(DjangoModelFactory[LaneMark]):
    class Meta:
        model = LaneMark

    lane_id = LazyFunction(uuid4)


class JobTagFactory(DjangoModelFactory[JobTag]):
    class Meta:
        model = JobTag

    job = SubFactory("tests.factories.JobFactory")
    tag = Sequence(lambda n: f"tag {n}")


class TokenSpendFactory(DjangoModelFactory[TokenSpend]):
    class Meta:
        model = TokenSpend

    id = LazyFunction(uuid4)
    tenant, job_type, resource = "default", SAMPLE_TYPE, "default"
    reserved, taken = 0, 10


class WaiterFactory(DjangoModelFactory[Waiter]):
    class Meta:
        model = Waiter

    job_id = LazyFunction(uuid4)
    process = LazyFunction(uuid4)
    expires_at = LazyFunction(lambda: timezone.now() + timedelta(minutes=1))


class JobTemplateFactory(DjangoModelFactory[JobTemplate]):
    class Meta:
        model = JobTemplate

    name = Sequence(lambda n: f"template {n}")
    job_type = SAMPLE_TYPE


class JobGroupFactory(DjangoModelFactory[JobGroup]):
    class Meta:
        model = JobGroup

    name = Sequence(lambda n: f"group {n}")

    class Params:
        sequential = Trait(mode=GroupMode.SEQUENTIAL)


class GroupActionFactory(DjangoModelFactory[GroupAction]):
    class Meta:
        model = GroupAction

    group = SubFactory(JobGroupFactory)
    verb = GroupVerb.CANCEL
    actor_kind = str(ActorKind.SCHEDULER)


class JobRunFactory(DjangoModelFactory[JobRun]):
    """Open while its job lives, ended as its job ended."""

    class Meta:
        model = JobRun

    job = SubFactory("tests.factories.JobFactory", running=True, started=False)
    status = LazyAttribute(lambda o: o.job.status if o.job.status in TERMINAL else str(Status.RUNNING))
    started_at = LazyAttribute(lambda o: o.job.dispatched_at or timezone.now())
    finished_at = LazyAttribute(lambda o: None if o.status == Status.RUNNING else timezone.now())
    exit_code = LazyAttribute(lambda o: {"COMPLETED": 0, "SKIPPED": 0, "FAILED": 1}.get(o.status))
    error = LazyAttribute(lambda o: "boom" if o.status == Status.FAILED else "")
    worker = LazyAttribute(lambda o: o.job.lease_owner or "worker-1#0")


class JobFactory(DjangoModelFactory[Job]):
    """A QUEUED job, unless a trait says otherwise. `started` says whether it has a run."""

    class Meta:
        model = Job
        skip_postgeneration_save = True

    class Params:
        started = False
        pending = Trait(status=str(Status.PENDING), hold=True)
        queued = Trait(status=str(Status.QUEUED))
        dispatching = Trait(status=str(Status.DISPATCHING), reserved_until=_ahead(seconds=30))
        running = Trait(
            status=str(Status.RUNNING),
            started=True,
            lease_owner=Sequence(lambda n: f"worker-{n}@1#0"),
            lease_token=LazyFunction(uuid4),
            lease_expires_at=_ahead(seconds=30),
            heartbeat_at=LazyFunction(timezone.now),
        )
        paused = Trait(status=str(Status.PAUSED), started=True, status_reason="Job was interrupted by user")
        completed = Trait(status=str(Status.COMPLETED), started=True)
        failed = Trait(status=str(Status.FAILED), started=True, status_reason="boom")
        skipped = Trait(status=str(Status.SKIPPED), started=True, status_reason="nothing to do")
        cancelled = Trait(status=str(Status.CANCELLED), status_reason="not wanted")
        in_lane = Trait(target=Sequence(lambda n: f"lane-{n}"))
        in_group = Trait(group=SubFactory(JobGroupFactory), group_index=0)

    id = LazyFunction(ids.uuid7)
    job_type = SAMPLE_TYPE
    params = LazyFunction(lambda: {"text": "hello"})
    tenant = "default"
    target: Any = None
    resource = "default"
    addon_id = ""
    lane_id = LazyAttribute(lambda o: None if o.target is None else ids.derive_lane_id(o.tenant, o.target))
    flow_id = LazyAttribute(lambda o: ids.derive_flow_id(o.tenant, o.job_type, o.resource, o.addon_id))

    priority = 50
    base_priority = SelfAttribute("priority")
    position = Sequence(lambda n: n * 1024)
    created_at = LazyFunction(timezone.now)
    not_before: Any = None
    dispatched_at = LazyAttribute(
        lambda o: timezone.now() if o.started or o.status in ACTIVE else None  # kept for good once it is set
    )

    status = str(Status.QUEUED)
    gate = LazyAttribute(lambda o: _gate(o.status, o.not_before, o.lane_id))
    resolved_at: Any = None
    holds_lane = LazyAttribute(
        lambda o: (
            o.lane_id is not None
            and (o.status in HOLDS_ITS_LANE or (o.status == Status.FAILED and o.resolved_at is None))
        )
    )

    run = Maybe("started", yes_declaration=RelatedFactory(JobRunFactory, "job"))


def _gate(status: str, not_before: datetime | None, lane_id: UUID | None) -> Gate:
    if status != Status.QUEUED:
        return Gate.CLOSED
    if not_before is not None and not_before > timezone.now():
        return Gate.TIME
    return Gate.READY if lane_id is None else Gate.LANE


def job_in(status: Status, **fields: Any) -> Job:
    """A job in this state, as its trait makes it."""
    return JobFactory.create(**{status.lower(): True}, **fields)


class JobEventFactory(DjangoModelFactory[JobEvent]):
    class Meta:
        model = JobEvent

    job = SubFactory(JobFactory)
    kind = str(EventKind.SUBMITTED)
    to_status = str(Status.QUEUED)
    actor_kind = str(ActorKind.SCHEDULER)


class JobLogFactory(DjangoModelFactory[JobLog]):
    class Meta:
        model = JobLog

    job = SubFactory(JobFactory)
    message = Sequence(lambda n: f"line {n}")


class ConcurrencyLimitFactory(DjangoModelFactory[ConcurrencyLimit]):
    class Meta:
        model = ConcurrencyLimit

    scope = LimitScope.RESOURCE
    key = Sequence(lambda n: f"pool-{n}")
    max = 1


class LeaseFactory(DjangoModelFactory[Lease]):
    class Meta:
        model = Lease

    kind = LeaseKind.ADMISSION
    job_type = SAMPLE_TYPE
    flow_id = LazyAttribute(lambda o: ids.derive_flow_id("default", o.job_type, "default", ""))
    owner = Sequence(lambda n: f"addon-{n}")
    expires_at = _ahead(seconds=30)


class SystemSnapshotFactory(DjangoModelFactory[SystemSnapshot]):
    """There is only ever one."""

    class Meta:
        model = SystemSnapshot
        django_get_or_create = ("id",)

    id = SystemSnapshot.SINGLETON_ID


class ShareAccountFactory(DjangoModelFactory[ShareAccount]):
    class Meta:
        model = ShareAccount

    key = Sequence(lambda n: f"addon:{n}")


class FailedAttemptFactory(DjangoModelFactory[FailedAttempt]):
    class Meta:
        model = FailedAttempt

    key = Sequence(lambda n: f"{n:064x}")
    count = 1


class WorkerFactory(DjangoModelFactory[Worker]):
    class Meta:
        model = Worker

    name = Sequence(lambda n: f"worker-{n}")
    host = "host-1"
    pid = Sequence(lambda n: 1000 + n)


class PollerFactory(DjangoModelFactory[Poller]):
    class Meta:
        model = Poller

    addon_id = Sequence(lambda n: f"addon-{n}")
    polled_at = LazyFunction(timezone.now)


class JobMinuteFactory(DjangoModelFactory[JobMinute]):
    class Meta:
        model = JobMinute

    minute = LazyFunction(lambda: timezone.now().replace(second=0, microsecond=0))
    worker = Sequence(lambda n: f"worker-{n}")
    job_type = SAMPLE_TYPE
    outcome = str(Status.COMPLETED)
    wait_bucket = 0
    run_bucket = 0
    jobs = 1


class ActivityFactory(DjangoModelFactory[Activity]):
    class Meta:
        model = Activity

    tenant = "default"
    actor_kind = str(ActorKind.USER)
    actor_name = "ann"
    action = "target.pause"
    object_kind = "target"
    object_id = Sequence(lambda n: f"book-{n}")
    object_name = SelfAttribute("object_id")


class ApiTokenFactory(DjangoModelFactory[ApiToken]):
    class Meta:
        model = ApiToken

    name = Sequence(lambda n: f"token {n}")
    scopes = LazyFunction(lambda: ["read", "submit"])
    prefix = Sequence(lambda n: f"js_{n:06d}")
    digest = LazyAttribute(lambda o: hashlib.sha256(o.prefix.encode()).hexdigest())


class ScheduleFactory(DjangoModelFactory[Schedule]):
    class Meta:
        model = Schedule

    name = Sequence(lambda n: f"schedule {n}")
    cron = "0 * * * *"
    job_type = SAMPLE_TYPE
    params = LazyFunction(lambda: {"text": "hello"})


class ScheduleFireFactory(DjangoModelFactory[ScheduleFire]):
    class Meta:
        model = ScheduleFire

    schedule = SubFactory(ScheduleFactory)
    fire_time = _ago(minutes=1)


class WebhookEndpointFactory(DjangoModelFactory[WebhookEndpoint]):
    class Meta:
        model = WebhookEndpoint
        skip_postgeneration_save = True

    url = Sequence(lambda n: f"https://example.org/hook/{n}")
    events = LazyFunction(lambda: ["job.completed"])
    secret = b"encrypted"

    @post_generation
    def write_subscriptions(self, create: bool, extracted: Any, **kwargs: Any) -> None:
        subscriptions.write_subscriptions(self)


class WebhookSubscriptionFactory(DjangoModelFactory[WebhookSubscription]):
    """Of an event that its endpoint did not ask for."""

    class Meta:
        model = WebhookSubscription

    endpoint = SubFactory(WebhookEndpointFactory)
    tenant = "default"
    event = "job.skipped"


class WebhookMessageFactory(DjangoModelFactory[WebhookMessage]):
    class Meta:
        model = WebhookMessage

    tenant = "default"
    event = "job.completed"
    body = b"{}"
    fanned_out_at = LazyFunction(timezone.now)


class WebhookDeliveryFactory(DjangoModelFactory[WebhookDelivery]):
    class Meta:
        model = WebhookDelivery

    class Params:
        body = b"{}"
        failed = Trait(status="FAILED", next_try_at=None, attempts=4, response_status=500, error="answered 500")
        delivered = Trait(status="DELIVERED", next_try_at=None, attempts=1, response_status=200)

    endpoint = SubFactory(WebhookEndpointFactory)
    message = SubFactory(
        WebhookMessageFactory, **{name: SelfAttribute(f"..{name}") for name in ("event", "job_id", "group_id", "body")}
    )
    event = "job.completed"
    job_id = None
    group_id = None


class WebhookAttemptFactory(DjangoModelFactory[WebhookAttempt]):
    class Meta:
        model = WebhookAttempt

    delivery = SubFactory(WebhookDeliveryFactory)
    took_ms = 12
    response_status = 500
    response_head = "HTTP/1.1 500 Internal Server Error"
    response_body = "sorry"
    error = "answered 500"
