"""The addresses of all pages of the console: screens, lists, forms, and a page of each row."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import Model
from django.urls import NoReverseMatch, reverse

from jobs.admin.screens import SCREENS
from tests.admin.test_pages import EDITED, SHOWN
from tests.support.admin_pages import get_list_url, get_page_url


def get_screen_path(name: str) -> str:
    return reverse(f"admin:jobscheduler_jobs_{name}")


def list_screen_paths() -> list[str]:
    """Return the screens that the navigation shows, and those that they lead to."""
    return [*(get_screen_path(item.name) for item in SCREENS.values() if item.listed), get_screen_path("diagnostics")]


def list_form_paths() -> list[str]:
    """Return the forms that create something."""
    paths = [f"{get_screen_path('enqueue')}?job_type=sample.add"]
    for model in EDITED:
        try:
            paths.append(reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_add"))
        except NoReverseMatch:
            continue
    return paths


def list_paths(rows: Iterable[Model]) -> list[str]:
    """Return every page of the console, with a page of each row."""
    return [*list_screen_paths(), *map(get_list_url, SHOWN), *list_form_paths(), *map(get_page_url, rows)]
