from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _

import jobscheduler.unshadowed  # noqa: F401


class SchedulesConfig(AppConfig):
    name = "schedules"
    label = "jobscheduler_schedules"
    verbose_name = _("Schedules")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from jobs import notifications
        from jobs.services import maintenance
        from schedules import checks, declared, history, services  # noqa: F401  `checks` registers the system checks
        from schedules.ticker import ticker

        maintenance.register_task("schedules", ticker.tick, every_sec=ticker.pause_sec)
        maintenance.register_task("fires", history.delete_old_fires, every_sec=lambda: maintenance.PRUNE_PAUSE_SEC)
        notifications.on_notification(services.CHANGED, ticker.wake)
        post_migrate.connect(declared.sync_after_migrate, sender=self, dispatch_uid="jobscheduler_schedules.declared")

    def pass_time(self, begin: datetime, end: datetime) -> None:
        """Fire what falls due between two times; `jobs.testing` calls this."""
        from schedules.ticker import fire_between

        fire_between(begin, end)

    def collect_metrics(self, tenant: str | None) -> Iterator[Any]:
        """Yield the metrics of one tenant, or of all."""
        from schedules.metrics import collect

        return collect(tenant)

    def examine(self) -> Iterator[Any]:
        """Yield the findings of `manage.py doctor`."""
        from schedules.checks import examine

        return examine()
