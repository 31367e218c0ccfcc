"""Functions and files between the finish of one job and the start of the next: `python -m bench.trace`.

A worker with one slot runs no-op jobs on PostgreSQL, without limits, targets, groups and webhooks, under
`sys.setprofile`. It counts the functions of the product that are entered, in any thread, between the return of one
handler and the start of the next, in at least half of these intervals: occasional calls of a heartbeat do not count.
"""

from __future__ import annotations

import ast
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from statistics import median
from types import CodeType, FrameType
from typing import Any, NamedTuple

from bench.jobs import NOOP, noop
from bench.measure import Calibration, Ceiling, Rates, format_table
from bench.sizes import scale_size
from bench.workers import fill_queue

TITLE = "Trace: from the return of one no-op handler to the start of the next, one slot"
DATABASES = ("postgresql",)
JOBS = 400
CHECKOUT = Path(__file__).resolve().parent.parent
PRODUCT = ("jobs", "schedules", "webhooks", "jobscheduler")
ROOTS = tuple(f"{CHECKOUT / package}/" for package in PRODUCT)
PER_JOB = "entered for one job"  # a key of the figures; all others are functions
INNER = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")  # frames of their own before Python 3.12


class Function(NamedTuple):
    path: str
    line: int
    name: str

    @classmethod
    def from_code(cls, code: CodeType) -> Function:
        return cls(str(Path(code.co_filename).relative_to(CHECKOUT)), code.co_firstlineno, code.co_qualname)

    @classmethod
    def parse(cls, text: str) -> Function:
        path, line, name = text.split(":", 2)
        return cls(path, int(line), name)

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.name}"


class Recorder:
    """Record which functions of the product are entered between two runs of a handler."""

    def __init__(self, handler: CodeType) -> None:
        self.handler = handler
        self.intervals: list[dict[CodeType, None]] = []  # in order of first call
        self._entered: dict[CodeType, None] | None = None

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if event == "call":
            if code is self.handler:
                if self._entered is not None:
                    self.intervals.append(self._entered)
                self._entered = None
            elif self._entered is not None and is_counted(code):
                self._entered.setdefault(code)
        elif event == "return" and code is self.handler:
            self._entered = {}

    def functions(self) -> list[CodeType]:
        """Return the functions of at least half of the intervals, in their usual order; the first are warm-up."""
        steady = self.intervals[len(self.intervals) // 4 :]
        counts = Counter(code for interval in steady for code in interval)
        positions = {
            code: median(list(entered).index(code) for entered in steady if code in entered) for code in counts
        }
        return sorted((code for code in counts if counts[code] * 2 >= len(steady)), key=positions.__getitem__)


@cache
def is_counted(code: CodeType) -> bool:
    return code.co_filename.startswith(ROOTS) and code.co_name not in INNER


def measure(calibration: Calibration, rounds: int | None) -> Rates:
    """Return the number of lines of each function, in the order in which they are first entered."""
    from django.core.management import call_command

    jobs = scale_size(JOBS, minimum=100)
    fill_queue(NOOP, jobs)
    recorder = Recorder(get_noop_code())
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    try:
        call_command("worker", "--burst", concurrency="1", verbosity=0)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    if len(recorder.intervals) < jobs // 2:
        raise RuntimeError(f"only {len(recorder.intervals)} of {jobs} jobs were recorded")
    steady = recorder.intervals[len(recorder.intervals) // 4 :]
    rates: Rates = {PER_JOB: [float(len(entered)) for entered in steady]}
    for code in recorder.functions():
        function = Function.from_code(code)
        rates[str(function)] = [float(count_lines_by_start(CHECKOUT / function.path).get(function.line, 1))]
    return rates


def get_noop_code() -> CodeType:
    """Return the code of the handler itself, without the wrappers of `@job`."""
    handler: Any = noop
    while not hasattr(handler, "__code__"):
        handler = handler.func if hasattr(handler, "func") else handler.__wrapped__
    code: CodeType = handler.__code__
    return code


@cache
def count_lines_by_start(path: Path) -> dict[int, int]:
    """Return the length in lines of every function of a file, by its first line (a decorator's, if it has one)."""
    functions = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, FUNCTIONS))
    return {start: (node.end_lineno or start) - start + 1 for node in functions for start in [_first_line(node)]}


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def list_product_files() -> Iterator[Path]:
    for package in PRODUCT:
        yield from (path for path in (CHECKOUT / package).rglob("*.py") if "migrations" not in path.parts)


def report(results: Mapping[str, Rates]) -> str:
    rates = results["postgresql"]
    lines = {Function.parse(text): int(values[0]) for text, values in rates.items() if text != PER_JOB}
    rows = [(function.name, f"{function.path}:{function.line}", count) for function, count in lines.items()]
    longest = max(lines, key=lines.__getitem__)
    files = {function.path for function in lines}
    product = [len(path.read_text().splitlines()) for path in list_product_files()]
    per_job = rates[PER_JOB]
    return "\n".join(
        [
            format_table(("function", "location", "lines"), rows),
            "",
            f"{len(lines)} functions of {sum(lines.values())} lines in {len(files)} files",
            f"of single jobs: {min(per_job):g} to {max(per_job):g} functions, median {median(per_job):g}",
            f"longest function: {longest.name} in {longest.path}:{longest.line}, {lines[longest]} lines",
            f"the product: {sum(product):,} lines in {len(product)} files, without tests, migrations and catalogues",
        ]
    )


def bars(results: Mapping[str, Rates]) -> list[Ceiling]:
    functions = [Function.parse(text) for text in results["postgresql"] if text != PER_JOB]
    return [
        Ceiling("functions from one job's end to the next one's start", len(functions), 65),
        Ceiling("files that they are in", len({function.path for function in functions}), 16),
    ]


if __name__ == "__main__":
    from bench.__main__ import main

    sys.exit(main(["trace", *sys.argv[1:]]))
