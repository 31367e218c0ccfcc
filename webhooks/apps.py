from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

import jobscheduler.unshadowed  # noqa: F401


class WebhooksConfig(AppConfig):
    name = "webhooks"
    label = "jobscheduler_webhooks"
    verbose_name = _("Webhooks")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from jobs import serializers, triggers
        from jobs.services import maintenance
        from webhooks import checks, outbox, retention, sender, services  # noqa: F401  `checks` registers a system check

        triggers.register_triggers(self, outbox.TRIGGERS)
        serializers.register_extra_field("webhooks", services.count_deliveries)
        maintenance.register_veto(retention.veto_deletion)
        maintenance.register_cascade(retention.delete_with)
        maintenance.register_task("webhooks", sender.send_due, thread=sender.Sender)
        maintenance.register_task("webhook tests", retention.delete_old_tests, every_sec=lambda: 3600.0)

    def collect_metrics(self, tenant: str | None) -> Iterator[Any]:
        """Yield the metrics of one tenant, or of all."""
        from webhooks.metrics import collect

        return collect(tenant)

    def examine(self) -> Iterator[Any]:
        """Yield the findings of `manage.py doctor`."""
        from webhooks.checks import examine

        return examine()
