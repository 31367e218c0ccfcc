"""Check that code and documentation use the words of docs/GLOSSARY.md: `python -m tests.packaging.plain_words`.

Identifiers are read from the syntax tree, prose from docstrings, comments and Markdown. Texts that users see are the
business of the catalogues. The exit code is 1 if anything is found.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
CODE = ("jobs", "schedules", "webhooks", "jobscheduler", "bench", "docs", "examples", "tests")
SKIPPED = {"migrations", "__pycache__"}

# Parts of names (snake case or camel case) and what to write instead.
NAME_WORDS = {
    "birth": "insert",
    "born": "inserted",
    "choosy": "skip_unserved",
    "doorman": "admission",
    "hasten": "wake",
    "hungry": "may_have_more",
    "incarnation": "process identity",
    "namesake": "duplicate",
    "nursery": "forkserver_preload",
    "owed": "pending",
    "said": "the name of the content: fields, message, output",
    "scribe": "progress_writer",
    "stubborn": "unresponsive",
    "told": "the name of the content: message, params, response",
    "weather": "outage",
    "whoever": "the role: caller, worker, operator",
}
# Whole names of variables and arguments that say nothing of their content.
BARE_NAMES = {"each": "the type of the item", "few": "limit", "more": "extra", "most": "limit", "some": "chunk, rows"}
PROSE_WORDS = {
    "anybody": "the role: caller, worker, operator",
    "nobody": "the role: no caller, no worker, no operator",
    "somebody": "the role: a caller, a worker, an operator",
    "whoever": "the role: caller, worker, operator",
}
# Participles that do not end in -ed; a function is named by a verb and its object.
IRREGULAR = {
    *("begun", "born", "bound", "brought", "built", "chosen", "cut", "done", "drawn", "fed", "felt", "found", "given"),
    *("gone", "grown", "heard", "held", "hidden", "kept", "known", "laid", "left", "lost", "made", "meant", "met"),
    *("paid", "said", "seen", "sent", "set_up", "shown", "shut", "sold", "spent", "spoken", "taken", "thought", "told"),
    *("understood", "won", "written"),
}
# Single words in -ed that are no participles, a decorator's inner function, and names that are a contract with users:
# methods of policies (docs/dispatch.md), of querysets, and of jobs.testing.
ALLOWED_FUNCTIONS = {"embed", "exceed", "feed", "need", "seed", "speed", "wrapped"}
ALLOWED_FUNCTIONS |= {"aged", "blocked", "cancelled", "created", "enqueued", "queued"}
# A column, and a schema of the published OpenAPI document.
ALLOWED_NAMES = {("jobs/models/worker.py", "most"), ("jobs/api/remote.py", "Said")}


class Finding(NamedTuple):
    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.text}"


def main() -> int:
    findings = [finding for path in python_files() for finding in check_python(path, path.read_text())]
    findings += [finding for path in markdown_files() for finding in check_markdown(path, path.read_text())]
    for finding in sorted(findings):
        print(finding)
    print(f"{len(findings)} words to replace" if findings else "plain words: nothing to replace")
    return 1 if findings else 0


def python_files() -> Iterator[Path]:
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not SKIPPED & set(path.parts) and path != Path(__file__).resolve():
                yield path
    yield ROOT / "manage.py"


def markdown_files() -> Iterator[Path]:
    yield from sorted((ROOT / "docs").rglob("*.md"))
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))


def check_python(path: Path, source: str) -> list[Finding]:
    tree = ast.parse(source)
    return [*_check_names(path, tree), *_check_functions(path, tree), *_check_prose(path, source, tree)]


def check_markdown(path: Path, text: str) -> list[Finding]:
    return [finding for number, line in enumerate(text.splitlines(), 1) for finding in _check_line(path, number, line)]


def _check_names(path: Path, tree: ast.AST) -> Iterator[Finding]:
    """Read the names that the file defines; names that it uses are checked where they are defined."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield from _check_name(path, node.lineno, name)
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield from _check_name(path, node.lineno, name)
                if name in BARE_NAMES and not _is_allowed(path, name):
                    yield Finding(path, node.lineno, f"variable `{name}`: name its content ({BARE_NAMES[name]})")


def _check_name(path: Path, line: int, name: str) -> Iterator[Finding]:
    if name.startswith("test_") or _is_allowed(path, name):
        return  # a test's name is a sentence
    for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name):
        if (plain := NAME_WORDS.get(word.lower())) is not None:
            yield Finding(path, line, f"name `{name}`: not “{word.lower()}” but {plain}")


def _is_allowed(path: Path, name: str) -> bool:
    return (path.relative_to(ROOT).as_posix(), name) in ALLOWED_NAMES


def _check_functions(path: Path, tree: ast.AST) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_attribute(node):
            word = node.name.strip("_")
            is_participle = word in IRREGULAR or ("_" not in word and word.endswith("ed"))
            if is_participle and word not in ALLOWED_FUNCTIONS:
                yield Finding(path, node.lineno, f"function `{node.name}`: a verb and its object")


def _is_attribute(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Properties and pytest's fixtures are named like the values that they give."""
    decorators = {ast.unparse(decorator).partition("(")[0] for decorator in node.decorator_list}
    return bool(decorators & {"property", "cached_property", "pytest.fixture", "classproperty"})


def _check_prose(path: Path, source: str, tree: ast.AST) -> Iterator[Finding]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from _check_line(path, token.start[0], token.string)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for offset, line in enumerate((ast.get_docstring(node, clean=False) or "").splitlines()):
                yield from _check_line(path, node.body[0].lineno + offset, line)


def _check_line(path: Path, number: int, line: str) -> Iterator[Finding]:
    for word in re.findall(r"[a-z]+", line.lower()):
        if (plain := PROSE_WORDS.get(word)) is not None:
            yield Finding(path, number, f"“{word}”: {plain}")


if __name__ == "__main__":
    sys.exit(main())
