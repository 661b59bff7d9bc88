"""Surveys of the replicas of partitions that no complete replica can lead, and the resulting unclean elections.

The controllership starts the surveys, which ask brokers for the log ends of their replicas. Each survey runs in its own
task, concurrently with the controller's turns, so that a slow broker delays only the elections of its own partitions.
The next turn evaluates the answers of a survey against the mirror. An answer from an ended incarnation is ignored. A
live replica that did not answer may have the longest log. The survey is therefore repeated during the configured delay,
which begins with the first survey of the replica's incarnation. After the delay, the election ignores live replicas
that did not answer. If the partition record is marked `restored` (the coordination store came from a backup), the
election waits for answers from all replicas.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec
import structlog

from fairlead_api.identifiers import BrokerEpoch, BrokerId, Revision
from fairlead_broker.clock import Clock
from fairlead_broker.controller.election import broker_epoch, takes_part
from fairlead_broker.controller.log_end import LogEnd
from fairlead_broker.controller.partition_changes import ClusterView, elect_unclean, has_live_leader
from fairlead_broker.controller.partition_writes import PartitionWrite
from fairlead_broker.controller.term import PARTITIONS_MAX
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import PartitionRecord

Survey: TypeAlias = Callable[[PartitionKey, Sequence[BrokerId]], Awaitable[Mapping[BrokerId, LogEnd]]]
"""Function that returns the log ends of replicas. Brokers that do not answer or have no open log are left out."""
LeaderlessPartition: TypeAlias = tuple[PartitionKey, Versioned[PartitionRecord]]

SURVEYS_MAX: Final = PARTITIONS_MAX
"""Maximum number of concurrent surveys."""
AGAIN_SECONDS: Final = 1.0
"""Minimum seconds between two surveys of a partition: refusals arrive at once, and each survey burdens every replica.
"""

_log = structlog.get_logger("fairlead.controller")


@dataclass(frozen=True, slots=True)
class Surveyed:
    """Answers from the replicas of a partition, with the partition record at the time of the survey."""

    key: PartitionKey
    partition: Versioned[PartitionRecord]
    asked: Mapping[BrokerId, BrokerEpoch]
    """Surveyed brokers, with their incarnations."""
    ends: Mapping[BrokerId, LogEnd]

    def answered(self, view: ClusterView) -> Mapping[BrokerId, LogEnd]:
        """Return the log ends of brokers that still run in the surveyed incarnation."""
        return {broker: end for broker, end in self.ends.items() if self._is_current(broker, view)}

    def silent(self, view: ClusterView) -> tuple[BrokerId, ...]:
        """Return the live replicas that have not answered.

        Stopping and quarantined replicas are left out, because they cannot become leader.
        """
        answered = self.answered(view)
        return tuple(
            replica.broker
            for replica in self.partition.value.replicas
            if replica.broker not in answered
            and replica.broker in view.brokers
            and takes_part(self.key, view.brokers[replica.broker].value)
        )

    def _is_current(self, broker: BrokerId, view: ClusterView) -> bool:
        registered = view.brokers.get(broker)
        return registered is not None and broker_epoch(registered) == self.asked[broker]


async def no_answers(key: PartitionKey, brokers: Sequence[BrokerId]) -> Mapping[BrokerId, LogEnd]:
    """Return no answers. A broker without peers calls this function instead of asking other brokers."""
    del key, brokers
    return {}


class UncleanElections:
    """One controller's surveys, and the elections that follow from them."""

    def __init__(
        self, survey: Survey, view: Callable[[], ClusterView], clock: Clock, done: Callable[[], None]
    ) -> None:
        """Create the object without surveys. `done` is called at the end of every survey."""
        self._survey = survey
        self._view = view
        self._clock = clock
        self._done = done
        self._under_way: set[PartitionKey] = set()
        self._surveyed: list[Surveyed] = []
        self._first: dict[PartitionKey, _FirstAsked] = {}
        self._last: dict[PartitionKey, float] = {}

    def begin(self, group: asyncio.TaskGroup, due: Iterable[LeaderlessPartition]) -> None:
        """Start a survey of each due partition that is not being surveyed. Each survey is a task in `group`."""
        now = self._clock.monotonic()
        for key, partition in due:
            if len(self._under_way) >= SURVEYS_MAX:
                return
            if key not in self._under_way and now >= self._last.get(key, -AGAIN_SECONDS) + AGAIN_SECONDS:
                self._under_way.add(key)
                self._note_first(key, partition, now)
                self._last[key] = now
                group.create_task(self._run(key, partition))

    def elected(
        self, find: Callable[[PartitionKey], Versioned[PartitionRecord] | None], patience_seconds: float
    ) -> list[PartitionWrite]:
        """Return the elections that follow from completed surveys, and drop these surveys.

        `find` returns the current record of a partition. Replicas that did not answer are surveyed again for
        `patience_seconds`.
        """
        surveyed, self._surveyed = self._surveyed, []
        now, writes = self._clock.monotonic(), []
        for each in surveyed:
            found, silent = find(each.key), each.silent(self._view())
            if found is None or found.mod_revision != each.partition.mod_revision:
                self._drop(each.key)
            elif silent and now < self._asked_last(each.key, silent, now) + patience_seconds:
                _log.warning("unclean election waits for a replica", **_named(each.key), silent=silent)
            elif (write := self.election(each)) is not None:
                self._drop(each.key)
                writes.append(write)
        return writes

    def election(self, surveyed: Surveyed, *, forced: bool = False) -> PartitionWrite | None:
        """Return the write that elects the replica with the longest reported log, or None if no replica can lead.

        `forced` means that an operator accepts the current answers, even if the partition record is marked `restored`
        and otherwise requires all replicas.
        """
        view, record = self._view(), surveyed.partition.value
        if has_live_leader(record, view.brokers):
            return None
        if forced:
            record = msgspec.structs.replace(record, restored=False)
        ends = surveyed.answered(view)
        elected = elect_unclean(surveyed.key, record, view, ends)
        if elected is None:
            return None
        assert elected.leader is not None, "an election installs a leader"
        _log.warning(
            "unclean election",
            **_named(surveyed.key),
            leader=elected.leader.broker,
            leader_epoch=elected.leader_epoch,
            ends={broker: (end.epoch, end.end_offset) for broker, end in ends.items()},
            silent=surveyed.silent(view),
        )
        return PartitionWrite(surveyed.key, surveyed.partition.mod_revision, elected, elects=True)

    async def survey(self, key: PartitionKey, partition: Versioned[PartitionRecord]) -> Surveyed:
        """Ask all registered replicas for the ends of their logs, and wait for the answers."""
        brokers = self._view().brokers
        asked = {
            replica.broker: broker_epoch(brokers[replica.broker])
            for replica in partition.value.replicas
            if replica.broker in brokers
        }
        return Surveyed(key, partition, asked, await self._survey(key, list(asked)))

    def forget(self) -> None:
        """Drop all surveys when a term begins, because another controller may have held the previous term."""
        for kept in (self._surveyed, self._first, self._last):
            kept.clear()

    def _note_first(self, key: PartitionKey, partition: Versioned[PartitionRecord], now: float) -> None:
        """Record when each incarnation was first asked for its log end in this version of the partition record."""
        known = self._first.get(key)
        if known is None or known.revision != partition.mod_revision:
            known = self._first[key] = _FirstAsked(partition.mod_revision, {})
        replicas = [replica.broker for replica in partition.value.replicas]
        known.at = {
            incarnation: known.at.get(incarnation, now) for incarnation in self._incarnations(replicas)
        }

    def _asked_last(self, key: PartitionKey, brokers: Sequence[BrokerId], now: float) -> float:
        """Return the time at which the last of these replicas was first surveyed.

        A restarted replica gets the full delay.
        """
        known = self._first.get(key)
        at = {} if known is None else known.at
        return max(at.get(incarnation, now) for incarnation in self._incarnations(brokers))

    def _incarnations(self, brokers: Iterable[BrokerId]) -> list[tuple[BrokerId, BrokerEpoch]]:
        registered = self._view().brokers
        return [(broker, broker_epoch(registered[broker])) for broker in brokers if broker in registered]

    def _drop(self, key: PartitionKey) -> None:
        self._first.pop(key, None)
        self._last.pop(key, None)

    async def _run(self, key: PartitionKey, partition: Versioned[PartitionRecord]) -> None:
        try:
            surveyed = await self.survey(key, partition)
            self._surveyed.append(surveyed)
        finally:
            self._under_way.discard(key)
            self._done()


@dataclass(slots=True)
class _FirstAsked:
    """Times of the first surveys of a partition's replicas since the partition record was written."""

    revision: Revision
    """Revision of the partition record."""
    at: dict[tuple[BrokerId, BrokerEpoch], float]
    """Time of the first survey by incarnation. A restarted broker may need the full delay again until it can answer."""


def _named(key: PartitionKey) -> dict[str, object]:
    return {"topic_id": key.topic_id, "partition": key.partition}
