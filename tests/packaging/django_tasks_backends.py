"""Run Django's own tests of `django.tasks` with our backend where they name Django's: one line of JSON for each test.

Started by `tests.packaging.django_tasks_suite` in an environment with Django 6 and the wheel, in the directory that
holds the tests as the package `tasks`.
"""

from __future__ import annotations

import json
import sys
import unittest
from typing import Any

import django
import django.test
from django.conf import settings

LABEL = "tasks"


class Result(unittest.TestResult):
    """Prints what became of each test. One with failed subtests has failed."""

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        problems = [
            text for case, text in self.failures + self.errors if getattr(case, "test_case", case).id() == test.id()
        ]
        skipped = any(case.id() == test.id() for case, _ in self.skipped)
        outcome = "failed" if problems else "skipped" if skipped else "passed"
        print(json.dumps({"test": test.id(), "outcome": outcome, "problem": "\n".join(problems)}), flush=True)
        super().stopTest(test)


def put_ours_in_the_place_of_django_s() -> None:
    """A backend that keeps its results for the tests, and one that runs a task when it is enqueued."""
    from django.tasks.backends import dummy, immediate

    from jobs.contrib.tasks import JobsBackend
    from jobs.testing import drain

    class KeepingBackend(JobsBackend):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.results: list[Any] = []

        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            self.results.append(super().enqueue(task, args, kwargs))
            return self.results[-1]

        def clear(self) -> None:
            self.results.clear()

    class RunningBackend(JobsBackend):
        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            result = super().enqueue(task, args, kwargs)
            drain()
            return self.get_result(result.id)

    dummy.DummyBackend, immediate.ImmediateBackend = KeepingBackend, RunningBackend
    django.test.SimpleTestCase = django.test.TestCase  # a task of ours is a row


def main() -> None:
    settings.configure(
        SECRET_KEY="unused",
        USE_TZ=True,
        INSTALLED_APPS=[
            *("django.contrib.contenttypes", "django.contrib.auth"),
            *("jobs", "schedules", "webhooks", LABEL),
        ],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        JOBSCHEDULER={"RETRY_MAX_RETRIES": 0},
    )
    sys.path.insert(0, "")
    django.setup()
    put_ours_in_the_place_of_django_s()
    from django.test.runner import DiscoverRunner

    runner = DiscoverRunner(verbosity=0)
    suite = runner.build_suite([LABEL])
    for test in suite:
        type(test).available_apps = None  # ours are needed
    databases = runner.setup_databases()
    suite.run(Result())
    runner.teardown_databases(databases)


if __name__ == "__main__":
    main()
