"""`manage.py runscheduler` as `make run` starts it: a supervisor with a web process and a worker."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.packaging.processes import left_over, mark_environment
from tests.support.worker_processes import LONG_LEASE_SETTINGS, MANAGE, Fleet, to_environ, wait_until


class Product(NamedTuple):
    process: subprocess.Popen[bytes]
    log_path: Path
    mark: str  # in the environment of all its processes

    @property
    def output(self) -> str:
        return self.log_path.read_text()

    @property
    def has_worker(self) -> bool:
        return re.search("worker .* started: ", self.output) is not None

    def kill(self) -> None:
        """Send SIGKILL to all processes, and wait for their end."""
        for line in left_over(self.mark):
            with suppress(ProcessLookupError):
                os.kill(int(line.partition(":")[0]), signal.SIGKILL)
        self.process.wait()
        wait_until(lambda: not left_over(self.mark), what="all processes end")


@contextmanager
def run_product(
    fleet: Fleet, *arguments: str, settings: dict[str, Any] = LONG_LEASE_SETTINGS, wait: bool = True
) -> Iterator[Product]:
    """Run `runscheduler`, or Python with these arguments; kill what is left at the end. Waits for a worker to start."""
    env, mark = mark_environment({**fleet.env, **to_environ(settings)})
    log_path = fleet.home / f"product-{mark}.log"
    with log_path.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, *(arguments or [str(MANAGE), "runscheduler", "--port=0"])],
            env=env,
            cwd=MANAGE.parent,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    product = Product(process, log_path, mark)
    try:
        if wait:
            wait_until(lambda: product.has_worker, what=lambda: product.output)
        yield product
    except BaseException:
        print(product.output)
        raise
    finally:
        product.kill()
