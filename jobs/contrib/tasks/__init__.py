"""A backend for `django.tasks` (Django 6) and `django-tasks` (Django 5.2): functions with `@task` run as jobs.

TASKS = {"default": {"BACKEND": "jobs.contrib.tasks.JobsBackend", "QUEUES": []}}
"""

from __future__ import annotations

from jobs.contrib.tasks.backend import JobsBackend
from jobs.contrib.tasks.task import JobsContext, JobsTask, task

__all__ = ["JobsBackend", "JobsContext", "JobsTask", "task"]
