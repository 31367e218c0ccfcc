"""Actors: the user, token, worker or program that an audit event names."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from uuid import UUID

NAME_LENGTH = 200


class ActorKind(StrEnum):
    USER = "user"
    TOKEN = "token"
    WORKER = "worker"
    SCHEDULER = "scheduler"
    CLI = "cli"


@dataclass(frozen=True)
class Actor:
    """`id` is that of a user or an API token, whose name may change; other actors have none."""

    kind: ActorKind
    name: str = ""
    id: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", ActorKind(self.kind))
        object.__setattr__(self, "name", str(self.name).replace("\0", "\ufffd")[:NAME_LENGTH])

    def __str__(self) -> str:
        return self.name or str(self.kind)


SCHEDULER = Actor(ActorKind.SCHEDULER)
PYTHON = Actor(ActorKind.SCHEDULER, "python")  # a call of a service without an actor


def make_user_actor(account: Any) -> Actor:
    """Return the actor for a Django user of any user model."""
    return Actor(ActorKind.USER, account.get_username(), str(account.pk))


def make_token_actor(name: str, prefix: str, token_id: UUID) -> Actor:
    """Return the actor for an API token. The prefix tells tokens apart that had the same name one after another."""
    suffix = f" ({prefix}…)"
    return Actor(ActorKind.TOKEN, name[: NAME_LENGTH - len(suffix)] + suffix, str(token_id))


def make_worker_actor(name: str) -> Actor:
    return Actor(ActorKind.WORKER, name)


def make_remote_worker_actor(token_name: str, worker_id: str) -> Actor:
    """Return the actor for a remote worker, which chooses its own id: after the name of its token."""
    return Actor(ActorKind.WORKER, f"{token_name[: NAME_LENGTH // 2]}/{worker_id}")


def make_cli_actor(name: str) -> Actor:
    return Actor(ActorKind.CLI, name)
