"""Run the benchmarks, print rates and ratios, write them to bench/results/. Bars are reported, never asserted."""

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

from bench.databases import measure_part, start_databases
from bench.measure import Rates
from bench.peers.venvs import VENVS
from bench.sizes import QUICK, SCALE

PARTS = {
    "enqueue": "bench.enqueue",
    "drain": "bench.drain",
    "latency": "bench.latency",
    "waiting": "bench.waiting",
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


def main(arguments: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit also stops the server and all workers
    options = _parse_options(arguments)
    os.environ[SCALE] = str(options.scale)
    if options.venvs is not None:
        os.environ[VENVS] = str(options.venvs.resolve())
    if options.scale != 1:
        print(f"Amounts are {options.scale:g} of those in the names of the measures; the ratios are not comparable.")
    reports = {}
    with start_databases() as urls:
        for part in options.parts or PARTS:
            module = import_module(PARTS[part])
            chosen = [name for name in _get_databases(module) if options.database in (None, name)]
            rates = {name: measure_part(PARTS[part], urls[name], options.rounds) for name in chosen}
            if rates:
                reports[part] = _print_report(module, rates)
    print(f"\nwritten to {_write_results(reports, options.scale)}")
    return 0


def _parse_options(arguments: list[str]) -> Namespace:
    parser = ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"Default: all. {', '.join(PARTS)}.")
    parser.add_argument("--rounds", type=int, help="Rounds of each measure.")
    parser.add_argument("--database", choices=["postgresql", "sqlite"], help="Only this database.")
    parser.add_argument("--scale", type=float, default=1.0, help="Shrinks every amount, e.g. 0.1 for a tenth.")
    parser.add_argument("--quick", action="store_true", help="Check that all parts work; the figures mean little.")
    parser.add_argument("--venvs", type=Path, help="Where the peers are installed (default .bench-venvs).")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown part: {', '.join(sorted(unknown))}")
    if options.quick:
        options.rounds, options.scale = options.rounds or 1, min(options.scale, QUICK)
    return options


def _get_databases(module: ModuleType) -> tuple[str, ...]:
    """Return the databases of a part: both, unless it names them."""
    return getattr(module, "DATABASES", ("postgresql", "sqlite"))


def _print_report(module: ModuleType, rates: dict[str, Rates]) -> dict[str, Any]:
    bars = module.bars(rates)
    print(f"\n{module.TITLE}\n\n{module.report(rates)}\n", *bars, sep="\n", flush=True)
    return {"rates": rates, "bars": [bar.as_json() for bar in bars]}


def _write_results(reports: dict[str, Any], scale: float) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    content = {"machine": machine, "scale": scale, "parts": reports}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False))
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
