"""Time, as the machines of led partitions learn of it: who lags too long, and whether the lease is in doubt.

A tick serves a share of the partitions, so that a thousand of them never hold the loop in one go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from fairlead_broker.runtime.leading.leader_replica import LeaderReplica

SHARES: Final = 10
"""Ticks in which every partition has its turn."""
TURN_SECONDS_MAX: Final = 1.0


class LeaderClock:
    """Ticks until cancelled."""

    __slots__ = ("_confirmed", "_lag_seconds", "_lease_confirmed", "_partitions", "_ticked")

    def __init__(
        self,
        partitions: Iterable[LeaderReplica],
        lease_confirmed: Callable[[], bool],
        lag_seconds: Callable[[], float],
        ticked: Callable[[], None],
    ) -> None:
        """`partitions`: those led at the moment, anew at each tick. `ticked`: what else is done once a turn."""
        self._partitions = partitions
        self._lease_confirmed = lease_confirmed
        self._lag_seconds = lag_seconds
        self._ticked = ticked
        self._confirmed = True

    async def run(self) -> None:
        """Tell the time again and again."""
        while True:
            turn_seconds = min(TURN_SECONDS_MAX, self._lag_seconds() / 2)
            for share in range(SHARES):
                # The only event to wait for is time.
                await asyncio.sleep(turn_seconds / SHARES)  # noqa: TID251
                self.tick(share)

    def tick(self, share: int) -> None:
        """Serve one share of the partitions; all of them where the lease has come into doubt or out of it."""
        confirmed = self._lease_confirmed()
        changed, self._confirmed = confirmed is not self._confirmed, confirmed
        partitions = self._partitions if changed else islice(self._partitions, share, None, SHARES)
        for partition in partitions:
            partition.time_passed()
        if share == 0:
            self._ticked()
