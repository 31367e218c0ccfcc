"""A worker process, by question: what the loop does, when it claims, how results are recorded, what runs."""

from jobs.engine.worker.worker import Options, Worker

__all__ = ["Options", "Worker"]
