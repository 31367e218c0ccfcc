from django.core.management.base import BaseCommand


class Command(BaseCommand):
    """The site had a command of this name before."""

    def handle(self, **options):
        self.stdout.write("the shop's own")
