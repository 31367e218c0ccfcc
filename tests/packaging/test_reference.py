"""The reference pages are what the code says, and no page points at nothing."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from docs import reference_pages
from docs.generate import COMMANDS, HERE, SETTINGS
from jobs.conf import Admission, Conf

pytestmark = pytest.mark.once

PAGES = sorted([*HERE.rglob("*.md"), HERE.parent / "README.md", HERE.parent / "CHANGELOG.md"])
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def test_the_settings_page_is_generated_from_the_settings() -> None:
    assert SETTINGS.read_text() == reference_pages.settings_page(), "run `make docs`"


def test_the_commands_page_is_generated_from_the_commands() -> None:
    assert COMMANDS.read_text() == reference_pages.commands_page(), "run `make docs`"


def test_every_setting_has_its_words_and_no_other() -> None:
    assert set(reference_pages.WORDS) == {field.name for kind in (Conf, Admission) for field in fields(kind)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(HERE.parent)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    targets = LINK.findall(page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []
