"""How often the members of a broker's groups come: the more there are, the less often each of them."""

from __future__ import annotations

from fairlead_broker.groups import rest_interval_ms


class HeartbeatPace:
    """Counts the members of all groups of one broker."""

    __slots__ = ("_members", "interval_ms")

    def __init__(self) -> None:
        self._members = 0
        self.interval_ms = rest_interval_ms(0)
        """Between two heartbeats of a member at rest."""

    def count(self, more: int) -> None:
        """Take note of members that came, or, below zero, went."""
        self._members += more
        assert self._members >= 0, "nobody goes who has not come"
        self.interval_ms = rest_interval_ms(self._members)
