"""A worker process: `worker` has the loop, `turn` one turn of it, `claim_schedule` when to claim.

`recorder` records results, `running_jobs` has the jobs in the slots, `heartbeat` renews their leases and stops overdue
handlers, `progress_writer` writes their progress, `registration` is the worker's row.
"""

from jobs.engine.worker.worker import WorkerLoop, WorkerOptions

__all__ = ["WorkerLoop", "WorkerOptions"]
