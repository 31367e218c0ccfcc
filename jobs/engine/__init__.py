"""The life of a job, in the order of these files.

1. `job_spec` has the columns of a new job; `jobs.services.job_spec` validates and fills them.
2. `insert` writes the job, its event, and the mark on its target.
3. `promoter` makes the job ready when its time has come and it is the first of its target.
4. `selection/` chooses among ready jobs where limits, admission or fair shares decide.
5. `claim` gives the job to a slot of a worker, with a lease.
6. `executors/` run its handler, in a thread or in a process of its own.
7. `finish` records the result and creates the retry, if there is one.
8. `groups` releases the next member of its group, or closes the group.

Beside them: `lifecycle` has the actions of operators and of the scheduler, retries among them; `transitions` applies
one transition, `facts` gathers what decides whether an action is allowed, `ordering` moves waiting jobs. `worker/` is
the process that claims and runs jobs, `remote/` serves workers over HTTP, `slots/` has the leases of work without a
job, `maintenance/` the periodic tasks. `sql/` has the statements, one file per verb.
"""
