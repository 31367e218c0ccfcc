"""Counting stops at 10,000: a page of a huge list opens as fast as one of a small list."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from django.conf import settings
from django.core.paginator import Paginator
from django.db.models import QuerySet

CAP = 10_000


class CappedInt(int):
    """A count that was broken off; prints as "10000+"."""

    def __str__(self) -> str:
        # Django groups the digits of any int, and would take the plus for one of them ("100,00+").
        return int.__repr__(self) + ("" if settings.USE_THOUSAND_SEPARATOR else "+")


def capped_count(queryset: QuerySet[Any], cap: int = CAP) -> int:
    found = queryset.order_by().values("pk")[: cap + 1].count()
    return CappedInt(cap) if found > cap else found


class CappedPaginator(Paginator):
    cap = CAP

    @cached_property
    def count(self) -> int:
        return capped_count(self.object_list, self.cap)  # type: ignore[arg-type]
