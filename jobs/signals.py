"""Signals that report what happened to jobs and groups, after the commit.

They are sent by the process whose transaction made the transition, with `send_robust`: a receiver that raises is
logged and changes nothing. They carry ids and facts, no model. At most once: a crash between the commit and the
signal loses it, and changes made by raw SQL send none. Whoever must not miss an event subscribes a webhook or reads
the event table.

`sender` is the job type (of `group_finished`: None). Keyword arguments:

| signal           | sent when                                     | arguments                                              |
|------------------|-----------------------------------------------|--------------------------------------------------------|
| `job_enqueued`   | a job was inserted, retries included          | job_id, job_type, tenant, status                       |
| `job_started`    | a worker or a remote executor started it      | job_id, job_type, tenant                               |
| `job_finished`   | it ended as COMPLETED, FAILED, SKIPPED or CANCELLED | job_id, job_type, tenant, status, reason, retried_by |
| `job_failed`     | it ended as FAILED (after `job_finished`)     | the same                                               |
| `group_finished` | a group ended                                 | group_id, tenant, status, round                        |
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
