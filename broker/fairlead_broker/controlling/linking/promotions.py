"""Promotions of mirrors: the controller runs the steps that `links.switching` decides (rules L18, L19).

Only the topic record states how far a promotion has progressed. A controller that takes over learns everything else
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec
import structlog

from fairlead_api.bodies.links import HandOverRequest
from fairlead_api.identifiers import LeaderEpoch, Offset, PartitionIndex, TopicIdPartition
from fairlead_api.problems import ProblemError
from fairlead_broker.clock import Clock
from fairlead_broker.controller.partition_writes import PartitionWrite, write_partitions
from fairlead_broker.controller.term import portions
from fairlead_broker.controlling.topic_completion import HeldTerm, required_term
from fairlead_broker.coordination.mirror import Mirror
from fairlead_broker.coordination.protocol import Coordination
from fairlead_broker.links.eras import first_of_next_era
from fairlead_broker.links.switching import CopiedTo, Known, SwitchStep, is_beyond, next_switch_step
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import Era, MirrorOf, MirrorState, TopicRecord, encode
from fairlead_broker.registry.store_writes import Put, Transaction, unchanged_since
from fairlead_broker.sources.source_cluster import SourceCluster, SourceUnreachable

MirrorEnds: TypeAlias = Callable[[Sequence[TopicIdPartition]], Awaitable[Mapping[TopicIdPartition, CopiedTo]]]
"""Function that asks the leaders of mirrors for the ends of their committed records."""
CopyGroups: TypeAlias = Callable[[str], Awaitable[None]]
"""Function that copies the committed offsets of groups for the mirrors of a link."""

FAILOVER_SECONDS: Final = 5.0
"""Seconds after which a failover no longer waits for the source to hand a topic over."""
HAND_OVER_SECONDS_MAX: Final = 10.0
"""Maximum number of seconds of one attempt at a planned hand-over, which delays the other promotions of the link."""
PARTITIONS_MAX: Final = 40
"""Maximum number of partition records in one transaction, which also compares the registration of each leader."""

_log = structlog.get_logger("fairlead.links")


@dataclass(slots=True)
class _Learned:
    """Facts about the promotion of one topic in one state."""

    since: int
    """Mod revision of the topic record; facts about an earlier state are not used."""
    source_ends: Mapping[PartitionIndex, CopiedTo] | None = None
    groups_copied: bool = False


@dataclass(slots=True)
class Promotions:
    """Runner of the promotions during this broker's term."""

    coordination: Coordination
    mirror: Mirror
    term: HeldTerm
    ends: MirrorEnds
    addresses: Callable[[], Sequence[str]]
    """Function that returns the base URLs of this cluster, for clients of a source that is handed over."""
    committing: asyncio.Lock
    """Lock that is held while copied offsets of groups are committed."""
    clock: Clock
    observe: Callable[[str, float], None]
    """Function that records, for a link, the seconds for which no cluster accepted records of a promoted topic."""
    learned: dict[str, _Learned] = field(default_factory=dict)
    handed_over_at: dict[str, dict[str, float]] = field(default_factory=dict)
    """Time at which this broker noticed each hand-over that is not finished, by link and topic."""

    def notice(self, link: str, states: Mapping[str, MirrorState]) -> None:
        """Remember when the hand-overs of a link began. `states`: states of its unfinished promotions by topic."""
        now, known = self.clock.monotonic(), self.handed_over_at.get(link, {})
        self.handed_over_at[link] = {
            name: known.get(name, now)
            for name, state in states.items()
            if name in known or state is MirrorState.HANDING_OVER
        }

    def forget(self, link: str) -> None:
        """Drop the facts about a link that this broker no longer works on."""
        self.handed_over_at.pop(link, None)

    async def advance(
        self, name: str, source: Callable[[], Awaitable[SourceCluster]], copy_groups: CopyGroups
    ) -> bool:
        """Run the steps of one topic that are possible now; return whether the topic is still waiting.

        Raises `ProblemError`, `SourceUnreachable` and `CoordinationError`. A source that does not answer delays the
        call for a limited time, and a failover only until the time for the hand-over has passed.
        """
        while True:
            topic = self.mirror.metadata.topics.get(name)
            if topic is None or topic.value.mirror is None:
                self.learned.pop(name, None)
                return False
            learned = self.learned.get(name)
            if learned is None or learned.since != topic.mod_revision:
                learned = self.learned[name] = _Learned(topic.mod_revision)
            left = self._seconds_left(name, topic.value.mirror)
            known = await self._known(topic, learned, is_overdue=left is not None and left <= 0)
            step = next_switch_step(topic.value.mirror.state, known)
            match step:
                case None:
                    self.learned.pop(name, None)
                    return False
                case SwitchStep.WAIT:
                    if is_beyond(known):
                        learned.source_ends = None
                    return True
                case SwitchStep.HAND_OVER:
                    seconds = HAND_OVER_SECONDS_MAX if left is None else left
                    async with _at_most(seconds):
                        if not await self._hand_over(topic, learned, await source()):
                            return True
                case SwitchStep.COPY_GROUPS:
                    async with _at_most(left):
                        await copy_groups(topic.value.mirror.link)
                    learned.groups_copied = True
                case SwitchStep.BEGIN_PROMOTION:
                    async with self.committing:
                        await self._write(name, topic, step)
                case _:
                    await self._write(name, topic, step)

    def _seconds_left(self, name: str, mirror: MirrorOf) -> float | None:
        """Return the seconds for which a failover still waits for the source; None for a planned promotion."""
        if not mirror.failover or mirror.state is not MirrorState.HANDING_OVER:
            return None
        now = self.clock.monotonic()
        return self.handed_over_at.get(mirror.link, {}).get(name, now) + FAILOVER_SECONDS - now

    async def _known(self, topic: Versioned[TopicRecord], learned: _Learned, *, is_overdue: bool) -> Known:
        record = topic.value
        assert record.mirror is not None, "only mirrors are promoted"
        partitions = self.mirror.metadata.partitions(record.topic_id)
        ends: dict[PartitionIndex, CopiedTo] = {}
        if record.mirror.state is MirrorState.HANDING_OVER and learned.source_ends is not None:
            found = await self.ends([TopicIdPartition(record.topic_id, index) for index in partitions])
            ends = {key.partition: end for key, end in found.items()}
        era = record.mirror.era
        return Known(
            source_ends=learned.source_ends,
            mirror_ends=ends,
            groups_copied=learned.groups_copied,
            is_overdue=is_overdue,
            era=era,
            partitions_without_era=sum(each.value.leader_epoch < (era or 0) for each in partitions.values()),
        )

    async def _hand_over(
        self, topic: Versioned[TopicRecord], learned: _Learned, source: SourceCluster
    ) -> bool:
        """Hand the topic over; return whether the log ends of the source are final."""
        assert topic.value.mirror is not None, "only mirrors are promoted"
        cluster = self.mirror.metadata.cluster
        assert cluster is not None, "a running broker knows its cluster"
        request = HandOverRequest(cluster_id=cluster.value.cluster_id, bootstrap=list(self.addresses()))
        name = topic.value.mirror.source_name
        if (found := (await source.topic(name)).topic_id) != topic.value.topic_id:
            raise ProblemError(
                "topic_recreated",
                f"topic {name} was created again in the source and has the topic id {found}",
                data={"topic": name, "expected": str(topic.value.topic_id), "actual": found},
            )
        answer = await source.hand_over(name, request)
        if not all(each.is_final for each in answer.partitions):
            return False
        learned.source_ends = {
            PartitionIndex(each.partition): CopiedTo(
                Offset(each.end_offset), None if each.last_epoch is None else LeaderEpoch(each.last_epoch)
            )
            for each in answer.partitions
        }
        return True

    async def _write(self, name: str, topic: Versioned[TopicRecord], step: SwitchStep) -> None:
        """Write the next state of a promotion."""
        record, metadata = topic.value, self.mirror.metadata
        mirror = record.mirror
        assert mirror is not None, "only mirrors are promoted"
        term = required_term(self.term)
        match step:
            case SwitchStep.BEGIN_PROMOTION:
                mirror = msgspec.structs.replace(mirror, state=MirrorState.PROMOTING)
                await self._put(name, topic, msgspec.structs.replace(record, mirror=mirror))
            case SwitchStep.CHOOSE_ERA:
                mirror = msgspec.structs.replace(mirror, era=self._next_era(name, record))
                await self._put(name, topic, msgspec.structs.replace(record, mirror=mirror))
            case SwitchStep.BEGIN_ERAS:
                era = mirror.era
                assert era is not None, "an era is chosen before it begins"
                writes = [
                    PartitionWrite(
                        PartitionKey(record.topic_id, index),
                        each.mod_revision,
                        msgspec.structs.replace(each.value, leader_epoch=era, gap=None),
                    )
                    for index, each in metadata.partitions(record.topic_id).items()
                    if each.value.leader_epoch < era
                ]
                for portion in portions(writes, PARTITIONS_MAX):
                    await self._run(write_partitions(term, portion))
            case SwitchStep.FINISH:
                era = mirror.era
                cluster = metadata.cluster
                assert era is not None, "an era is chosen before it begins"
                assert cluster is not None, "a running broker knows its cluster"
                eras = (*(record.eras or ()), Era(epoch=era, cluster_id=cluster.value.cluster_id))
                await self._put(name, topic, msgspec.structs.replace(record, mirror=None, eras=eras))
                _log.info("mirror promoted", topic=name, era=era)
                if (since := self.handed_over_at.get(mirror.link, {}).get(name)) is not None:
                    self.observe(mirror.link, self.clock.monotonic() - since)
            case _:
                raise AssertionError(step)

    def _next_era(self, name: str, record: TopicRecord) -> LeaderEpoch:
        partitions = self.mirror.metadata.partitions(record.topic_id)
        # The epoch of each partition record is above every epoch of the partition's log (rule L8).
        epochs = [each.value.leader_epoch for each in partitions.values()]
        era = first_of_next_era(*epochs, *(each.epoch for each in record.eras or ()))
        if era is None:
            raise ProblemError("not_possible_now", f"topic {name} was promoted too often: no era is left")
        return era

    async def _put(self, name: str, topic: Versioned[TopicRecord], record: TopicRecord) -> None:
        key = self.mirror.metadata.keys.topic(name)
        compares = (required_term(self.term).guard, unchanged_since(key, topic.mod_revision))
        await self._run(Transaction(compares, (Put(key, encode(record)),)))

    async def _run(self, transaction: Transaction) -> None:
        """Run a transaction, and wait until the mirror shows its effect or the conflicting write."""
        result = await self.coordination.transact(transaction.compares, transaction.success)
        await self.mirror.wait_for(result.revision)


@asynccontextmanager
async def _at_most(seconds: float | None) -> AsyncIterator[None]:
    """Limit the time of calls to the source. Raises `SourceUnreachable` when it has passed; None means no limit."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        msg = f"the source did not answer within {seconds:.0f} seconds"
        raise SourceUnreachable(msg) from error
