"""Import of the schedules of django-q2: all its types, each once, and what cannot come says why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any

import pytest
from django.core import mail
from django.test import override_settings
from django.utils.timezone import now
from django_q.conf import Conf
from django_q.models import Schedule as Theirs
from django_q.tasks import schedule

from jobs.registry import registry
from jobs.testing import drain
from schedules import services as schedules
from schedules.models import Schedule
from schedules.triggers import build_trigger, due_times_from
from tests.contrib.test_system_types import register_types
from tests.packaging.doc_examples import DOCS
from tests.sample_app import job_types
from tests.support.commands import call
from tests.support.snapshots import dump_tables

pytestmark = pytest.mark.django_db

FUNC = f"{job_types.__name__}.{job_types.note.__qualname__}"
BERLIN = "Europe/Berlin"
NEXT = datetime(2027, 1, 14, 2, 37, tzinfo=UTC)  # 03:37 in Berlin, a Thursday


@pytest.fixture(autouse=True)
def _in_berlin(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.Q_CLUSTER = {**settings.Q_CLUSTER, "time_zone": BERLIN}
    monkeypatch.setattr(Conf, "TIME_ZONE", BERLIN)


def theirs(**columns: Any) -> Theirs:
    """Past its own `save`, which wants croniter for crons."""
    row = Theirs(**{"name": "report", "func": FUNC, "kwargs": "text='x'", "next_run": NEXT, **columns})
    return Theirs.objects.bulk_create([row])[0]


def ours() -> Schedule:
    return Schedule.objects.get()


TYPES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("O", {}, {"run_at": NEXT}),
    ("I", {"minutes": 15}, {"every_sec": 900, "anchor_at": NEXT}),
    ("I", {"minutes": None}, {"every_sec": 60, "anchor_at": NEXT}),
    ("H", {}, {"cron": "37 * * * *", "timezone": BERLIN}),
    ("D", {}, {"cron": "37 3 * * *", "timezone": BERLIN}),
    ("W", {}, {"cron": "37 3 * * 4", "timezone": BERLIN}),
    ("BW", {}, {"every_sec": 1_209_600, "anchor_at": NEXT}),
    ("M", {}, {"cron": "37 3 14 * *", "timezone": BERLIN}),
    ("BM", {}, {"cron": "37 3 14 1,3,5,7,9,11 *", "timezone": BERLIN}),
    ("Q", {}, {"cron": "37 3 14 1,4,7,10 *", "timezone": BERLIN}),
    ("Y", {}, {"cron": "37 3 14 1 *", "timezone": BERLIN}),
    ("C", {"cron": "30 4 * * 1-5", "next_run": None}, {"cron": "30 4 * * 1-5", "timezone": BERLIN}),
]


def test_these_are_all_the_types_there_are() -> None:
    assert {kind for kind, _, _ in TYPES} == {kind for kind, _ in Theirs.TYPE}


@pytest.mark.parametrize(("kind", "columns", "expected"), TYPES)
def test_each_type_becomes_its_rule(kind: str, columns: dict[str, Any], expected: dict[str, Any]) -> None:
    source = theirs(schedule_type=kind, **columns)
    assert call("import_django_q").code == 0
    row = ours()
    assert {name: getattr(row, name) for name in expected} == expected
    assert (row.source, row.name, row.job_type, row.params) == (
        f"q2:{source.pk}",
        "report",
        "tests.note",
        {"text": "x"},
    )
    assert (row.enabled, row.max_fires, row.catch_up) == (True, None, "latest" if kind == "C" else "all")


@pytest.mark.parametrize("kind", ["I", "D", "W", "M", "BM", "Q", "Y"])
def test_it_fires_when_django_q2_would_have(kind: str) -> None:
    source = theirs(schedule_type=kind, minutes=90)
    call("import_django_q")
    expected, at = [], NEXT
    for _ in range(40):
        expected.append(at)
        at = source.calculate_next_run(at)
    assert list(islice(due_times_from(build_trigger(ours()), NEXT), 40)) == expected


def test_every_two_weeks_keeps_its_real_distance_and_says_so() -> None:
    theirs(schedule_type="BW")
    result = call("import_django_q")
    assert "counted in real time" in result.out
    times = list(islice(due_times_from(build_trigger(ours()), NEXT), 20))
    assert {b - a for a, b in pairwise(times)} == {timedelta(days=14)}


@pytest.mark.parametrize(
    ("args", "kwargs", "params"),
    [
        ("'x'", None, {"text": "x"}),
        ("'x', 3", None, {"text": "x", "times": 3}),
        ("('x', 3)", None, {"text": "x", "times": 3}),
        ("", "{'text': 'x', 'times': 2}", {"text": "x", "times": 2}),
        (None, "text='x', times=2", {"text": "x", "times": 2}),
        ("'x'", "times=2", {"text": "x", "times": 2}),
        ("'x'", "q_options={'timeout': 5}", {"text": "x"}),
        ("'x'", "{'q_options': {'group': 'g'}, 'times': 2}", {"text": "x", "times": 2}),
    ],
)
def test_arguments_become_params_by_name(args: str | None, kwargs: str | None, params: dict[str, Any]) -> None:
    theirs(schedule_type="D", args=args, kwargs=kwargs)
    result = call("import_django_q")
    assert (result.code, ours().params) == (0, params)
    assert ("q_options are not imported" in result.out) == ("q_options" in (kwargs or ""))


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"func": "shop.tasks.gone"}, "is no job type: put @job on it, or on a function that calls it"),
        ({"func": "os.system"}, "is no job type"),
        ({"args": "1 +"}, "its arguments cannot be read"),
        ({"args": "open('/etc/passwd')"}, "its arguments cannot be read"),
        ({"args": "'x', 2, 3"}, "more arguments than the function has"),
        ({"args": "'x'", "kwargs": "text='y'"}, "passes “text” twice"),
        ({"kwargs": "text="}, "its keyword arguments cannot be read"),
        ({"kwargs": "*x"}, "its keyword arguments cannot be read"),
        ({"kwargs": "['text']"}, "its keyword arguments cannot be read"),
        ({"kwargs": "__import__('os').abort()"}, "its keyword arguments cannot be read"),
        ({"kwargs": "(" * 5000}, "cannot be read"),
        ({"kwargs": "text=5"}, "params"),
        ({"kwargs": "text=b'x'"}, "params"),
        ({"kwargs": None}, "params.text"),
        ({"schedule_type": "C", "cron": "0 0 31 2 *"}, "never comes due"),
        ({"schedule_type": "C", "cron": None}, "cron"),
        ({"schedule_type": "O", "next_run": datetime(2020, 1, 1, tzinfo=UTC)}, "has passed"),
        ({"schedule_type": "D", "next_run": None}, "it has no next run"),
        ({"schedule_type": "X"}, "its type “X” is unknown"),
    ],
)
def test_what_cannot_come_says_why_and_stops_no_other(columns: dict[str, Any], why: str) -> None:
    theirs(**{"schedule_type": "D", "name": "bad", **columns})
    good = theirs(name="good", schedule_type="H")
    result = call("import_django_q", "--disable-source")
    assert (result.code, why in result.out) == (1, True), result.out
    assert "1 schedule was not imported." in result.err
    assert ours().name == "good"
    assert list(Theirs.objects.exclude(repeats=0).exclude(pk=good.pk).values_list("pk")) != []


def create_documented(kind: str) -> Theirs:
    """Return a schedule as django-q2's documentation makes it, by its own function."""
    if kind == "command":
        return schedule("django.core.management.call_command", "sample_talk", word="tide", schedule_type="H")
    mail = ("Follow up", "Hello", "shop@example.com", ["ada@example.com"])
    return schedule("django.core.mail.send_mail", *mail, schedule_type="O", next_run=now() + timedelta(days=14))


