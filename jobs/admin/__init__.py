"""The console, on any AdminSite: `jobs.admin.register(site)`.

The models are registered on the default site unless JOBSCHEDULER["ADMIN_AUTOREGISTER"] is False.
"""

from __future__ import annotations

from collections.abc import Mapping

from django.contrib import admin
from django.db.models import Model

from jobs import models
from jobs.admin import job_forms, overview, queue, reports  # noqa: F401  screens
from jobs.admin.activity import ActivityAdmin
from jobs.admin.groups import JobGroupAdmin
from jobs.admin.history import JobEventAdmin, JobLogAdmin, JobMinuteAdmin, JobRunAdmin
from jobs.admin.job_templates import JobTemplateAdmin
from jobs.admin.jobs import JobAdmin
from jobs.admin.limits import ConcurrencyLimitAdmin, LeaseAdmin, SystemSnapshotAdmin
from jobs.admin.navigation import wrap_app_list
from jobs.admin.targets import TargetAdmin
from jobs.admin.tokens import ApiTokenAdmin
from jobs.admin.workers import PollerAdmin, WorkerAdmin
from jobs.conf import get_raw_settings, read_settings


class AdminRegistration:
    """Registers model admins on a site, except for models that the site has registered itself."""

    def __init__(self, admins: Mapping[type[Model], type[admin.ModelAdmin]]) -> None:
        self.admins = admins

    def __call__(self, site: admin.AdminSite) -> None:
        for model, model_admin in self.admins.items():
            if not site.is_registered(model):
                site.register(model, model_admin)
        wrap_app_list(site)

    def autoregister(self, site: admin.AdminSite) -> None:
        """Register unless JOBSCHEDULER["ADMIN_AUTOREGISTER"] is False."""
        settings, _problems = read_settings(get_raw_settings())  # the system checks report the problems
        if settings.ADMIN_AUTOREGISTER:
            self(site)


register = AdminRegistration(
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
        models.Activity: ActivityAdmin,
    }
)
register.autoregister(admin.site)
