"""Users of the admin, by what they may do."""

from __future__ import annotations

from django.contrib.auth.models import Permission, User
from django.test import Client

APP_LABELS = ("jobscheduler_jobs", "jobscheduler_schedules", "jobscheduler_webhooks")


def create_reader(name: str, *also: str) -> User:
    """Create a user who may view all models of ours and has the permissions of `also`."""
    user = User.objects.create_user(name, is_staff=True)
    ours = Permission.objects.filter(content_type__app_label__in=APP_LABELS)
    named = ours.filter(codename__startswith="view_").exclude(codename="view_payload")
    user.user_permissions.set([*named, *ours.filter(codename__in=also)])
    return user


def log_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client
