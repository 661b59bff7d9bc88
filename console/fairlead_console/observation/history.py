"""Rates and lags of the last hour, one value per round: pure, without a clock."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Final

ROUNDS_MAX: Final = 360
"""Number of rounds that a history keeps: one hour, with a round every ten seconds."""


class History:
    """Values by name for each of the newest rounds.

    A name whose values are all 0 takes no memory, because in large clusters most topics are idle.
    """

    def __init__(self) -> None:
        self._times: list[float] = []
        self._values: dict[str, array[float]] = {}

    @property
    def times(self) -> Sequence[float]:
        """Times of the rounds, in seconds since 1970."""
        return self._times

    def values(self, name: str) -> Sequence[float]:
        """Return one value per round."""
        return self._values.get(name) or [0.0] * len(self._times)

    def append(self, at: float, values: Mapping[str, float]) -> None:
        """Add a round; names without a value in this round get 0."""
        rounds = len(self._times)
        for name, value in values.items():
            if value and name not in self._values:
                self._values[name] = array("f", bytes(4 * rounds))
        self._times.append(at)
        for name, series in self._values.items():
            series.append(values.get(name, 0.0))
        if rounds == ROUNDS_MAX:
            self._forget_first()

    def _forget_first(self) -> None:
        del self._times[0]
        for name in list(self._values):
            series = self._values[name]
            del series[0]
            if not any(series):
                del self._values[name]


def grown(before: Mapping[int, int], now: Mapping[int, int], seconds: float) -> dict[int, float]:
    """Return the rate per second of each counter that is in both rounds and has grown."""
    if seconds <= 0:
        return {}
    return {
        number: (count - before[number]) / seconds
        for number, count in now.items()
        if count > before.get(number, count)
    }
