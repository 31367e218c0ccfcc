"""Signals that report what happened to jobs and groups, after the commit.

They are sent by the process whose transaction made the transition, with `send_robust`: a receiver that raises is
logged and changes nothing. They carry ids and facts, no model. At most once: a crash between the commit and the
signal loses it, and changes made by raw SQL send none. Whoever must not miss an event subscribes a webhook or reads
the event table.

`sender` is the job type (None for `group_finished`). Keyword arguments:

- `job_enqueued`, after a job was inserted, retries included: job_id, job_type, tenant, status
- `job_started`, after a worker or a remote executor started it: job_id, job_type, tenant
- `job_finished`, after it ended COMPLETED, FAILED, SKIPPED or CANCELLED: job_id, job_type, tenant, status, reason,
  retried_by (the id of the automatic retry, or None)
- `job_failed`, after the `job_finished` of a FAILED job: the same
- `group_finished`, after a group ended: group_id, tenant, status, round
"""

from __future__ import annotations

from django.dispatch import Signal

job_enqueued = Signal()
job_started = Signal()
job_finished = Signal()
job_failed = Signal()
group_finished = Signal()

# Sent once for each commit that wrote job events, without arguments: for pollers of this process that can look at once.
events_committed = Signal()
