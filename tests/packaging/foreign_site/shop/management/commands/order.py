from django.core.management.base import BaseCommand

from jobs.models import Job
from shop.orders import place_order


class Command(BaseCommand):
    """Places an order; prints the id of the job that it makes."""

    def add_arguments(self, parser):
        parser.add_argument("number", type=int)

    def handle(self, number, **options):
        place_order(number)
        self.stdout.write(str(Job.objects.latest("created_at").pk))
