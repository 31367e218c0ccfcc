"""Django's own tests of `django.tasks`, run with our backend: `python -m tests.packaging.django_tasks_suite`.

They come with the source distribution of Django, which is downloaded, and run in an environment of their own with the
built wheel. A test that fails must be one of `OF_DJANGO_S_OWN_BACKENDS`; the exit code is 1 if another fails. It takes
a minute or two and needs the package index and Python 3.12 or newer, so it is not part of `make test`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.packaging import host_site, matrix
from tests.packaging.processes import run

CHECKOUT = Path(__file__).resolve().parents[2]
CHANGES_MEMORY = "changes a result in the memory of Django's dummy backend; ours reads results from the database"
NO_RESULTS = "expects that the backend cannot return results; ours can"
OF_DJANGO_S_OWN_BACKENDS = {
    "test_dummy_backend.DummyBackendTestCase.test_clear": (
        "empties the memory of Django's dummy backend; our jobs are rows, which `prune` deletes"
    ),
    "test_dummy_backend.DummyBackendTestCase.test_refresh_result": CHANGES_MEMORY,
    "test_dummy_backend.DummyBackendTestCase.test_refresh_result_async": CHANGES_MEMORY,
    "test_tasks.TaskTestCase.test_refresh_result": CHANGES_MEMORY,
    "test_immediate_backend.ImmediateBackendTestCase.test_cannot_get_result": NO_RESULTS,
    "test_immediate_backend.ImmediateBackendTestCase.test_cannot_refresh_result": NO_RESULTS,
    "test_immediate_backend.ImmediateBackendTestCase.test_cannot_pass_run_after": (
        "expects that the backend cannot defer; ours can"
    ),
    "test_immediate_backend.ImmediateBackendTestCase.test_throws_keyboard_interrupt": (
        "expects that a KeyboardInterrupt of a task ends the calling process; "
        "in a worker it fails the task, and the worker goes on"
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--django", default="6.1", help="6.0, 6.1 or an exact version (default: %(default)s)")
    parser.add_argument("--python", choices=matrix.PYTHONS[1:], default=matrix.PYTHONS[1])
    options = parser.parse_args()
    interpreter = matrix.interpreter_of(options.python)
    if interpreter is None:
        parser.error(f"there is no python{options.python} here")
    version = options.django if options.django.count(".") > 1 else f"{options.django}.*"
    with tempfile.TemporaryDirectory(prefix="jobscheduler-django-tasks-") as home:
        outcomes = run_suite(interpreter, version, Path(home))
    return report(outcomes)


def run_suite(interpreter: str, version: str, home: Path) -> list[dict[str, str]]:
    """Return the outcome of each test: its name, "passed", "failed" or "skipped", and the problem."""
    run([interpreter, "-m", "venv", home / "venv"])
    python = home / "venv" / "bin" / "python"
    env = {name: value for name, value in os.environ.items() if not name.startswith(host_site.OURS)}
    download = ["download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", home / "sdist"]
    run([python, "-m", "pip", *download, f"django=={version}"], env=env)
    archive = next((home / "sdist").glob("*.tar.gz"))
    exact = archive.name.removesuffix(".tar.gz").replace("-", "==")
    with tarfile.open(archive) as packed:
        prefix = f"{packed.getnames()[0].partition('/')[0]}/tests/"
        members = [member for member in packed.getmembers() if member.name.startswith(f"{prefix}tasks/")]
        packed.extractall(home, members, filter="data")
    run([python, "-m", "pip", "install", "--quiet", exact, matrix.build(home)], env=env)
    script = CHECKOUT / "tests" / "packaging" / "django_tasks_backends.py"
    done = subprocess.run([python, script], cwd=home / prefix, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    print(f"{exact} on {Path(interpreter).resolve().name}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def report(outcomes: list[dict[str, str]]) -> int:
    problems = {item["test"].partition(".")[2]: item["problem"] for item in outcomes if item["outcome"] == "failed"}
    passed = sum(item["outcome"] == "passed" for item in outcomes)
    print(f"{passed} of {len(outcomes)} tests passed")
    for name, reason in OF_DJANGO_S_OWN_BACKENDS.items():
        print(f"  {name}: {reason if name in problems else 'passed: its exemption can go'}")
    unexpected = problems.keys() - OF_DJANGO_S_OWN_BACKENDS.keys()
    for name in sorted(unexpected):
        print(f"FAILED {name}\n{problems[name]}")
    return 1 if unexpected or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
