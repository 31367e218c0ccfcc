"""Who keeps an ended job or group from being pruned: keepers that say so, and rows of other apps that refer to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any
from uuid import UUID

from django.db import models

from jobs import db

Keeper = Callable[[Sequence[UUID]], Iterable[UUID]]
Follower = Callable[[Sequence[UUID]], None]
_keepers: list[Keeper] = []
_followers: list[Follower] = []


def keep(keeper: Keeper) -> Keeper:
    """Register a keeper: it gets ids of jobs, or of groups, and says which of them must stay. Twice is once."""
    if keeper not in _keepers:
        _keepers.append(keeper)
    return keeper


def forget(keeper: Keeper) -> None:
    if keeper in _keepers:
        _keepers.remove(keeper)


def goes_along(follower: Follower) -> Follower:
    """Register what goes with jobs, or groups, that are deleted: it gets their ids in the same transaction."""
    if follower not in _followers:
        _followers.append(follower)
    return follower


def take_along(ids: Sequence[UUID]) -> None:
    for follower in _followers:
        follower(ids)


def kept_by_keepers(ids: Sequence[UUID]) -> set[UUID]:
    return set(chain.from_iterable(keeper(ids) for keeper in _keepers)) if ids else set()


def kept_by_others(model: type[models.Model], ids: Sequence[UUID]) -> set[UUID]:
    """Rows of other apps are theirs to delete, so what they refer to stays unless they let go of it."""
    kept: set[UUID] = set()
    for relation in _foreign(model):
        if relation.on_delete is not models.SET_NULL:
            kept.update(_referring(relation, ids).values_list(relation.field.attname, flat=True))
    return kept


def let_go(model: type[models.Model], ids: Sequence[UUID]) -> None:
    """What Django does for SET_NULL when it deletes row by row."""
    for relation in _foreign(model):
        if relation.on_delete is models.SET_NULL:
            _referring(relation, ids).update(**{relation.field.name: None})


def _foreign(model: type[models.Model]) -> Iterator[Any]:
    """Foreign keys of other apps to this model, those behind many-to-many fields too."""
    for field in model._meta.get_fields(include_hidden=True):
        is_reverse = field.auto_created and not field.concrete and (field.one_to_one or field.one_to_many)
        if is_reverse and field.related_model._meta.app_label != model._meta.app_label:  # type: ignore[union-attr]
            yield field


def _referring(relation: Any, ids: Sequence[UUID]) -> Any:
    return relation.related_model._base_manager.using(db.alias()).filter(**{f"{relation.field.name}__in": ids})
