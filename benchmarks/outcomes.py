"""Outcomes of measurements without a peer, as the page shows them: a case, its figures, and the target. Without I/O."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """A row of the page; the results file also has the numbers that the row is made of."""

    case: str
    measured: str
    target: str = "reported"
    reached: bool | None = None
    """Whether the target is met; None if there is no target."""

    def document(self) -> dict[str, object]:
        """Return the outcome as a JSON object for the results file."""
        return asdict(self)
