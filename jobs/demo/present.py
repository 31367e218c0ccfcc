"""What the demo has before it: a job for each reason to wait, and some that any worker will run.

All of them are of types that every worker knows; their low priority lets a site's own jobs go first.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from jobs import clock, groups, limits, services, targets
from jobs.actors import Actor
from jobs.demo import TENANT

GPU, PLOTTER = "demo-gpu", "demo-plotter"


def arrange(actor: Actor) -> None:
    limits.set_maximum("resource", GPU, maximum=1, reason="demo: there is only one", actor=actor)
    limits.pause("resource", PLOTTER, reason="demo: out of paper", actor=actor)
    targets.pause("demo-book-3", tenant=TENANT, reason="demo: its author is on holiday", actor=actor)
    steps = [
        {"job_type": "system.sleep", "params": {"seconds": seconds}, "priority": "LOW", "tags": ["demo"]}
        for seconds in (10, 10, 5, 5)
    ]
    groups.create(steps, mode="sequential", name="demo: step by step", tenant=TENANT, actor=actor)
    for _ in range(3):
        _nap(actor, 20, resource=GPU)
    for chapter in range(3):
        _nap(actor, 15 + chapter, target="demo-book-1")
    for _ in range(4):
        _nap(actor, 12)
    _nap(actor, 5, resource=PLOTTER)
    _nap(actor, 5, target="demo-book-2")  # behind a failed one
    _nap(actor, 5, target="demo-book-3")
    _nap(actor, 5, not_before=clock.now() + timedelta(hours=18))
    _nap(actor, 5, hold=True)
    services.pause(_nap(actor, 30).pk, reason="demo: not now", actor=actor)
    services.cancel(_nap(actor, 30).pk, reason="demo: not wanted any more", actor=actor)
    mail = {"to": "reader@open.example"}
    services.enqueue("demo.mail", mail, tenant=TENANT, priority="LOW", tags=["demo"], actor=actor)  # nobody serves it


def _nap(actor: Actor, seconds: float, **fields: Any) -> Any:
    said = {"tenant": TENANT, "priority": "LOW", "tags": ["demo"], **fields}
    return services.enqueue("system.sleep", {"seconds": seconds}, actor=actor, **said)
