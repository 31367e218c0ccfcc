"""The backend: a task that is enqueued becomes a job, and a chain of jobs is read as its result."""

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
from jobs.contrib.tasks.task import EXTRAS, JobsTask
from jobs.errors import InvalidInput

signals.job_finished.connect(handlers.send_task_finished, dispatch_uid="jobs.contrib.tasks")


class JobsBackend(BaseTaskBackend):
    """OPTIONS may say, for all its tasks, what a `JobsTask` may say for one."""

    task_class = JobsTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def validate_task(self, task: Task[..., Any]) -> None:
        """Called for every task as it is declared, which is how a worker learns of them."""
        super().validate_task(task)
        handlers.job_type(task)

    def enqueue(self, task: Task[..., Any], args: Any, kwargs: Any) -> TaskResult[Any]:
        from jobs.contrib.tasks import results
        from jobs.services.jobs import submit

        self.validate_task(task)
        job_type = handlers.job_type(task)
        try:
            params = self._params(task, job_type, args, kwargs)
            said = {name: getattr(task, name, None) for name in EXTRAS}
            fields = {"resource": task.queue_name, **self.options}
            fields |= {name: value for name, value in said.items() if value is not None}
            moment = task.run_after
            if moment is not None and not settings.USE_TZ:
                moment = timezone.make_aware(moment)
            submitted = submit(
                {
                    "job_type": job_type,
                    "params": params,
                    **fields,
                    "priority": 50 + task.priority // 2,
                    "not_before": moment,
                }
            )
        except InvalidInput as error:
            raise InvalidTask(str(error)) from error
        result = results.of_new(submitted.job)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult[Any]:
        from jobs.contrib.tasks import results

        try:
            chain = results.chain_of(UUID(str(result_id)))
            if chain:
                return results.of(chain)
        except (ValueError, LookupError) as error:
            raise TaskResultDoesNotExist(result_id) from error
        raise TaskResultDoesNotExist(result_id)

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        if not apps.is_installed("jobs"):
            hint = 'Add "jobs" to INSTALLED_APPS.'
            yield checks.Error(f"TASKS[{self.alias!r}] runs tasks as jobs, without the app.", hint=hint, id="jobs.E010")
        for name in sorted(self.options.keys() - set(EXTRAS)):
            hint = f"It knows {', '.join(EXTRAS)}."
            yield checks.Error(f"TASKS[{self.alias!r}]: OPTIONS has no {name!r}.", hint=hint, id="jobs.E011")

    def _params(self, task: Task[..., Any], job_type: str, args: Any, kwargs: Any) -> dict[str, Any]:
        said = {"priority": task.priority, "queue_name": task.queue_name, "backend": self.alias}
        params = {**normalize_json({"args": args, "kwargs": kwargs}), "task": said}
        if job_type != handlers.ANYWHERE:
            return params
        return {"path": task.module_path, "signature": handlers.signature(task.module_path), **params}
