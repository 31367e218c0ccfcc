import json

from django.core.management.base import BaseCommand

from jobs.services import jobs as job_services
from jobs.services import limits
from schedules.services import create


class Command(BaseCommand):
    """Many jobs that wait, and numbers that need a separator; prints the ids of one job and of a schedule."""

    def add_arguments(self, parser):
        parser.add_argument("count", type=int)

    def handle(self, count, **options):
        fields = {"job_type": "shop.receipt", "target": "press", "hold": True, "token_limit": 12_345}
        made = job_services.enqueue_many([{**fields, "params": {"order": 1000 + number}} for number in range(count)])
        limits.set_maximum("resource", "press", maximum=1_500)
        schedule = create({"name": "hourly", "job_type": "system.noop", "every_sec": 5_400, "misfire_grace_sec": 1_200})
        self.stdout.write(json.dumps({"job": str(made[0]), "schedule": str(schedule.pk)}))
