"""The check of words (`make check`) finds what it is for."""

from __future__ import annotations

import pytest

from tests.packaging.plain_words import ROOT, check_markdown, check_python

pytestmark = pytest.mark.once
PATH = ROOT / "jobs" / "example.py"


@pytest.mark.parametrize(
    "source",
    [
        "def list_jobs():\n    told = 1",
        "class Doorman: ...",
        "def fetch(most): ...",
        "for each in []: ...",
        "def shown(): ...",
        "async def _stored(): ...",
        "# nobody reads this",
        'def read():\n    """Tell whoever asks."""',
        "self.hungry = True",
    ],
)
def test_private_words_are_found(source: str) -> None:
    assert len(check_python(PATH, source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "def list_jobs(limit): ...",
        "@property\ndef stored(self): ...",
        "def test_nobody_is_told(): ...",
        "text = 'nobody'",
        "told()",
        "def need(): ...",
    ],
)
def test_plain_words_pass(source: str) -> None:
    assert check_python(PATH, source) == []


def test_prose_is_read_line_by_line() -> None:
    [finding] = check_markdown(ROOT / "docs" / "page.md", "A job.\n\nSomebody cancels it.\n")
    assert (finding.line, str(finding)) == (3, "docs/page.md:3: “somebody”: the role: a caller, a worker, an operator")
