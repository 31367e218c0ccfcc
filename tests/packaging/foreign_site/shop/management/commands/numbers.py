import json

from django.core.management.base import BaseCommand

from jobs.models import ConcurrencyLimit, Job
from schedules.models import Schedule


class Command(BaseCommand):
    """The numbers that forms have been sent back with."""

    def add_arguments(self, parser):
        parser.add_argument("job_id")

    def handle(self, job_id, **options):
        job, limit, schedule = (
            Job.objects.get(pk=job_id),
            ConcurrencyLimit.objects.get(key="press"),
            Schedule.objects.get(),
        )
        fields = {"job": [job.priority, job.params["order"]], "limit": [limit.pk, limit.max]}
        self.stdout.write(json.dumps({**fields, "schedule": [schedule.every_sec, schedule.misfire_grace_sec]}))
