"""When a worker ends so that its supervisor starts a fresh one: after so many jobs, or with so much memory."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

MIB = 1024 * 1024


@dataclass
class Recycling:
    """Counts claimed jobs and compares the memory of this process. Without either limit a worker has no `Recycling`.

    A worker that is to be recycled claims nothing more and lets its running jobs finish. Memory counts after the first
    job only: a limit below what the process needs to start would end it before it did any work.
    """

    max_jobs: int | None = None
    max_rss_mib: int | None = None
    claimed: int = 0
    reason: str = ""  # why the worker is to be recycled; empty: it is not

    def limit_claims(self, free_slots: int) -> int:
        """Return how many of the free slots may be filled."""
        if self.reason:
            return 0
        return free_slots if self.max_jobs is None else min(free_slots, self.max_jobs - self.claimed)

    def record_claims(self, count: int) -> None:
        self.claimed += count
        if self.max_jobs is not None and self.claimed >= self.max_jobs:
            self.reason = f"{self.claimed} jobs claimed (--max-jobs {self.max_jobs})"

    def check_limits(self) -> bool:
        """Compare the resident memory of this process with its limit; return whether the worker is to be recycled."""
        if self.max_rss_mib is not None and not self.reason and self.claimed:
            rss_mib = psutil.Process().memory_info().rss // MIB
            if rss_mib > self.max_rss_mib:
                self.reason = f"{rss_mib} MiB of memory in use (--max-rss {self.max_rss_mib})"
        return bool(self.reason)
