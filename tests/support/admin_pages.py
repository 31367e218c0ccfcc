"""Where the pages are, and what they said."""

from __future__ import annotations

from typing import Any

from django.contrib.messages import get_messages
from django.db.models import Model
from django.test import Client
from django.urls import reverse


def get_list_url(model: type[Model]) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")


def get_page_url(row: Model) -> str:
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])


def run_action(client: Client, action: str, rows: Any, **data: Any) -> Any:
    """Tick some rows in their list, choose an action for them, and agree to it."""
    rows = list(rows)
    post = {"confirmed": "1", "action": action, "_selected_action": [str(row.pk) for row in rows], "index": 0, **data}
    return client.post(get_list_url(type(rows[0])), post)


def read_messages(response: Any) -> str:
    return " ".join(str(message) for message in get_messages(response.wsgi_request))