@contextmanager
def allow_commands(*allowed: str) -> Iterator[None]:
    with override_settings(JOBSCHEDULER={"SYSTEM_JOB_TYPES": True, "COMMAND_ALLOW": allowed}), register_types():
        yield


def test_a_scheduled_command_becomes_a_system_command_where_it_is_allowed() -> None:
    create_documented("command")
    for system_types, allowed in ((False, ["sample_talk"]), (True, ["check"])):
        with override_settings(JOBSCHEDULER={"SYSTEM_JOB_TYPES": system_types, "COMMAND_ALLOW": allowed}):
            result = call("import_django_q", "--dry-run")
            assert "it runs the command “sample_talk”: set SYSTEM_JOB_TYPES and add it to COMMAND_ALLOW" in result.out
            assert (result.code, call("import_django_q").code) == (1, 1)
    assert not Schedule.objects.exists()
    with allow_commands("sample_talk"):
        (line,) = call("import_django_q", "--dry-run", "--json").json
        assert (line["result"], line["job_type"]) == ("would be made", "system.command")
        assert call("import_django_q").code == 0
        schedules.trigger(ours().pk)
        (ran,) = drain()
    assert (ran.status, ran.run.artifacts["result"]["output"]) == ("COMPLETED", "said tide\nsaid it again")


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ("'migrate', 'jobs', ['zero', 1]", None, ["jobs", "zero", "1"]),
        ("'migrate'", "interactive=False, verbosity=0", ["--no-input", "--verbosity=0"]),
        ("'migrate'", "no_input=False, fake=True, interactive=True", ["--no-input", "--fake"]),
        ("'migrate'", "fake=False, database='queue', verbosity=1", ["--database=queue"]),
        ("'migrate'", "stdout=None", "its option “stdout” cannot be written on a command line"),
        ("'migrate'", "fake='no'", "its option “fake” cannot be written on a command line"),
        ("'migrate'", "settings='evil'", "must not change the settings"),
        ("'gone'", None, "there is no command “gone”"),
        ("7", None, "it names no command"),
        (None, "command_name='migrate'", "it names no command"),
    ],
)
def test_the_options_of_a_scheduled_command_become_words(
    args: str | None, kwargs: str | None, words: list[str] | str
) -> None:
    theirs(schedule_type="D", func="django.core.management.call_command", args=args, kwargs=kwargs)
    with allow_commands("migrate", "gone"):
        result = call("import_django_q")
    if isinstance(words, list):
        assert ours().params == {"command": "migrate", "args": words}
    else:
        assert (words in result.out, Schedule.objects.exists()) == (True, False), result.out


