"""Which suites there are, on which databases, and how large their long and short forms are."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

DATABASES = ("sqlite", "postgres")
POSTGRES = ("postgres",)


@dataclass(frozen=True)
class Suite:
    """A function of a module here; it is imported after Django is set up."""

    module: str
    function: str = "run"
    databases: tuple[str, ...] = DATABASES
    with_server: bool = False
    must_break: bool = False  # a worker is made to go wrong here: the judges must notice
    long: dict[str, Any] | None = None
    small: dict[str, Any] | None = None

    def run(self, server: Any, home: Path, seed: str, short: bool) -> Any:
        from tests.support.worker_processes import Fleet, build_environment

        scenario: Callable[..., Any] = getattr(import_module(f"tests.chaos.{self.module}"), self.function)
        size = (self.small if short else self.long) or {}
        with Fleet(build_environment(), home) as fleet:
            arguments = (server, fleet) if self.with_server else (fleet,)
            return scenario(*arguments, random.Random(seed), **size)


SUITES: dict[str, Suite] = {
    "crowded": Suite(
        "many_workers", long={"jobs": 20_000, "lanes": 200, "longest_sec": 0.02}, small={"jobs": 400, "lanes": 20}
    ),
    "crowded-unlocked": Suite(
        "many_workers",
        databases=POSTGRES,
        must_break=True,
        long={"jobs": 2000, "lanes": 40, "longest_sec": 0.1, "sabotage": "skip_limit_locks"},
        small={"jobs": 300, "lanes": 40, "longest_sec": 0.1, "sabotage": "skip_limit_locks"},
    ),
    "crowded-backwards": Suite(
        "many_workers",
        must_break=True,
        long={"jobs": 500, "lanes": 10, "sabotage": "reverse_targets"},
        small={"jobs": 60, "lanes": 3, "sabotage": "reverse_targets"},
    ),
    "unique": Suite(
        "unique",
        long={"processes": 50, "share": 20, "keys": 20, "rounds": 3},
        small={"processes": 10, "share": 20, "keys": 10, "rounds": 1},
    ),
    "unique-unindexed": Suite(
        "unique",
        must_break=True,
        long={"processes": 50, "share": 20, "keys": 20, "rounds": 1, "indexes": False},
        small={"processes": 4, "share": 10, "keys": 5, "rounds": 1, "indexes": False},
    ),
    "isolation": Suite(
        "isolation",
        databases=POSTGRES,
        long={"jobs": 600, "direct": 60},
        small={"jobs": 60, "direct": 6, "ways": ["both"]},
    ),
    "isolation-unguarded": Suite(
        "isolation",
        "run_unguarded",
        databases=POSTGRES,
        must_break=True,
        long={"jobs": 300, "direct": 20},
        small={"jobs": 90, "direct": 6},
    ),
    "rates": Suite("rates", long={"seconds": 120.0}, small={"seconds": 15.0}),
    "rates-unlocked": Suite(
        "rates",
        databases=POSTGRES,
        must_break=True,
        long={"seconds": 30.0, "sabotage": "skip_limit_locks"},
        small={"seconds": 10.0, "sabotage": "skip_limit_locks"},
    ),
    "token-rates": Suite("rates", "run_tokens", long={"seconds": 120.0}, small={"seconds": 15.0}),
    "token-rates-unlimited": Suite(
        "rates", "run_tokens", long={"seconds": 120.0, "limited": False}, small={"seconds": 15.0, "limited": False}
    ),
    "token-rates-unlocked": Suite(
        "rates",
        "run_tokens",
        databases=POSTGRES,
        must_break=True,
        long={"seconds": 30.0, "sabotage": "skip_limit_locks"},
        small={"seconds": 10.0, "sabotage": "skip_limit_locks"},
    ),
    "host_locks": Suite("host_locks", long={"rounds": 1000}, small={"rounds": 20}),
    "host_locks-unordered": Suite(
        "host_locks",
        "run_unordered",
        databases=POSTGRES,
        must_break=True,
        long={"rounds": 60},
        small={"rounds": 12},
    ),
    "pairs": Suite("group_pairs", long={"groups": 2000}, small={"groups": 60}),
    "pairs-unlocked": Suite(
        "group_pairs",
        databases=POSTGRES,
        must_break=True,
        long={"groups": 60, "sabotage": "skip_group_locks", "slots": 1},
        small={"groups": 6, "sabotage": "skip_group_locks", "slots": 1},
    ),
    "finals": Suite("group_finals", long={"groups": 2000}, small={"groups": 30}),
    "finals-unlocked": Suite(
        "group_finals",
        databases=POSTGRES,
        must_break=True,
        long={"groups": 30, "sabotage": "skip_group_locks", "slots": 1},
        small={"groups": 4, "sabotage": "skip_group_locks", "slots": 1},
    ),
    "remote": Suite("remote", long={"jobs": 2000, "lanes": 40}, small={"jobs": 80, "lanes": 8}),
    "direct": Suite("direct", long={"rounds": 100}, small={"rounds": 4}),
    "direct-killed": Suite("direct", "run_killed", long={"rounds": 20}, small={"rounds": 1}),
    "capacity": Suite("capacity", long={"jobs": 2000}, small={"jobs": 60}),
    "capacity-unlocked": Suite(
        "capacity",
        databases=POSTGRES,
        must_break=True,
        long={"jobs": 300, "sabotage": "skip_load_lock"},
        small={"jobs": 180, "sabotage": "skip_load_lock"},
    ),
    "schedulers": Suite("schedulers", long={"schedules": 100, "minutes": 300}, small={"schedules": 20, "minutes": 40}),
    "schedulers-unguarded": Suite(
        "schedulers",
        must_break=True,
        long={"schedules": 30, "minutes": 60, "sabotage": True},
        small={"schedules": 10, "minutes": 15, "sabotage": True},
    ),
    "shutdowns": Suite("shutdowns", long={"rounds": 100}, small={"rounds": 5}),
    "lanes": Suite("lanes", long={"seconds": 15.0}, small={"seconds": 5.0}),
    "kills": Suite("kills", long={"jobs": 3000, "seconds": 120.0}, small={"jobs": 150, "seconds": 10.0}),
    "restarts": Suite("restarts", long={"kills": 20}, small={"kills": 3}),
    "recycling": Suite(  # in the long form, jobs take longer than a lease
        "recycling", long={"jobs": 400, "longest_sec": 25.0}, small={"jobs": 40, "longest_sec": 3.0}
    ),
    "idle": Suite("idle", "idle", with_server=True, long={"seconds": 60.0}, small={"seconds": 10.0}),
    "memory": Suite("idle", "memory", long={"jobs": 100_000}, small={"jobs": 2000}),
    "schema": Suite("schema", long={"seconds": 600}, small={"seconds": 40}),
    "outages": Suite(
        "outages",
        databases=POSTGRES,
        with_server=True,
        long={"crashes": 10, "down_sec": 5.0, "cuts": 20, "hangs": 3},
        small={"crashes": 2, "down_sec": 1.5, "cuts": 1, "hangs": 1},
    ),
    "commit_cuts": Suite("commit_cuts", databases=POSTGRES, long={"cuts": 2000}, small={"cuts": 40}),
    "commit_cuts-unrecovered": Suite(
        "commit_cuts",
        databases=POSTGRES,
        must_break=True,
        long={"cuts": 100, "back_sec": 15.0, "sabotage": "skip_claim_recovery"},
        small={"cuts": 40, "back_sec": 15.0, "sabotage": "skip_claim_recovery"},
    ),
    "webhooks": Suite("webhooks", long={"events": 5000, "floods": 200}, small={"events": 200, "floods": 20}),
    "neighbours": Suite(
        "neighbours",
        long={"seconds": 300.0, "calm_sec": 30.0},
        small={"seconds": 12.0, "calm_sec": 4.0, "members": 1000, "resources": 1000},
    ),
}
