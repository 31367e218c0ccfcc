"""Runs the benchmarks, shows rates and ratios, keeps them under bench/results/. Bars are said, never asserted."""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import time
from argparse import ArgumentParser, Namespace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.databases import databases, measure
from bench.measure import Rates
from bench.peers.venvs import VENVS
from bench.sizes import QUICK, SCALE

PARTS = {
    "enqueue": "bench.enqueue",
    "drain": "bench.drain",
    "latency": "bench.latency",
    "claim_cost": "bench.claim_cost",
    "worker_cost": "bench.worker_cost",
    "log_cost": "bench.log_cost",
    "trace": "bench.trace",
    "webhooks": "bench.webhooks",
    "api": "bench.api",
    "console": "bench.console",
    "peers": "bench.peers.comparison",
}
RESULTS = Path(__file__).parent / "results"


def main(words: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server and all workers end, too
    asked = _asked(words)
    os.environ[SCALE] = str(asked.scale)
    if asked.venvs is not None:
        os.environ[VENVS] = str(asked.venvs.resolve())
    if asked.scale != 1:
        print(f"Amounts are {asked.scale:g} of what the names of the measures say; the ratios are not the real ones.")
    reports = {}
    with databases() as urls:
        for part in asked.parts or PARTS:
            module = import_module(PARTS[part])
            chosen = [name for name in _databases(module) if asked.database in (None, name)]
            found = {name: measure(PARTS[part], urls[name], asked.rounds) for name in chosen}
            if found:
                reports[part] = _show(module, found)
    print(f"\nkept in {_keep(reports, asked.scale)}")
    return 0


def _asked(words: list[str]) -> Namespace:
    parser = ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"All, unless some are named: {', '.join(PARTS)}.")
    parser.add_argument("--rounds", type=int, help="How often each measure is taken.")
    parser.add_argument("--database", choices=["postgresql", "sqlite"], help="Only this one.")
    parser.add_argument("--scale", type=float, default=1.0, help="Shrinks every amount, e.g. 0.1 for a tenth.")
    parser.add_argument("--quick", action="store_true", help="Only to see that all parts work; no figure means much.")
    parser.add_argument("--venvs", type=Path, help="Where the peers are installed (default .bench-venvs).")
    asked = parser.parse_args(words)
    if unknown := set(asked.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    if asked.quick:
        asked.rounds, asked.scale = asked.rounds or 1, min(asked.scale, QUICK)
    return asked


def _databases(module: ModuleType) -> tuple[str, ...]:
    """A part that says nothing is measured on both."""
    return getattr(module, "DATABASES", ("postgresql", "sqlite"))


def _show(module: ModuleType, found: dict[str, Rates]) -> dict[str, Any]:
    bars = module.bars(found)
    print(f"\n{module.TITLE}\n\n{module.report(found)}\n", *bars, sep="\n", flush=True)
    return {"rates": found, "bars": [bar.as_json() for bar in bars]}


def _keep(reports: dict[str, Any], scale: float) -> Path:
    RESULTS.mkdir(exist_ok=True)
    kept = RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    said = {"machine": machine, "scale": scale, "parts": reports}
    kept.write_text(json.dumps(said, indent=1, ensure_ascii=False))
    return kept.relative_to(Path.cwd()) if kept.is_relative_to(Path.cwd()) else kept


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
