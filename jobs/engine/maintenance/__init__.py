"""Periodic work that keeps the queue moving: recovery, deadlines, aging, retention, compaction, system load.

`runner` registers the tasks and runs them: in a worker, by `manage.py tick`, and before offers to remote workers.
"""
