import json

from django.core.management.base import BaseCommand

import jobs
from jobs.models import Job
from shop.models import Receipt


class Command(BaseCommand):
    """What became of a job, and where its code came from."""

    def add_arguments(self, parser):
        parser.add_argument("job_id")

    def handle(self, job_id, **options):
        found = Job.objects.get(pk=job_id)
        seen = {"status": found.status, "receipts": list(Receipt.objects.values_list("order", flat=True))}
        self.stdout.write(json.dumps({**seen, "code": jobs.__file__}))
