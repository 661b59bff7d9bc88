"""Alternating pairs: the same work on both peers in turn, and the ratio pair by pair.

Machines are shared and noisy, so a ratio of neighbours in time holds where two absolute figures do not.
Pure: takes numbers, gives numbers and text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Pairs:
    """What a case measured: ours and theirs, pair by pair, and the ratio that counts as good."""

    case: str
    unit: str
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    target: float | None = None
    """None for what is only reported."""
    at_least: bool = True

    @property
    def ratios(self) -> tuple[float, ...]:
        """Ours divided by theirs, in the order measured."""
        return tuple(mine / other for mine, other in zip(self.ours, self.theirs, strict=True))

    @property
    def ratio(self) -> float:
        """The median ratio."""
        return median(self.ratios)

    @property
    def reached(self) -> bool | None:
        """Whether the median ratio meets the target; None without one."""
        if self.target is None:
            return None
        return self.ratio >= self.target if self.at_least else self.ratio <= self.target

    def document(self) -> dict[str, object]:
        """The case as JSON for the results file."""
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


def table(results: Sequence[Pairs]) -> str:
    """The results as a Markdown table: medians, spread of the ratio, target."""
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
