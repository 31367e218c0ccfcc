"""`manage.py groups`: the same services from a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jobs.models import GroupStatus, Job, JobGroup
from jobs.services import groups
from tests.support.commands import call
from tests.support.snapshots import dump_tables

pytestmark = pytest.mark.django_db

ITEM = {"job_type": "sample.noop"}


def write_file(folder: Path, document: Any) -> str:
    file = folder / "group.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return str(file)


def test_a_file_makes_a_group_whose_id_is_printed_alone(tmp_path: Path) -> None:
    result = call(
        "groups", "create", write_file(tmp_path, {"name": "book", "mode": "sequential", "jobs": [ITEM, ITEM]})
    )
    made = JobGroup.objects.get()
    assert (result.code, result.out.strip()) == (0, str(made.pk))
    assert (made.name, made.mode, made.jobs.count()) == ("book", "sequential", 2)
    assert {job.events.get(kind="SUBMITTED").actor_kind for job in Job.objects.all()} == {"cli"}


def test_groups_are_listed_and_shown_for_people_and_for_scripts() -> None:
    made = groups.create([ITEM, ITEM], name="book", mode="sequential")
    (listed,) = call("groups", "list", "--json").json
    assert (listed["id"], listed["progress"]) == (str(made.pk), {"total": 2, "by_status": {"PENDING": 1, "QUEUED": 1}})
    shown = call("groups", "show", str(made.pk), "--json").json
    assert [job["group_index"] for job in shown["jobs"]] == [0, 1]
    assert "2: 1 PENDING, 1 QUEUED" in call("groups", "list").out
    assert "sample.noop" in call("groups", "show", str(made.pk)).out
    assert call("groups", "list", "--json", "--status=COMPLETED").json == []
    assert call("groups", "list", "--json", "--tenant=acme").json == []


def test_a_group_is_cancelled_and_retried() -> None:
    made = groups.create([ITEM, ITEM])
    assert call("groups", "cancel", str(made.pk), "--reason=no need").code == 0
    assert JobGroup.objects.get().status == GroupStatus.CANCELLED
    assert call("groups", "cancel", str(made.pk)).code == 1
    assert call("groups", "retry", str(made.pk)).code == 0
    assert JobGroup.objects.get().status == GroupStatus.RUNNING


BAD: dict[str, Any] = {
    "no JSON": "{",
    "no object": [],
    "no jobs": {"mode": "parallel"},
    "an unknown field": {"jobs": [ITEM], "status": "COMPLETED"},
    "an unknown mode": {"jobs": [ITEM], "mode": "zigzag"},
    "a bad member": {"jobs": [{"job_type": "no.such"}]},
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_in_one_line_and_changes_nothing(case: str, tmp_path: Path) -> None:
    before = dump_tables()
    result = call("groups", "create", write_file(tmp_path, BAD[case]))
    assert result.code == 2
    assert len(result.err.strip().splitlines()) == 1
    assert dump_tables() == before


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("create", "/no/such/file"), 2),
        (("show", "nonsense"), 1),
        (("cancel", "01a1e326-2d3f-7874-ad8c-79793630013e"), 1),
        (("list", "--limit=0"), 2),
        (("list", "--status=HAPPY"), 2),
        (("list", "--tenant=a b"), 2),
    ],
)
def test_what_cannot_be_has_its_exit_code(arguments: tuple[str, ...], code: int) -> None:
    assert call("groups", *arguments).code == code


def test_a_file_may_name_a_final_job(tmp_path: Path) -> None:
    assert call("groups", "create", write_file(tmp_path, {"jobs": [ITEM, ITEM], "then": ITEM})).code == 0
    made = JobGroup.objects.get()
    assert (made.then_index, "2 (then)" in call("groups", "show", str(made.pk)).out) == (2, True)
    assert call("groups", "list", "--json").json[0]["then_index"] == 2
