"""Real processes that do one thing at the same time: `python -m tests.races.parallel MODULE PLAN`.

One interpreter sets Django up and forks, so that a crowd costs one start, not twenty. A scenario is a module with
`act(index, plan, meeting)`, run by every process, and `stage(plan)`, run once before; both answer with plain JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import traceback
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
FORK = multiprocessing.get_context("fork")
PATIENCE_SEC = 100


@dataclass(frozen=True)
class SyncPoints:
    """Points at which the processes of a scenario wait for each other."""

    start: Any  # a barrier for all
    first_done: Any  # an event: the first process has done its part
    arrived: Any  # a semaphore: each of the others says that it is about to do its own


def run_parallel(
    environment: dict[str, str], scenario: str, *, patience_sec: float = PATIENCE_SEC, **plan: Any
) -> dict[str, Any]:
    """Run a scenario in parallel processes on the database of `environment`; return the setup and all answers."""
    command = [sys.executable, "-m", "tests.races.parallel", f"tests.races.{scenario}", json.dumps(plan)]
    crowd = subprocess.Popen(
        command, env=environment, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        answer, _ = crowd.communicate(timeout=patience_sec)
    except subprocess.TimeoutExpired:
        os.killpg(crowd.pid, signal.SIGKILL)
        crowd.communicate()
        raise
    assert crowd.returncode == 0, f"the processes ended with {crowd.returncode}"
    found: dict[str, Any] = json.loads(answer)
    return found


def main(scenario: str, text: str) -> None:
    import django
    from django.db import connections

    django.setup()
    module, plan = import_module(scenario), json.loads(text)
    staged = module.stage(plan)
    connections.close_all()  # a connection must not be shared across a fork
    answers = _run_processes(module, {**plan, **staged})
    json.dump({"staged": staged, "answers": answers}, sys.stdout)


def _run_processes(module: Any, plan: dict[str, Any]) -> list[Any]:
    size = plan["processes"]
    meeting = SyncPoints(FORK.Barrier(size), FORK.Event(), FORK.Semaphore(0))
    children = []
    for index in range(size):
        ours, theirs = FORK.Pipe(duplex=False)
        child = FORK.Process(target=_run_process, args=(module, index, plan, meeting, theirs), daemon=True)
        child.start()
        theirs.close()
        children.append((child, ours))
    answers = [_receive_answer(ours) for _, ours in children]
    for child, _ in children:
        child.join()
    return answers


def _run_process(module: Any, index: int, plan: dict[str, Any], meeting: SyncPoints, answer: Connection) -> None:
    try:
        answer.send(module.act(index, plan, meeting))
    except BaseException:
        answer.send({"crashed": traceback.format_exc()})
        meeting.start.abort()
        raise


def _receive_answer(ours: Connection) -> Any:
    try:
        return ours.recv()
    except EOFError:
        return {"crashed": "ended without a word"}


if __name__ == "__main__":
    main(*sys.argv[1:])
