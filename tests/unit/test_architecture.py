"""Only the lifecycle writes a job's status: every other module is read for a way around it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.status_writers import writes_of_status

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parent.parent.parent
ENGINE = ROOT / "jobs" / "engine"
WRITERS = {
    *(ENGINE / f"{name}.py" for name in ("transitions", "claim", "finish", "lifecycle", "groups", "insert")),
    *(ENGINE / "sql").glob("*.py"),
}
DEMO_HISTORY = ROOT / "jobs" / "demo" / "history.py"  # inserts jobs of the past week, ended; no transition leads there
PACKAGES = ("jobs", "schedules", "webhooks", "jobscheduler")
MODULES = sorted(
    path
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if path not in {*WRITERS, DEMO_HISTORY} and "migrations" not in path.parts
)


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_other_module_writes_the_status_of_a_job(module: Path) -> None:
    assert writes_of_status(module) == []


def test_the_history_of_the_demo_is_inserted_and_never_changed() -> None:
    (write,) = writes_of_status(DEMO_HISTORY)
    assert "Job.objects.bulk_create(" in write
    assert "update_conflicts" not in DEMO_HISTORY.read_text()


def test_the_scan_reads_the_whole_product() -> None:
    names = {str(path.relative_to(ROOT)) for path in MODULES}
    assert {
        "jobs/services/jobs.py",
        "jobs/engine/worker/worker.py",
        "jobs/models/job.py",
        "schedules/models.py",
    } <= names
    assert len(names) > 40


def test_the_scan_sees_the_writers_write() -> None:
    """The same eyes find the moves where they are made."""
    moves = writes_of_status(ENGINE / "transitions.py")
    assert any("update(status=target" in item for item in moves)
    for name in ("claim", "finish"):
        assert "UPDATE jobscheduler_job" in " ".join(writes_of_status(ENGINE / "sql" / f"{name}.py"))
    assert "INSERT INTO jobscheduler_job" in " ".join(writes_of_status(ENGINE / "sql" / "finish.py"))


VIOLATIONS = [
    "Job.objects.filter(pk=pk).update(status='QUEUED')",
    "jobs().filter(pk=pk).update(progress=1, status=Status.FAILED)",
    "queryset.update(status=status)",
    "queryset.update(**{'status': 'FAILED'})",
    "await Job.objects.aupdate(status='FAILED')",
    "Job.objects.update_or_create(pk=pk, status='FAILED')",
    "job.status = 'COMPLETED'",
    "self.job.status = Status.COMPLETED",
    "a, job.status = 1, 'COMPLETED'",
    "job.status: str = 'COMPLETED'",
    "setattr(job, 'status', 'COMPLETED')",
    "job.save()",
    "job.save(update_fields=['status'])",
    "Job(status='QUEUED').save()",
    "self.job.save()",
    "Job.objects.create(status='QUEUED')",
    "Job.objects.bulk_create([Job()])",
    "Job.objects.bulk_update(found, ['status'])",
    "cursor.execute(\"UPDATE jobscheduler_job SET status = 'QUEUED' WHERE id = %s\")",
    'cursor.execute(\'update "jobscheduler_job" set gate = 3, "status"=%s\')',
    "sql = f'''UPDATE jobscheduler_job j\n  SET progress = 1,\n {more}, status = g.status FROM given g'''",
    "sql = 'INSERT INTO jobscheduler_job (id) VALUES (1)'",
    "sql = 'INSERT OR REPLACE INTO jobscheduler_job (id) VALUES (1)'",
]
HARMLESS = [
    "JobRun.objects.filter(pk=pk).update(status='FAILED')",
    "delivery.status = 'DELIVERED'",
    "self.status = str(status)",
    "Job.objects.filter(status='QUEUED').update(progress=1)",
    "if job.status == 'QUEUED': pass",
    "values = {'status': 'QUEUED'}",
    "sql = \"UPDATE jobscheduler_job SET position = 1 WHERE status = 'QUEUED'\"",
    "sql = \"UPDATE jobscheduler_jobrun SET status = 'FAILED'\"",
    "sql = \"SELECT 1 FROM jobscheduler_job WHERE status = 'QUEUED'\"",
    "form.save()",
]


@pytest.mark.parametrize("line", VIOLATIONS)
def test_the_scan_catches_a_planted_violation(line: str, tmp_path: Path) -> None:
    assert len(_scan(line, tmp_path)) == 1


@pytest.mark.parametrize("line", HARMLESS)
def test_the_scan_lets_other_code_pass(line: str, tmp_path: Path) -> None:
    assert _scan(line, tmp_path) == []


def _scan(line: str, folder: Path) -> list[str]:
    planted = folder / "planted.py"
    body = "\n    ".join(["async def somewhere(job, queryset, cursor, status, pk):", line])
    planted.write_text(body + "\n")
    return writes_of_status(planted)
