"""What a worker costs when there is nothing to do, and what it keeps after a hundred thousand jobs."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path
from typing import Any

from django.db import connection

from jobs.services import jobs as job_services
from tests.chaos.outages import cpu_seconds
from tests.chaos.report import SuiteReport
from tests.support.worker_processes import Fleet, wait_until_all_ended

DEFAULTS: dict[str, Any] = {"LIMITS": {"global": None}}
SETTLE_SEC = 5.0
BULK = 5000


def idle(server: Any, fleet: Fleet, chance: random.Random, *, seconds: float) -> SuiteReport:
    """With the settings as they come: less than 1 % of a processor, at most one query a second on PostgreSQL."""
    verdict = SuiteReport()
    worker = fleet.start("--concurrency=4", settings=DEFAULTS)
    time.sleep(SETTLE_SEC)  # its start is not its rest
    queries = start_counting(server)
    before = cpu_seconds(worker.pid)
    time.sleep(seconds)  # the time that is measured
    share = (cpu_seconds(worker.pid) - before) / seconds
    verdict.note(cpu=f"{share:.2%}")
    verdict.require(share < 0.01, f"{share:.2%} of a processor at rest")
    if server is not None:
        statements = stop_counting(server, queries)
        verdict.note(queries_a_second=len(statements) / seconds)
        counted = {item: statements.count(item) for item in set(statements)}
        peak = "; ".join(f"{n}× {item}" for item, n in sorted(counted.items(), key=lambda pair: -pair[1])[:12])
        verdict.require(len(statements) <= seconds, f"{len(statements)} queries in {seconds:g} s: {peak}")
    return verdict


def memory(fleet: Fleet, chance: random.Random, *, jobs: int) -> SuiteReport:
    """After the first tenth it must not grow any more."""
    verdict = SuiteReport()
    worker = fleet.start("--concurrency=8", settings=DEFAULTS)
    part = max(jobs // 10, 1)
    sizes = []
    began = time.monotonic()
    for _ in range(10):
        for start in range(0, part, BULK):
            job_services.enqueue_many(
                [{"job_type": "sample.add", "params": {"a": 1, "b": 2}}] * min(BULK, part - start)
            )
        wait_until_all_ended(60 + part / 20, fleet)
        sizes.append(resident_mib(worker.pid))
    growth = sizes[-1] / sizes[0] - 1
    verdict.note(jobs=jobs, seconds=time.monotonic() - began)
    verdict.note(first_mib=sizes[0], last_mib=sizes[-1], growth=f"{growth:.1%}")
    verdict.require(abs(growth) <= 0.05, f"resident memory went {', '.join(f'{size:.1f}' for size in sizes)} MiB")
    return verdict


def resident_mib(pid: int) -> float:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def start_counting(server: Any) -> int:
    """The server writes every statement down; we say nothing to it ourselves meanwhile."""
    if server is None:
        return 0
    with connection.cursor() as cursor:
        cursor.execute("ALTER SYSTEM SET log_statement = 'all'")
        cursor.execute("SELECT pg_reload_conf()")
    connection.close()
    time.sleep(1)  # until every session has read it
    return len(server.log.read_text())


def stop_counting(server: Any, start: int) -> list[str]:
    """What was asked, without the frames of transactions."""
    entries = re.split(r"^\d{4}-\d\d-\d\d \S+ \S+ \[\d+\] ", server.log.read_text()[start:], flags=re.MULTILINE)
    statements = [re.split(r"^LOG:  (?:statement|execute [^:]*): ", item) for item in entries]
    asked = [" ".join(item[1].split())[:90] for item in statements if len(item) == 2]
    return [statement for statement in asked if not statement.startswith(("BEGIN", "COMMIT", "ROLLBACK"))]