def test_scheduled_mail_comes_over_with_the_handler_that_the_import_prints() -> None:
    create_documented("mail")
    result = call("import_django_q", "--dry-run")
    assert (result.code, "put the handler below into a jobs.py of yours" in result.out) == (1, True)
    code = result.out[result.out.index("from django.core import mail") :]
    assert code.strip() in (DOCS / "django-q2.md").read_text()
    before = registry._handlers
    try:
        exec(code, {"__name__": "shop.jobs"})
        assert call("import_django_q").code == 0
        schedules.trigger(ours().pk)
        (ran,) = drain()
    finally:
        registry._handlers = before
    assert (ran.job_type, ran.status) == ("mail.send", "COMPLETED")
    (sent,) = mail.outbox
    assert (sent.subject, sent.body, sent.from_email, sent.to) == (
        "Follow up",
        "Hello",
        "shop@example.com",
        ["ada@example.com"],
    )


def test_repeats_and_what_is_over() -> None:
    for number, repeats in enumerate((-1, -7, 3, 0)):
        theirs(name=f"r{number}", schedule_type="H", repeats=repeats)
    call("import_django_q")
    assert list(Schedule.objects.order_by("name").values_list("max_fires", "enabled")) == [
        (None, True),
        (None, True),
        (3, True),
        (None, False),
    ]


def test_hooks_clusters_and_days_that_not_every_month_has_are_warned_of() -> None:
    theirs(schedule_type="M", hook="shop.done", cluster="big", next_run=datetime(2027, 1, 31, 12, tzinfo=UTC))
    output = call("import_django_q").out
    for warning in (
        "its hook “shop.done” is not called",
        "its cluster “big” is not imported",
        "months without a day 31",
    ):
        assert warning in output


def test_the_intended_date_becomes_the_param_for_the_due_time() -> None:
    theirs(schedule_type="D", func=f"{job_types.__name__}.anything", kwargs=None, intended_date_kwarg="when")
    call("import_django_q")
    assert ours().fire_time_param == "when"


def test_a_dry_run_changes_nothing_and_says_the_same() -> None:
    theirs(schedule_type="D")
    before, rows = dump_tables(), list(Theirs.objects.values())
    result = call("import_django_q", "--dry-run", "--disable-source")
    assert (result.code, "would be made" in result.out) == (0, True)
    assert (dump_tables(), list(Theirs.objects.values())) == (before, rows)


def test_importing_again_leaves_what_came_over_alone() -> None:
    theirs(schedule_type="D")
    call("import_django_q")
    Schedule.objects.update(name="mine", cron="0 5 * * *")
    before = dump_tables()
    result = call("import_django_q", "--json")
    assert [item["result"] for item in result.json] == ["known"]
    assert dump_tables() == before


def test_sources_are_disabled_and_never_deleted() -> None:
    source = theirs(schedule_type="D")
    result = call("import_django_q")
    assert "Both schedulers run them" in result.err
    result = call("import_django_q", "--disable-source")
    assert ("its source was disabled" in result.out, "Both schedulers run them" in result.err) == (True, False)
    source.refresh_from_db()
    assert source.repeats == 0
    assert ours().enabled


def test_two_of_one_name_come_over_as_two() -> None:
    for _ in range(2):
        theirs(schedule_type="D")
    theirs(schedule_type="D", name=None)
    assert call("import_django_q").code == 0
    names = set(Schedule.objects.values_list("name", flat=True))
    assert {"report", FUNC} <= names
    assert any(name.startswith("report (q2:") for name in names)


def test_our_own_tick_is_not_imported() -> None:
    call("install_django_q")
    assert call("import_django_q", "--json").json == []
