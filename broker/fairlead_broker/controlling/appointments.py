"""Requests to the voters of vacancies to promise that they leave older epochs, and the appointments that follow.

The controllership passes the vacancies to `begin`, which asks each broker in one call about all its replicas; the
controllership then writes the records that `appointed` returns. Answers are kept for one version of a partition record.
A broker that did not answer is asked again each second, and a slow broker delays only the partitions that need its
answer (quorum Q8).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import structlog

from fairlead_api.identifiers import BrokerEpoch, BrokerId, LeaderEpoch, Revision
from fairlead_broker.clock import Clock
from fairlead_broker.controller.election import broker_epoch
from fairlead_broker.controller.leader_moves import avoided
from fairlead_broker.controller.partition_changes import ClusterView
from fairlead_broker.controller.partition_writes import PartitionWrite
from fairlead_broker.controller.vacancies import Promise, appointed, missing_promises
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import PartitionRecord


@dataclass(frozen=True, slots=True)
class Vacancy:
    """A vacancy, in the form sent to replicas."""

    key: PartitionKey
    revision: Revision
    """Mod revision of the partition record; the mirror of a replica must have reached this revision."""
    leader_epoch: LeaderEpoch


Ask: TypeAlias = Callable[[BrokerId, Sequence[Vacancy]], Awaitable[Mapping[PartitionKey, Promise]]]
"""Function that asks a broker for the promises of its replicas to take no further part in older leader epochs.

Replicas that do not answer are left out.
"""

AGAIN_SECONDS: Final = 1.0
"""Seconds between two requests to a broker about the same vacancy."""
WAIT_SECONDS: Final = 0.2
"""Seconds for which a vacancy waits for the answers of all registered replicas, since any of these replicas may be
preferred. Later, the vacancy is filled from the received answers."""

_log = structlog.get_logger("fairlead.controller")


async def no_promises(broker: BrokerId, vacancies: Sequence[Vacancy]) -> Mapping[PartitionKey, Promise]:
    """Return no promises. A controllership without peers calls this function."""
    del broker, vacancies
    return {}


@dataclass(slots=True)
class _Asked:
    """Answers about one vacancy."""

    vacancy: Vacancy
    since: float
    asked: dict[tuple[BrokerId, BrokerEpoch], float] = field(default_factory=dict)
    """Time of the last request to each incarnation."""
    promises: dict[BrokerId, Promise] = field(default_factory=dict)
    is_new: bool = False
    """Whether an answer has arrived since the answers were last evaluated."""


class Appointments:
    """One controller's requests and answers about vacancies."""

    def __init__(
        self, ask: Ask, view: Callable[[], ClusterView], clock: Clock, done: Callable[[], None]
    ) -> None:
        """`done` is called after every answer."""
        self._ask = ask
        self._view = view
        self._clock = clock
        self._done = done
        self._asked: dict[PartitionKey, _Asked] = {}
        self._under_way: set[tuple[BrokerId, PartitionKey, Revision]] = set()

    def forget(self) -> None:
        """Drop all answers when a term begins or ends."""
        self._asked.clear()

    def missing(self, key: PartitionKey, record: PartitionRecord) -> tuple[BrokerId, ...]:
        """Return the voters whose promises a vacancy still needs."""
        asked = self._asked.get(key)
        promises = asked.promises if asked is not None else {}
        return missing_promises(key, record, promises, self._view().brokers)

    def begin(
        self, group: asyncio.TaskGroup, vacancies: Iterable[tuple[PartitionKey, Versioned[PartitionRecord]]]
    ) -> None:
        """For all vacancies, ask the registered replicas that have not promised yet. Each request is one task."""
        now, brokers = self._clock.monotonic(), self._view().brokers
        questions: dict[BrokerId, list[Vacancy]] = {}
        kept: dict[PartitionKey, _Asked] = {}
        for key, partition in vacancies:
            asked = self._asked.get(key)
            if asked is None or asked.vacancy.revision != partition.mod_revision:
                vacancy = Vacancy(key, partition.mod_revision, partition.value.leader_epoch)
                asked = _Asked(vacancy, now)
            kept[key] = asked
            for replica in partition.value.replicas:
                broker, registered = replica.broker, brokers.get(replica.broker)
                if registered is None:
                    continue
                incarnation = (broker, broker_epoch(registered))
                promise = asked.promises.get(broker)
                is_answered = promise is not None and promise.broker_epoch == incarnation[1]
                is_due = now >= asked.asked.get(incarnation, -AGAIN_SECONDS) + AGAIN_SECONDS
                is_under_way = (broker, key, asked.vacancy.revision) in self._under_way
                if not is_answered and is_due and not is_under_way:
                    asked.asked[incarnation] = now
                    questions.setdefault(broker, []).append(asked.vacancy)
        self._asked = kept
        for broker, about in questions.items():
            self._under_way.update((broker, each.key, each.revision) for each in about)
            group.create_task(self._question(broker, about))

    def appointed(
        self, find: Callable[[PartitionKey], Versioned[PartitionRecord] | None]
    ) -> list[PartitionWrite]:
        """Return the records that fill vacancies. `find` returns the current record of a partition."""
        now, view, writes = self._clock.monotonic(), self._view(), []
        for key, asked in self._asked.items():
            is_late = now >= asked.since + WAIT_SECONDS
            if not asked.is_new and not is_late:
                continue
            asked.is_new = False
            found = find(key)
            if found is None or found.mod_revision != asked.vacancy.revision or not asked.promises:
                continue
            record = found.value
            live = {replica.broker for replica in record.replicas if replica.broker in view.brokers}
            if not is_late and not asked.promises.keys() >= live:
                continue
            filled = appointed(key, record, asked.promises, view.brokers, avoided(record, view))
            if filled is not None:
                writes.append(PartitionWrite(key, found.mod_revision, filled, elects=True))
        return writes

    @property
    def look_seconds(self) -> float | None:
        """Seconds until a vacancy no longer waits for all answers, or None while no vacancy waits."""
        now = self._clock.monotonic()
        waits = [each.since + WAIT_SECONDS - now for each in self._asked.values() if each.promises]
        return min((seconds for seconds in waits if seconds > 0), default=None)

    async def _question(self, broker: BrokerId, about: Sequence[Vacancy]) -> None:
        try:
            promises = await self._ask(broker, about)
        finally:
            self._under_way.difference_update((broker, each.key, each.revision) for each in about)
        for vacancy in about:
            asked, promise = self._asked.get(vacancy.key), promises.get(vacancy.key)
            if asked is not None and promise is not None and asked.vacancy == vacancy:
                asked.promises[broker] = promise
                asked.is_new = True
        self._done()
