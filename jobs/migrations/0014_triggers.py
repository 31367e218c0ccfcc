"""The triggers' functions act with their owner's rights and search path: see `jobs.invariants`."""

from django.db import migrations

from jobs.migrations._operations import InstallTriggers


class Migration(migrations.Migration):
    dependencies = [("jobscheduler_jobs", "0013_ends_by_time")]
    operations = [InstallTriggers(remove_backwards=False)]  # 0003 and 0011 made them, and remove them
