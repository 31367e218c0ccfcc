"""Everybody does everything at once, and the trail of every job is still a story that could have happened."""

from __future__ import annotations

import os
import secrets
from collections import Counter
from typing import Any

import pytest

from tests.races.checker import find_answer_violations, find_violations
from tests.races.parallel import run_parallel
from tests.races.run_remaining import find_stuck_jobs, run_remaining_jobs

PROCESSES = 8


@pytest.fixture
def seed() -> str:
    """RACE_SEED repeats what each process tries; who wins is still the database's choice."""
    seed = os.environ.get("RACE_SEED") or secrets.token_hex(4)
    print(f"RACE_SEED={seed}")
    return seed


def test_random_verbs_of_eight_processes_take_only_legal_moves(process_env: dict[str, str], seed: str) -> None:
    crowd = run_parallel(process_env, "random_verbs", processes=PROCESSES, turns=350, seed=seed, sabotage=False)
    show(crowd["answers"])
    broken = [*find_answer_violations(crowd["answers"]), *find_violations()]
    assert not broken, format_violations(broken)
    run_remaining_jobs()
    broken = [*find_violations(), *find_stuck_jobs()]
    assert not broken, format_violations(broken)


def test_random_verbs_break_the_trail_once_a_move_has_no_guard(process_env: dict[str, str], seed: str) -> None:
    for attempt in range(3):  # nearly always the first shows it, but a collision cannot be forced
        crowd = run_parallel(
            process_env, "random_verbs", processes=PROCESSES, turns=120, seed=f"{seed}/{attempt}", sabotage=True
        )
        show(crowd["answers"])
        broken = [*find_answer_violations(crowd["answers"]), *find_violations()]
        if broken:
            break
    print(f"{len(broken)} violations, such as:", *broken[:3], sep="\n")
    assert broken


def format_violations(broken: list[str]) -> str:
    return "\n".join([f"{len(broken)} violations", *broken[:50]])


def show(answers: list[dict[str, Any]]) -> None:
    for part in ("calls", "refusals"):
        print(part, dict(sum((Counter(answer.get(part, {})) for answer in answers), Counter())))
