"""What takes long to count is counted anew for a tenth of the time at most, whoever asks how often."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from time import monotonic
from typing import Generic, TypeVar

FEW = 10_000  # so many jobs are counted anew for every answer
SHARE, LONGEST_SEC = 0.1, 5.0  # of all time, counting takes; and how old an answer may get
T = TypeVar("T")


class Kept(Generic[T]):
    """Answers of this process, each under the question that it answers."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[T, float]] = {}

    def get(self, question: Hashable, count: Callable[[], T], size: Callable[[T], int]) -> T:
        """`size`: how many jobs an answer is about."""
        now = monotonic()
        known = self._known.get(question)
        if known is not None and now < known[1]:
            return known[0]
        answer = count()
        if size(answer) > FEW:
            self._known = {each: kept for each, kept in self._known.items() if now < kept[1]}
            self._known[question] = answer, now + min((monotonic() - now) / SHARE, LONGEST_SEC)
        return answer

    def forget(self) -> None:
        self._known = {}
