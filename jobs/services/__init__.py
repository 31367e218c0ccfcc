"""What other code may do: one module per noun. Job actions are also here: `jobs.services.cancel(job_id)`."""

from jobs.services.jobs import cancel, enqueue, enqueue_many, get, move, pause, release, resolve, resume, retry, update
