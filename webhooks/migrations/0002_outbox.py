"""The triggers on job events and groups that fill the outbox: see `webhooks.outbox`."""

from django.db import migrations

from jobs.migrations._operations import InstallTriggers


class Migration(migrations.Migration):
    dependencies = [
        ("jobscheduler_jobs", "0002_invariants"),
        ("jobscheduler_webhooks", "0001_initial"),
    ]

    operations = [InstallTriggers()]
