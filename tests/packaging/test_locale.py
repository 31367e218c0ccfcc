"""Every text can be translated, has a German translation, and is shown in German on request."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from contextlib import chdir
from functools import cache
from pathlib import Path

import django
import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.utils import translation

from tests.packaging.messages import (
    ALIASES,
    APPS,
    CHECKOUT,
    LANGUAGES,
    TOOLS,
    Catalogue,
    english,
    extract,
    po_file,
    read_mo,
)
from tests.support.admin_users import log_in
from tests.support.api_client import ApiClient
from tests.support.commands import call
from tests.support.schedules import TYPE, create_schedule

pytestmark = pytest.mark.once
EACH = [(app, language) for app in APPS for language in LANGUAGES]
PLACEHOLDER = re.compile(r"%(?:\(\w+\))?[-#0+]?[\d.]*[diouxXeEfFgGcrsa%]|\{\w*\}")
NAMED = re.compile(r"%?[({]\w")
# One name for each thing, see docs/GLOSSARY.md: run, attempt, running, finished, scheduled, handles, duplicate.
FORMER_WORDS = re.compile(
    r"\b(fires?|fired|tries|in hand|at work|no live worker|sign of life|heard|told|asked to|goes? first|held back"
    r"|handed (?:back|out)|owed|(?:its|their) time comes|waits? for (?:its|their) time|looks now|say|says|clone|lane"
    r"|nobody|somebody|anybody|by a person)\b",
    re.IGNORECASE,
)
IN_DIAGNOSTICS = {"lane", "lane mark", "lane marks", "holds its lane", "fire"}  # columns of the scheduler's own tables
IMPORT = re.compile(r"import (\w*gettext\w*) as (\w+)$", re.MULTILINE)


@pytest.fixture(scope="session")
def tools() -> None:
    missing = [name for name in TOOLS if shutil.which(name) is None]
    if missing and os.environ.get("CI_BROWSER") == "1":
        pytest.fail(f"CI_BROWSER is 1 and there is no {', '.join(missing)}: apt-get install gettext")
    if missing:
        pytest.skip(f"there is no {', '.join(missing)} on this machine: apt-get install gettext")


@pytest.fixture(scope="session")
def marked(tools: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Catalogue]:
    """All that an app marks for translation, read from its source as it is now."""
    return cache(lambda app: english(extract(app, LANGUAGES[0], tmp_path_factory.mktemp("extracted"))))


def read_translations(app: str, language: str) -> Catalogue:
    return read_mo(po_file(CHECKOUT / app, language).with_suffix(".mo"))


@pytest.mark.parametrize(("app", "language"), EACH)
def test_every_marked_text_is_translated(app: str, language: str, marked: Callable[[str], Catalogue]) -> None:
    """A translation that is empty or fuzzy is not compiled, so it is missing here. `make messages` says what is new."""
    found = read_translations(app, language)
    assert [text for text in marked(app) if text not in found] == []
    assert [text for text in found if text not in marked(app)] == []


@pytest.mark.parametrize(("app", "language"), EACH)
def test_a_translation_has_the_placeholders_of_its_text(
    app: str, language: str, marked: Callable[[str], Catalogue]
) -> None:
    found = read_translations(app, language)
    differ = {
        text: found[text] for text, item in marked(app).items() if text in found and _holes(item) != _holes(found[text])
    }
    assert differ == {}


@pytest.mark.parametrize(("app", "language"), EACH)
def test_what_is_compiled_is_what_djangos_own_command_makes_of_what_was_written(
    app: str, language: str, tools: None, tmp_path: Path
) -> None:
    written = po_file(tmp_path, language)
    written.parent.mkdir(parents=True)
    shutil.copy(po_file(CHECKOUT / app, language), written)
    with chdir(tmp_path):
        call_command("compilemessages", locale=[language], verbosity=0)
    assert read_translations(app, language) == read_mo(written.with_suffix(".mo"))


@pytest.mark.parametrize("language", LANGUAGES)
def test_apps_translate_what_they_share_alike(language: str) -> None:
    """A site has one catalogue for all apps: of two translations the one of the app that it names first would win."""
    found: dict[object, dict[str, str]] = {}
    for app in APPS:
        for text, item in read_translations(app, language).items():
            found.setdefault(text, {})[app] = item
    assert {text: item for text, item in found.items() if len(set(item.values())) > 1} == {}


@pytest.mark.parametrize(("app", "language"), EACH)
@pytest.mark.parametrize("place", ["conf", "contrib/admin", "contrib/auth"])
def test_words_that_django_has_stay_as_they_are(app: str, language: str, place: str) -> None:
    """They would change on every page of a site, not on ours alone."""
    theirs = read_mo(Path(django.__file__).parent / place / f"locale/{language}/LC_MESSAGES/django.mo")
    shared = {text: item for text, item in read_translations(app, language).items() if text in theirs}
    assert shared == {text: theirs[text] for text in shared}


@pytest.mark.parametrize("app", APPS)
def test_each_thing_has_one_name_in_the_texts_for_users(app: str) -> None:
    texts = {text[0] if isinstance(text, tuple) else text for text in read_translations(app, LANGUAGES[0])}
    texts = {text.rpartition("\x04")[2] for text in texts}  # without its context
    assert {text for text in texts if FORMER_WORDS.search(text)} - IN_DIAGNOSTICS == set()


@pytest.mark.parametrize("app", APPS)
def test_every_name_that_marks_a_text_is_known_to_the_extraction(app: str) -> None:
    modules = [path.read_text() for path in (CHECKOUT / app).rglob("*.py")]
    named = {alias for text in modules for marks, alias in IMPORT.findall(text) if marks in ("gettext", "gettext_lazy")}
    others = {alias for text in modules for marks, alias in IMPORT.findall(text)} - named
    assert named <= {"_", *ALIASES}
    assert others == set()  # these would need to say which of their arguments are texts


@pytest.mark.django_db
def test_the_console_speaks_german_to_a_german_browser() -> None:
    row, boss = create_schedule(name="nightly", every_sec=1), log_in(User.objects.create_superuser("boss"))
    german = {"Accept-Language": "de-AT,de;q=0.9"}
    listed = boss.get("/admin/jobscheduler_schedules/schedule/", headers=german).content.decode()
    for text in ("Zeitplan hinzufügen", "Jede Sekunde", "Ausgewählte Zeitpläne deaktivieren", "Job-Scheduler</a>"):
        assert text in listed
    page = boss.get(f"/admin/jobscheduler_schedules/schedule/{row.pk}/change/", headers=german).content.decode()
    for text in (
        "Jetzt ausführen",
        "Nächste Läufe",
        "Toleranz bei Verspätung (s)",
        "Noch keine Läufe.",
    ):
        assert text in page
    assert "Run now" in boss.get(f"/admin/jobscheduler_schedules/schedule/{row.pk}/change/").content.decode()


@pytest.mark.django_db
def test_a_problem_of_the_api_is_told_in_the_language_that_was_asked_for() -> None:
    never = {"name": "never", "job_type": TYPE, "cron": "0 0 31 2 *"}
    response = ApiClient().post("/schedules", never, **{"Accept-Language": "de"})
    assert (response.status_code, response.json()["errors"][0]["loc"]) == (422, ["body", "cron"])
    assert response.json()["errors"][0]["msg"] == "wird nie fällig: einen solchen Tag gibt es nicht"
    assert "Accept-Language" in response["Vary"]
    response = ApiClient().post("/schedules", never)
    assert response.json()["errors"][0]["msg"] == "never comes due: there is no such day"


@pytest.mark.django_db
def test_commands_speak_the_language_of_their_site() -> None:
    with translation.override("de"):
        result = call("schedules", "preview", "--cron", "99 * * * *")
        assert (result.code, result.err.strip()) == (2, "cron: hat ein ungültiges Feld: Minute")


def _holes(text: str) -> tuple[list[str], set[str]]:
    """Those without a name in their order, those with one in any."""
    found = PLACEHOLDER.findall(text)
    named = {hole for hole in found if NAMED.match(hole)}
    return [hole for hole in found if hole not in named], named
