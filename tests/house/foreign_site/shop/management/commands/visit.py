from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand
from django.test import Client


class Command(BaseCommand):
    """Fetches pages as a superuser; prints one status and address per line."""

    def add_arguments(self, parser):
        parser.add_argument("paths", nargs="+")

    def handle(self, paths, **options):
        accounts = get_user_model().objects
        client = Client()
        client.force_login(accounts.first() or accounts.create_superuser("owner@example.com", "secret"))
        for path in paths:
            self.stdout.write(f"{client.get(path).status_code} {path}")
