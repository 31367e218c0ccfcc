"""The task backend: an enqueued task becomes a job, and the job's retry chain is read as its result."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.utils import timezone

from jobs import signals
from jobs.contrib.tasks import handlers
from jobs.contrib.tasks.compat import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    normalize_json,
    task_enqueued,
)
from jobs.contrib.tasks.task import JOB_FIELDS, JobsTask, dump_call_fields
from jobs.errors import InvalidInput

signals.job_finished.connect(handlers.send_task_finished, dispatch_uid="jobs.contrib.tasks")


class JobsBackend(BaseTaskBackend):
    """The backend for TASKS. OPTIONS are defaults, for all its tasks, of the fields of `JobsTask`."""

    task_class = JobsTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def validate_task(self, task: Task[..., Any]) -> None:
        """Validate a task and register its job type; Django calls this for every task that is declared."""
        super().validate_task(task)
        handlers.register_task(task)

    def enqueue(self, task: Task[..., Any], args: Any, kwargs: Any) -> TaskResult[Any]:
        from jobs.contrib.tasks import results
        from jobs.services.jobs import submit

        self.validate_task(task)
        job_type = handlers.register_task(task)
        try:
            params = self._build_params(task, job_type, args, kwargs)
            task_fields = {name: getattr(task, name, None) for name in JOB_FIELDS}
            fields = {"resource": task.queue_name, **self.options}
            fields |= {name: value for name, value in task_fields.items() if value is not None}
            run_after = task.run_after
            if run_after is not None and not settings.USE_TZ:
                run_after = timezone.make_aware(run_after)
            fields |= {"priority": 50 + task.priority // 2, "not_before": run_after}
            submitted = submit({"job_type": job_type, "params": params, **fields})
        except InvalidInput as error:
            raise InvalidTask(str(error)) from error
        result = results.build_new_result(submitted.job)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult[Any]:
        from jobs.contrib.tasks import results

        try:
            chain = results.load_chain(UUID(str(result_id)))
            if chain:
                return results.build_result(chain)
        except (ValueError, LookupError) as error:
            raise TaskResultDoesNotExist(result_id) from error
        raise TaskResultDoesNotExist(result_id)

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        if not apps.is_installed("jobs"):
            message = f"TASKS[{self.alias!r}] needs the app “jobs”, which is not installed."
            yield checks.Error(message, hint='Add "jobs" to INSTALLED_APPS.', id="jobs.E010")
        for name in sorted(self.options.keys() - set(JOB_FIELDS)):
            message = f"TASKS[{self.alias!r}]: OPTIONS has the unknown key {name!r}."
            yield checks.Error(message, hint=f"Allowed: {', '.join(JOB_FIELDS)}.", id="jobs.E011")

    def _build_params(self, task: Task[..., Any], job_type: str, args: Any, kwargs: Any) -> dict[str, Any]:
        call_fields = {**dump_call_fields(task), "backend": self.alias}
        params = {**normalize_json({"args": args, "kwargs": kwargs}), "task": call_fields}
        if job_type != handlers.GENERIC_JOB_TYPE:
            return params
        return {"path": task.module_path, "signature": handlers.sign_path(task.module_path), **params}
