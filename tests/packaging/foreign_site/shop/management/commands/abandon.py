import json

from django.core.management.base import BaseCommand
from django.db import transaction

from jobs.models import Job
from shop.jobs import print_receipt
from shop.orders import place_order


class Command(BaseCommand):
    """Takes two orders back; prints how many jobs each has left: enqueued at once, and on commit."""

    def handle(self, **options):
        left = [self._left_by(lambda: print_receipt.enqueue(order=8)), self._left_by(lambda: place_order(9))]
        self.stdout.write(json.dumps(left))

    def _left_by(self, work):
        before = Job.objects.count()
        with transaction.atomic():
            work()
            transaction.set_rollback(True)
        return Job.objects.count() - before
