from __future__ import annotations

from contextlib import suppress

from django.apps import AppConfig
from django.conf import settings
from django.utils.module_loading import import_string
from django.utils.translation import gettext_lazy as _


class JobsConfig(AppConfig):
    name = "jobs"
    label = "jobscheduler_jobs"
    verbose_name = _("Job scheduler")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from jobs import checks, invariants, triggers  # noqa: F401  `checks` registers the system checks
        from jobs.registry import registry

        triggers.register_triggers(self, invariants.TRIGGERS)
        triggers.prepare_connections()
        registry.autodiscover()
        # Import our backend of `django.tasks` if the site uses it: it registers the job types of its tasks.
        for params in (getattr(settings, "TASKS", None) or {}).values():
            path = str(params.get("BACKEND", ""))
            if not path.startswith(("django.", "django_tasks.")):
                with suppress(ImportError):  # Django's own check reports it
                    import_string(path)
