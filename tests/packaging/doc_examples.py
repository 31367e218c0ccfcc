"""What a guide tells people to write and to type, taken from its page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLACE = re.compile(r"# (\S+): (new|at the end)\n")


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """Language and text of each, in the order of the page; commands have no language."""
    yield from BLOCK.findall((DOCS / page).read_text())


def commands(page: str) -> list[str]:
    return [line for language, text in blocks(page) if not language for line in text.splitlines()]


def write(text: str, home: Path) -> None:
    """Do as the block's first line says."""
    place = PLACE.match(text)
    assert place, f"which file is this?\n{text}"
    path, how = home / place[1], place[2]
    assert path.exists() == (how == "at the end"), f"{path.name} is not {how}"
    with path.open("a") as file:
        file.write(text)
