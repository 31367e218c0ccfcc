"""The console, on any AdminSite: `jobs.admin.register(site)`.

The default site is registered by itself unless JOBSCHEDULER["ADMIN_AUTOREGISTER"] is False.
"""

from __future__ import annotations

from django.contrib import admin

from jobs import models
from jobs.admin import cloning, dashboard, editing, queue  # noqa: F401  screens
from jobs.admin.groups import JobGroupAdmin
from jobs.admin.job import JobAdmin
from jobs.admin.limits import ConcurrencyLimitAdmin, LeaseAdmin, TargetAdmin
from jobs.admin.pollers import PollerAdmin
from jobs.admin.registration import Registration
from jobs.admin.system import SystemSnapshotAdmin
from jobs.admin.templates import JobTemplateAdmin
from jobs.admin.tokens import ApiTokenAdmin
from jobs.admin.trail import JobEventAdmin, JobLogAdmin, JobRunAdmin
from jobs.admin.workers import JobMinuteAdmin, WorkerAdmin

register = Registration(
    {
        models.Job: JobAdmin,
        models.JobRun: JobRunAdmin,
        models.JobEvent: JobEventAdmin,
        models.JobLog: JobLogAdmin,
        models.JobGroup: JobGroupAdmin,
        models.JobTemplate: JobTemplateAdmin,
        models.Target: TargetAdmin,
        models.ConcurrencyLimit: ConcurrencyLimitAdmin,
        models.Lease: LeaseAdmin,
        models.SystemSnapshot: SystemSnapshotAdmin,
        models.Worker: WorkerAdmin,
        models.Poller: PollerAdmin,
        models.JobMinute: JobMinuteAdmin,
        models.ApiToken: ApiTokenAdmin,
    }
)
register.by_itself(admin.site)
