"""Actors: the user, token, worker or program that an audit event names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class ActorKind(StrEnum):
    USER = "user"
    TOKEN = "token"
    WORKER = "worker"
    SCHEDULER = "scheduler"
    CLI = "cli"


@dataclass(frozen=True)
class Actor:
    kind: ActorKind
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", ActorKind(self.kind))
        object.__setattr__(self, "name", str(self.name).replace("\0", "\ufffd")[:200])


SCHEDULER = Actor(ActorKind.SCHEDULER)
PYTHON = Actor(ActorKind.SCHEDULER, "python")  # a call of a service without an actor


def make_user_actor(account: Any) -> Actor:
    """Return the actor for a Django user of any user model."""
    return Actor(ActorKind.USER, str(account.get_username())[:200])


def make_worker_actor(name: str) -> Actor:
    return Actor(ActorKind.WORKER, name[:200])


def make_cli_actor(name: str) -> Actor:
    return Actor(ActorKind.CLI, name[:200])
