"""Moves of leaderships of partitions with a write quorum; a move begins when the leader reports a near voter.

The controllership names the partitions whose leaders should change, and writes the vacancies that `due` returns.
Leaders are asked in one call for all their partitions, at most once a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

from fairlead_api.identifiers import BrokerId
from fairlead_broker.clock import Clock
from fairlead_broker.controller.leader_moves import is_leaving, moved
from fairlead_broker.controller.partition_changes import ClusterView
from fairlead_broker.controller.partition_writes import PartitionWrite
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import PartitionRecord

AGAIN_SECONDS: Final = 1.0
"""Seconds between two requests to a leader, since a voter that is not near needs time to copy records."""
AGAIN_SECONDS_MAX: Final = 60.0
"""Maximum time in seconds before a move that ended with the same leader is retried; each move interrupts producers."""

NearVoters: TypeAlias = Callable[
    [BrokerId, Sequence[PartitionKey]], Awaitable[Mapping[PartitionKey, frozenset[BrokerId]]]
]
"""Function that asks a leader which voters of its partitions are near. Partitions without an answer are left out."""
Find: TypeAlias = Callable[[PartitionKey], Versioned[PartitionRecord] | None]


async def no_near_voters(
    broker: BrokerId, keys: Sequence[PartitionKey]
) -> Mapping[PartitionKey, frozenset[BrokerId]]:
    """Return no voters. A controllership without peers calls this function."""
    del broker, keys
    return {}


class LeaderMoves:
    """Partitions whose leadership one controller should move."""

    def __init__(
        self,
        ask: NearVoters,
        view: Callable[[], ClusterView],
        find: Find,
        clock: Clock,
        done: Callable[[], None],
    ) -> None:
        """`find` returns the current record of a partition, and `done` is called after every answer."""
        self._ask = ask
        self._view = view
        self._find = find
        self._clock = clock
        self._done = done
        self._wanted: dict[PartitionKey, BrokerId | None] = {}
        self._near: dict[PartitionKey, frozenset[BrokerId]] = {}
        self._asked: dict[PartitionKey, float] = {}
        self._begun: dict[PartitionKey, int] = {}
        """Number of vacancies written so far for each leadership that should move."""

    def want(self, key: PartitionKey, broker: BrokerId | None = None) -> None:
        """Move a leadership to a broker, or away from its current broker."""
        self._wanted[key] = broker
        if self._clock.monotonic() >= self._asked.get(key, -AGAIN_SECONDS_MAX) + AGAIN_SECONDS_MAX:
            self._begun.pop(key, None)

    def forget(self) -> None:
        """Drop all moves when a term begins or ends."""
        for kept in (self._wanted, self._near, self._asked, self._begun):
            kept.clear()

    async def near(self, key: PartitionKey) -> frozenset[BrokerId]:
        """Return the near voters of one partition, as reported by its leader."""
        found = self._find(key)
        if found is None or found.value.leader is None:
            return frozenset()
        return (await self._ask(found.value.leader.broker, [key])).get(key, frozenset())

    def due(self) -> list[PartitionWrite]:
        """Return the vacancies of the moves that can begin. A move to a broker that is not near is dropped."""
        near, self._near = self._near, {}
        view, writes = self._view(), []
        for key, voters in near.items():
            wanted = self._wanted.get(key)
            found = self._find(key)
            if found is None or not (wanted is not None or is_leaving(found.value, view)):
                self._drop(key)
                self._begun.pop(key, None)
                continue
            vacancy = moved(key, found.value, view, voters, wanted)
            if vacancy is not None:
                writes.append(PartitionWrite(key, found.mod_revision, vacancy))
                self._begun[key] = self._begun.get(key, 0) + 1
            if vacancy is not None or wanted is not None:
                self._wanted.pop(key, None)
        return writes

    def begin(self, group: asyncio.TaskGroup) -> None:
        """Ask the leaders of all moves that are due. Each request runs in its own task."""
        now = self._clock.monotonic()
        questions: dict[BrokerId, list[PartitionKey]] = {}
        for key in list(self._wanted):
            found = self._find(key)
            if found is None or found.value.leader is None:
                self._wanted.pop(key)
            elif now >= self._asked.get(key, -AGAIN_SECONDS_MAX) + self._pause_seconds(key):
                self._asked[key] = now
                questions.setdefault(found.value.leader.broker, []).append(key)
        for broker, keys in questions.items():
            group.create_task(self._question(broker, keys))

    def _pause_seconds(self, key: PartitionKey) -> float:
        return min(AGAIN_SECONDS_MAX, AGAIN_SECONDS * 2.0 ** min(self._begun.get(key, 0), 10))

    def _drop(self, key: PartitionKey) -> None:
        for kept in (self._wanted, self._asked):
            kept.pop(key, None)

    async def _question(self, broker: BrokerId, keys: Sequence[PartitionKey]) -> None:
        near = await self._ask(broker, keys)
        self._near.update((key, voters) for key, voters in near.items() if key in self._wanted)
        self._done()
