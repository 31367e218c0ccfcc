"""Policies of a site, as its settings name them."""

from __future__ import annotations

from jobs.policies.concurrency import Combined, GlobalLimit, PerTypeLimit
from jobs.policies.fairness import Aging, FairShare


def quick_aging() -> Aging:
    """From LOW to the top in a second and a half."""
    return Aging(step=25, every_sec=0.5)


def by_addon() -> FairShare:
    return FairShare(among="addon", weights={"heavy": 2})


def by_tenant() -> FairShare:
    return FairShare(among="tenant")


def one_of_each_type() -> Combined:
    return GlobalLimit() & PerTypeLimit(default=1)
