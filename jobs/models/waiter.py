"""Processes that wait for the end of a job."""

from __future__ import annotations

from django.db import models

from jobs.models.routing import RoutedManager


class Waiter(models.Model):
    """A process that listens for the end of a job, on PostgreSQL: the end sends a notification only if there is a row.

    The process extends `expires_at` while it waits; the row of one that is gone is deleted after that.
    """

    job_id = models.UUIDField()  # no foreign key: it would be checked when the job's row is deleted
    process = models.UUIDField()
    expires_at = models.DateTimeField()

    objects = RoutedManager()

    class Meta:
        db_table = "jobscheduler_waiter"
        default_permissions = ()  # no page shows it
        constraints = [models.UniqueConstraint(fields=["job_id", "process"], name="waiter_of_job")]

    def __str__(self) -> str:
        return f"{self.process} for {self.job_id}"
