import asyncio
import json

from django.core.management.base import BaseCommand

from shop import tasks

TASKS = {"coroutine": tasks.add_later, "failing": tasks.fail, "retried": tasks.fail}


class Command(BaseCommand):
    """What became of the tasks whose ids are given, as the standard's own result tells it."""

    def add_arguments(self, parser):
        parser.add_argument("ids", type=json.loads)

    def handle(self, ids, **options):
        read = {name: self._read(name, result_id) for name, result_id in ids.items()}
        self.stdout.write(json.dumps(read, default=str))

    def _read(self, name, result_id):
        task = TASKS.get(name, tasks.add)
        result = asyncio.run(task.aget_result(result_id)) if name == "awaited" else task.get_result(result_id)
        return {
            "status": result.status,
            "value": result.return_value if result.status == "SUCCESSFUL" else None,
            "attempts": result.attempts,
            "started_at": result.started_at,
            "run_after": result.task.run_after,
            "errors": [[error.exception_class.__name__, error.traceback] for error in result.errors],
            "standard": type(result).__module__,
        }
