"""The report of a suite: its measurements, and every broken promise."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class SuiteReport:
    notes: dict[str, object] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def note(self, **found: object) -> None:
        self.notes |= {name: f"{item:.2f}" if isinstance(item, float) else item for name, item in found.items()}

    def require(self, holds: object, otherwise: str) -> None:
        if not holds:
            self.broken.append(otherwise)

    @property
    def noticed(self) -> str:
        """For a suite in which something was made to go wrong."""
        return f"noticed, {len(self.broken)} violations" if self.broken else "BROKEN: the sabotage went unnoticed"

    def __str__(self) -> str:
        details = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.notes.items())
        if not self.broken:
            return f"held ({details})"
        return "\n".join(
            [
                f"BROKEN: {len(self.broken)} violations ({details})",
                *(f"  {violation}" for violation in self.broken[:20]),
            ]
        )
