"""A manager that queries the database the jobs are written to."""

from __future__ import annotations

from typing import Any

from django.db import models

from jobs import db


class RoutedManager(models.Manager[Any]):
    """Read and write where jobs are written: a replica that a router names for reads lags behind their state."""

    def get_queryset(self) -> Any:
        queryset = super().get_queryset()
        return queryset if self._db else queryset.using(db.alias())
