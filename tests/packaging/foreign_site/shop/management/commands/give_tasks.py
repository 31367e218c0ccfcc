import asyncio
import json
from datetime import timedelta

from django.core.management.base import BaseCommand
from django.utils import timezone

from shop import tasks


class Command(BaseCommand):
    """Enqueues a task for each word of the standard; prints their ids. The one that is deferred is due in so many
    seconds."""

    def add_arguments(self, parser):
        parser.add_argument("defer_sec", type=float)

    def handle(self, defer_sec, **options):
        later = timezone.now() + timedelta(seconds=defer_sec)
        given = {
            "low": tasks.add.using(priority=-50).enqueue(0, 1),
            "plain": tasks.add.enqueue(40, b=2),
            "high": tasks.add.using(priority=50).enqueue(0, 1),
            "deferred": tasks.add.using(run_after=later).enqueue(1, 1),
            "coroutine": tasks.add_later.enqueue(3, 4),
            "awaited": asyncio.run(tasks.add.aenqueue(5, 5)),
            "failing": tasks.fail.enqueue(9),
            "retried": tasks.fail.enqueue(1),
        }
        self.stdout.write(json.dumps({name: result.id for name, result in given.items()}))
