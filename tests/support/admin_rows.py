"""A row of every entity that the admin shows."""

from __future__ import annotations

from django.db.models import Model

from tests import factories


def create_all_rows() -> list[Model]:
    """Create one row of each model, and a job in each status."""
    job = factories.JobFactory.create(failed=True, in_lane=True, in_group=True)
    schedule = factories.ScheduleFactory.create()
    endpoint = factories.WebhookEndpointFactory.create()
    delivery = factories.WebhookDeliveryFactory.create(endpoint=endpoint, job_id=job.pk, group_id=job.group_id)
    return [
        job,
        job.run,
        *(factories.JobFactory.create(**{trait: True}) for trait in TRAITS),
        factories.JobFactory.create(
            retry_of=job, attempt=2, schedule=schedule, template=factories.JobTemplateFactory()
        ),
        factories.JobEventFactory.create(job=job, data={"cause": "ERROR"}),
        factories.JobLogFactory.create(job=job),
        factories.JobTemplateFactory.create(),
        job.group,
        factories.TargetFactory.create(key=job.target),
        factories.ConcurrencyLimitFactory.create(),
        factories.LeaseFactory.create(),
        factories.SystemSnapshotFactory.create(),
        factories.WorkerFactory.create(serves={"resources": ["default"]}),
        factories.PollerFactory.create(),
        factories.JobMinuteFactory.create(),
        factories.ApiTokenFactory.create(),
        factories.ActivityFactory.create(),
        schedule,
        factories.ScheduleFactory.create(cron=None, every_sec=60),
        factories.ScheduleFactory.create(job_type="", template=factories.JobTemplateFactory.create()),
        factories.ScheduleFireFactory.create(schedule=schedule, job=job),
        endpoint,
        delivery,
        delivery.message,
        factories.WebhookSubscriptionFactory.create(),
        factories.WebhookAttemptFactory.create(delivery=delivery),
    ]


TRAITS = ("pending", "queued", "dispatching", "running", "paused", "completed", "skipped", "cancelled")
