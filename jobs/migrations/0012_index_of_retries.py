"""On PostgreSQL, only retries are in the index that keeps chains linear: to all other jobs it was a cost at every move."""

from django.db import migrations

from jobs.migrations._operations import VendorSQL

NAME = "jobscheduler_job_retry_of_id_key"
ONLY_RETRIES = [
    f"ALTER TABLE jobscheduler_job DROP CONSTRAINT {NAME}",
    f"CREATE UNIQUE INDEX {NAME} ON jobscheduler_job (retry_of_id) WHERE retry_of_id IS NOT NULL",
]
ALL = [
    f"DROP INDEX {NAME}",
    f"ALTER TABLE jobscheduler_job ADD CONSTRAINT {NAME} UNIQUE (retry_of_id)",
]


class Migration(migrations.Migration):
    dependencies = [("jobscheduler_jobs", "0011_quick_triggers")]
    operations = [VendorSQL(forwards={"postgresql": ONLY_RETRIES}, backwards={"postgresql": ALL})]
