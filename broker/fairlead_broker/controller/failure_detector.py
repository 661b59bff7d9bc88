"""Decision whether the process of another broker has ended, based on connections to its peer listener.

`controlling.failure_watch` reports the outcomes of connections, and ends the lease of a broker for which `has_ended`
returns True. A killed process loses its connections and its port refuses new ones within milliseconds, but its lease
ends only after seconds. Safety does not depend on the decision: after the end of a lease, the usual election follows,
which compares epochs and in-sync replicas. Ending the lease of a live broker costs one election, and three rules limit
the number of such errors (protocol section 3, rule 10):

- an incarnation is ended only after a connection to the incarnation was accepted and two later ones were refused;
- a process that has survived the end of an incarnation is spared for a time, which doubles with each survival;
- the number of ended incarnations is limited by a budget.

A machine that does not answer refuses no connection, so its lease simply expires. `now` is the monotonic time in
seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fairlead_api.identifiers import BrokerEpoch, BrokerId

REFUSALS_MIN: Final = 2
"""Number of successive refusals that show the end of a process."""
PROBE_SECONDS_MIN: Final = 0.1
"""Time between the first two attempts to connect; each further attempt waits twice as long."""
PROBE_SECONDS_MAX: Final = 5.0
FIRST_PROBE_SECONDS: Final = 0.05
"""Time between two attempts while a port refuses and no connection was accepted: the broker is starting, and its end is
detected only after the first connection."""
SETTLED_SECONDS: Final = 1.0
"""Minimum duration of a connection after which the next attempt follows immediately."""
SPARED_SECONDS: Final = 60.0
"""Seconds for which a process that outlives its incarnation is spared; until then, only its lease ends the next one."""
SPARED_SECONDS_MAX: Final = 3600.0
ENDED_MAX: Final = 5
"""Number of incarnations that one broker may end in quick succession."""
ENDED_SECONDS: Final = 5.0
"""Time after which one more incarnation may be ended."""


@dataclass(slots=True)
class _Watched:
    """Another broker: its newest incarnation, and the outcomes of connections to it."""

    epoch: BrokerEpoch
    process: str
    was_connected: bool = False
    connected_at: float | None = None
    refusals: int = 0
    attempts: int = 0
    """Number of successive attempts without a settled connection."""
    survivals: int = 0
    spared_until: float = 0.0


class FailureDetector:
    """Outcomes of one broker's connections to all others, and the budget for ending incarnations."""

    def __init__(self) -> None:
        self._watched: dict[BrokerId, _Watched] = {}
        self._left = float(ENDED_MAX)
        self._left_at = 0.0

    def registered(self, broker: BrokerId, epoch: BrokerEpoch, process: str, now: float) -> None:
        """Watch the newest incarnation of a broker. `process` is different for any two processes.

        A second incarnation of the same process shows that the process survived the end of the first one.
        """
        before = self._watched.get(broker)
        if before is not None and before.epoch == epoch:
            return
        watched = self._watched[broker] = _Watched(epoch, process)
        if before is not None and before.process == process:
            watched.survivals = before.survivals + 1
            spared_seconds = SPARED_SECONDS * 2.0**before.survivals
            watched.spared_until = now + min(spared_seconds, SPARED_SECONDS_MAX)

    def connected(self, broker: BrokerId, now: float) -> None:
        """Record an accepted connection."""
        watched = self._watched[broker]
        if not watched.was_connected:
            # Attempts during the start of a broker must not delay the attempts after its end.
            watched.was_connected, watched.attempts = True, 0
        watched.refusals, watched.connected_at = 0, now

    def closed(self, broker: BrokerId, now: float) -> float:
        """Record the end of a connection, lost or not, and return the seconds until the next attempt."""
        watched = self._watched[broker]
        since, watched.connected_at = watched.connected_at, None
        if since is not None and now - since >= SETTLED_SECONDS:
            watched.attempts = 0
            return 0.0
        return _pause_seconds(watched)

    def refused(self, broker: BrokerId) -> float:
        """Record a refused connection, and return the seconds until the next attempt."""
        watched = self._watched[broker]
        watched.refusals += 1
        return _pause_seconds(watched) if watched.was_connected else FIRST_PROBE_SECONDS

    def unreachable(self, broker: BrokerId) -> float:
        """Record an attempt without an answer, which proves nothing, and return the seconds until the next attempt."""
        watched = self._watched[broker]
        watched.refusals = 0
        return _pause_seconds(watched)

    def has_ended(self, broker: BrokerId, now: float) -> bool:
        """Return whether the process of a broker has ended, according to its connections."""
        watched = self._watched[broker]
        return watched.was_connected and watched.refusals >= REFUSALS_MIN and now >= watched.spared_until

    def spend(self, now: float) -> bool:
        """Charge the end of one incarnation to the budget, and return False if the budget is used up."""
        self._left = min(float(ENDED_MAX), self._left + (now - self._left_at) / ENDED_SECONDS)
        self._left_at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


def _pause_seconds(watched: _Watched) -> float:
    pause_seconds = PROBE_SECONDS_MIN * 2.0**watched.attempts
    watched.attempts = min(watched.attempts + 1, 10)
    return min(pause_seconds, PROBE_SECONDS_MAX)
