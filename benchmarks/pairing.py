"""Cases of the results: alternating pairs with a peer, and outcomes of measurements without a peer.

In a pair, both peers do the same work in turn, and each pair of measurements gives a ratio. Machines are shared and
noisy, so the ratio of two measurements made in quick succession is more reliable than two absolute figures. The module
performs no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Pairs:
    """Measurements of a case: the values of Fairlead and of the peer, pair by pair, and the target for their ratio."""

    case: str
    unit: str
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    target: float | None = None
    """Target for the median ratio; None if the case is only reported."""
    at_least: bool = True

    @property
    def ratios(self) -> tuple[float, ...]:
        """The values of Fairlead divided by the values of the peer, in the order of measurement."""
        return tuple(mine / other for mine, other in zip(self.ours, self.theirs, strict=True))

    @property
    def ratio(self) -> float:
        """The median ratio."""
        return median(self.ratios)

    @property
    def reached(self) -> bool | None:
        """Whether the median ratio meets the target; None if there is no target."""
        if self.target is None:
            return None
        return self.ratio >= self.target if self.at_least else self.ratio <= self.target

    def document(self) -> dict[str, object]:
        """Return the case as a JSON object for the results file."""
        return {
            "case": self.case,
            "unit": self.unit,
            "fairlead": list(self.ours),
            "kafka": list(self.theirs),
            "ratios": [round(ratio, 3) for ratio in self.ratios],
            "ratio_median": round(self.ratio, 3),
            "target": self.target,
            "direction": "at least" if self.at_least else "at most",
            "reached": self.reached,
        }


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


def table(results: Sequence[Pairs]) -> str:
    """Return the results as a Markdown table with medians, the spread of the ratio, and the target."""
    lines = [
        "| case | Fairlead | Kafka | ratio: median (min to max) | target | reached |",
        "|---|---|---|---|---|---|",
    ]
    for result in results:
        ratios = result.ratios
        target = "reported"
        if result.target is not None:
            target = f"{'at least' if result.at_least else 'at most'} {result.target}x"
        reached = {True: "yes", False: "no", None: ""}[result.reached]
        lines.append(
            f"| {result.case} | {median(result.ours):,.0f} {result.unit} | {median(result.theirs):,.0f} {result.unit} "
            f"| {result.ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f}) | {target} | {reached} |"
        )
    return "\n".join(lines)
