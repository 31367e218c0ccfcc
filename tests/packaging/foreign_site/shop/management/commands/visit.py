from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.core.management.base import BaseCommand
from django.test import Client


class Command(BaseCommand):
    """Fetches pages as a superuser, or as a member of a group; prints one status and address per line."""

    def add_arguments(self, parser):
        parser.add_argument("paths", nargs="+")
        parser.add_argument("--group")

    def handle(self, paths, group, **options):
        client = Client()
        client.force_login(self._member(group) if group else self._owner())
        for path in paths:
            self.stdout.write(f"{client.get(path).status_code} {path}")

    def _owner(self):
        accounts = get_user_model().objects
        return accounts.filter(is_superuser=True).first() or accounts.create_superuser("owner@example.com", "secret")

    def _member(self, group):
        member = get_user_model().objects.create(email=f"{group}@example.com".replace(" ", "."), is_staff=True)
        member.groups.add(Group.objects.get(name=group))
        return member
