"""The system checks report a configuration in which the outbox would stay empty."""

from __future__ import annotations

from typing import Any

from webhooks.checks import check_one_database


class SplitRouter:
    """Route the webhooks to another database."""

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "elsewhere" if model._meta.app_label == "jobscheduler_webhooks" else None


def test_jobs_and_webhooks_in_two_databases_are_an_error(settings: Any) -> None:
    assert check_one_database() == []
    settings.DATABASE_ROUTERS = [SplitRouter()]
    [error] = check_one_database()
    assert (error.id, "'default'" in error.msg, "'elsewhere'" in error.msg) == ("webhooks.E001", True, True)
