"""Which ModelAdmin shows which model, applied to any AdminSite."""

from __future__ import annotations

from collections.abc import Mapping

from django.contrib.admin import AdminSite, ModelAdmin
from django.db.models import Model

from jobs.admin.console import list_first
from jobs.conf import configured, read


class Registration:
    """Called with a site, it registers all that the site has not registered itself."""

    def __init__(self, admins: Mapping[type[Model], type[ModelAdmin]]) -> None:
        self.admins = admins

    def __call__(self, site: AdminSite) -> None:
        for model, model_admin in self.admins.items():
            if not site.is_registered(model):
                site.register(model, model_admin)
        list_first(site)

    def by_itself(self, site: AdminSite) -> None:
        found, _problems = read(configured())  # what is wrong with the settings is for the system checks to say
        if found.ADMIN_AUTOREGISTER:
            self(site)
