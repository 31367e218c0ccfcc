"""The catalogues: what the apps mark for translation, merged into their .po files and compiled. `make messages`."""

from __future__ import annotations

import ast
import gettext
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.core.management.commands import makemessages

CHECKOUT = Path(__file__).resolve().parents[2]
APPS = ("jobs", "schedules", "webhooks", "jobscheduler")
LANGUAGES = ("de",)
TOOLS = ("xgettext", "msguniq", "msgmerge", "msgattrib", "msgen", "msgfmt")
ALIASES = ("_now", "_lazy")  # how gettext or gettext_lazy is called where `_` is the other one
NAMES = ("_", *ALIASES, "gettext", "ngettext", "pgettext")
Catalogue = dict[Any, str]  # a text, with its context in front; of a plural, that and the number of the form


class Extract(makemessages.Command):
    xgettext_options = [*makemessages.Command.xgettext_options, *(f"--keyword={alias}" for alias in ALIASES)]
    msgmerge_options = [*makemessages.Command.msgmerge_options, "--no-fuzzy-matching"]  # a guess is no translation


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    for app in APPS:
        for language in LANGUAGES:
            written = po_file(CHECKOUT / app, language)
            with tempfile.TemporaryDirectory() as home:
                made = po_file(extract(app, language, Path(home)), language).read_text()
            written.parent.mkdir(parents=True, exist_ok=True)
            written.write_text(re.sub(r'^"POT-Creation-Date: .*"\n', "", made, flags=re.MULTILINE))
            compile_po(written, written.with_suffix(".mo"))
            print(f"wrote {written.relative_to(CHECKOUT)}")


def po_file(app: Path, language: str) -> Path:
    return app / "locale" / language / "LC_MESSAGES" / "django.po"


def extract(app: str, language: str, home: Path) -> Path:
    """A copy of the app with its catalogue brought up to date: extracting leaves files beside what it reads."""
    copy = shutil.copytree(CHECKOUT / app, home / app, ignore=shutil.ignore_patterns("__pycache__", "static", "*.mo"))
    if app == "jobscheduler":  # the site's own templates stand beside its package
        shutil.copytree(CHECKOUT / "templates", copy / "templates", dirs_exist_ok=True)
    for module in copy.rglob("*.py"):
        _bring_out(module)
    (copy / "locale").mkdir(exist_ok=True)
    how = {"add_location": "file", "no_wrap": True, "no_obsolete": True, "keep_pot": True, "verbosity": 0}
    with chdir(copy):
        call_command(Extract(), locale=[language], **how)
    return copy


def english(copy: Path) -> Catalogue:
    """What was extracted, each text as its own translation."""
    extracted, made = copy / "locale" / "django.pot", copy / "english.po"
    extracted.write_text(
        extracted.read_text().replace("nplurals=INTEGER; plural=EXPRESSION", "nplurals=2; plural=n != 1")
    )
    _run("msgen", "--output-file", made, extracted)
    compile_po(made, made.with_suffix(".mo"))
    return read_mo(made.with_suffix(".mo"))


def compile_po(written: Path, compiled: Path) -> None:
    """What is empty or fuzzy is left out. With the check that Django's own compilemessages has."""
    _run("msgfmt", "--check-format", "--output-file", compiled, written)


def read_mo(path: Path) -> Catalogue:
    with path.open("rb") as opened:
        read: Any = gettext.GNUTranslations(opened)
    return {key: text for key, text in read._catalog.items() if key != ""}


def _bring_out(module: Path) -> None:
    """xgettext does not look into f-strings: what they translate is said once more, behind everything."""
    text = module.read_text()
    inner = (part for node in ast.walk(ast.parse(text)) if isinstance(node, ast.JoinedStr) for part in ast.walk(node))
    calls = [part for part in inner if isinstance(part, ast.Call) and ast.unparse(part.func) in NAMES]
    if calls:
        module.write_text("\n".join([text, *map(ast.unparse, calls)]))


def _run(*command: object) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stderr}")


if __name__ == "__main__":
    main()
