"""Finds code that writes the status of a job: by the ORM, by attribute, or by SQL text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

OTHER_ROWS = re.compile(
    r"\b(JobRun|JobGroup|WebhookDelivery|WebhookEndpoint|runs?|groups?|deliver(y|ies)|response|minute|spec)\b|^self$"
)
MAKES_ROWS = ("create", "acreate", "bulk_create", "bulk_update", "get_or_create", "update_or_create")
STORES = ("save", "asave", "save_base")
SET_STATUS = re.compile(
    r"\bUPDATE\s+(?:ONLY\s+)?\"?jobscheduler_job\"?\s(?:(?!\bUPDATE\b).)*?\bSET\b"
    r"(?:(?!\bWHERE\b|\bFROM\b|\bRETURNING\b).)*?\bstatus\"?\s*=",
    re.IGNORECASE | re.DOTALL,
)
INSERT_JOB = re.compile(r"\b(INSERT|REPLACE)\b[\s\w]*\bINTO\s+\"?jobscheduler_job\"?[\s(]", re.IGNORECASE)


def writes_of_status(path: Path) -> list[str]:
    """One line for every place in this file that sets a job's status, or stores a whole job."""
    tree = ast.parse(path.read_text(), str(path))
    return [f"{path.name}:{node.lineno}: {what}" for node, what in _find_writes(tree)]


def _find_writes(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from ((node, what) for what in _calls(node))
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((node, f"{ast.unparse(item)} = …") for item in _flat(targets) if _is_status_of_a_job(item))
        elif isinstance(node, ast.JoinedStr | ast.Constant) and (what := _sql(node)):
            yield node, what


def _flat(targets: Sequence[ast.expr]) -> Iterator[ast.expr]:
    for target in targets:
        yield from _flat(target.elts) if isinstance(target, ast.Tuple | ast.List) else [target]


def _is_status_of_a_job(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and target.attr == "status" and not _is_another_row(target.value)


def _is_another_row(receiver: ast.expr) -> bool:
    return bool(OTHER_ROWS.search(ast.unparse(receiver)))


def _calls(call: ast.Call) -> Iterator[str]:
    text = ast.unparse(call)[:80]
    if isinstance(call.func, ast.Name):
        if call.func.id == "setattr" and len(call.args) == 3 and _text(call.args[1]) == "status":
            yield text
        return
    if not isinstance(call.func, ast.Attribute) or _is_another_row(call.func.value):
        return
    name, receiver = call.func.attr, ast.unparse(call.func.value)
    sets = name in ("update", "aupdate") and "status" in _keywords(call)
    stores = name in STORES and re.search(r"job\b|\bJob\(", receiver)
    if sets or stores or (name in MAKES_ROWS and re.search(r"\bJob\.|\bjobs\(\)", receiver)):
        yield text


def _keywords(call: ast.Call) -> set[str]:
    names = {keyword.arg for keyword in call.keywords if keyword.arg}
    for keyword in call.keywords:
        if keyword.arg is None and isinstance(keyword.value, ast.Dict):
            names |= {_text(key) for key in keyword.value.keys}
    return names


def _text(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _sql(node: ast.JoinedStr | ast.Constant) -> str:
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    sql = "".join(_text(part) if isinstance(part, ast.Constant) else "?" for part in parts)
    found = SET_STATUS.search(sql) or INSERT_JOB.search(sql)
    return " ".join(found.group().split())[:80] if found else ""
