"""The helpers for the suites of sites, where the queue has a database of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
SITE = "tests.contrib.two_databases"


def test_a_suite_with_two_databases_needs_no_more_than_one_with_one() -> None:
    suite = f"{SITE.replace('.', '/')}/suite.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--ds={SITE}.settings", suite]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=110, check=False)
    assert (done.returncode, "6 passed" in done.stdout) == (0, True), done.stdout + done.stderr
