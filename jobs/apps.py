from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class JobsConfig(AppConfig):
    name = "jobs"
    label = "jobscheduler_jobs"
    verbose_name = _("Job scheduler")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from jobs import checks  # noqa: F401  registers the system checks
        from jobs.registry import registry

        registry.autodiscover()
