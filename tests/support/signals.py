"""Record signals in a test, also in one that never commits."""

from __future__ import annotations

from typing import Any

from django.db import connection
from django.dispatch import Signal


class SignalRecorder:
    """Records the arguments of signals. A call first runs the commit hooks of the test's own transaction."""

    def __init__(self, *signals: Signal) -> None:
        self._signals, self._facts = signals, list[dict[str, Any]]()
        for signal in signals:
            signal.connect(self._receive)

    def _receive(self, *, signal: Signal, sender: Any, **facts: Any) -> None:
        self._facts.append(facts)

    def __call__(self, *names: str) -> list[Any]:
        """Return everything received so far; with names, tuples of those facts (of one name, its values)."""
        run_commit_hooks()
        if not names:
            return list(self._facts)
        return [facts[names[0]] if len(names) == 1 else tuple(facts[name] for name in names) for facts in self._facts]

    def disconnect(self) -> None:
        for signal in self._signals:
            signal.disconnect(self._receive)


def run_commit_hooks() -> None:
    """Run the functions that wait for a commit."""
    waiting, connection.run_on_commit = connection.run_on_commit, []
    for _savepoints, run, _robust in waiting:
        run()
