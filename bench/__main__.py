"""Runs the benchmarks, shows rates and ratios, keeps them under bench/results/. Bars are said, never asserted."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from argparse import ArgumentParser, Namespace
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.databases import databases, measure
from bench.measure import Rates

PARTS = ("enqueue",)
RESULTS = Path(__file__).parent / "results"


def main(words: list[str]) -> int:
    asked = _asked(words)
    reports = {}
    with databases() as urls:
        chosen = {name: url for name, url in urls.items() if asked.database in (None, name)}
        for part in asked.parts or PARTS:
            found = {name: measure(part, url, asked.rounds) for name, url in chosen.items()}
            reports[part] = _show(part, found)
    print(f"\nkept in {_keep(reports)}")
    return 0


def _asked(words: list[str]) -> Namespace:
    parser = ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"All, unless some are named: {', '.join(PARTS)}.")
    parser.add_argument("--rounds", type=int, help="How often each measure is taken.")
    parser.add_argument("--database", choices=["postgresql", "sqlite"], help="Only this one.")
    asked = parser.parse_args(words)
    if unknown := set(asked.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    return asked


def _show(part: str, found: dict[str, Rates]) -> dict[str, Any]:
    module = import_module(f"bench.{part}")
    bars = module.bars(found)
    print(f"\n{module.TITLE}\n\n{module.report(found)}\n", *bars, sep="\n")
    return {"rates": found, "bars": [bar.as_json() for bar in bars]}


def _keep(reports: dict[str, Any]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    kept = RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    kept.write_text(json.dumps({"machine": machine, "parts": reports}, indent=1, ensure_ascii=False))
    return kept.relative_to(Path.cwd()) if kept.is_relative_to(Path.cwd()) else kept


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
