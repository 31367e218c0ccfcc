from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class JobSchedulerSiteConfig(AppConfig):
    """Installed by the standalone site only; a host site includes `jobscheduler.urls` without it."""

    name = "jobscheduler"
    label = "jobscheduler_site"
    verbose_name = _("Job scheduler site")

    def ready(self) -> None:
        from jobscheduler import login, sessions  # noqa: F401  they connect their receivers
