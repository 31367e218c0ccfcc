from django.core.management.base import BaseCommand

from shop.jobs import print_receipt


class Command(BaseCommand):
    def add_arguments(self, parser):
        parser.add_argument("number", type=int)

    def handle(self, number, **options):
        self.stdout.write(str(print_receipt.enqueue(order=number).pk))
