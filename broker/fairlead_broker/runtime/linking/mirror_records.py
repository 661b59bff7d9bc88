"""Writes of partition records by the leaders of mirrors: higher leader epochs, and gaps (rules L8, L13, L14).

A write compares the topic's key, so that no leader raises an epoch after the promotion of its topic has begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec

from fairlead_api.identifiers import LeaderEpoch, Offset, TopicIdPartition
from fairlead_broker.coordination.membership import Incarnation
from fairlead_broker.coordination.mirror import Mirror
from fairlead_broker.coordination.protocol import Coordination, CoordinationError
from fairlead_broker.links.gaps import widened
from fairlead_broker.registry.records import MirrorState, encode
from fairlead_broker.registry.store_writes import Compare, Put, created_at, unchanged_since

PARTITIONS_MAX: Final = 40
"""Maximum number of partitions in one transaction, which has up to two compares for each partition."""
RETRY_SECONDS: Final = 1.0
COPIES: Final = (MirrorState.MIRRORING, MirrorState.HANDING_OVER)
"""States of a mirror in which its leaders fetch."""


class MirrorRecords:
    """Writer of the partition records of mirrors that this broker leads."""

    def __init__(self, coordination: Coordination, mirror: Mirror, incarnation: Incarnation) -> None:
        self._coordination = coordination
        self._mirror = mirror
        self._incarnation = incarnation

    async def raise_epochs(self, wanted: Mapping[TopicIdPartition, LeaderEpoch]) -> None:
        """Write the records of partitions that this broker leads in a lower epoch; return once the mirror shows them.

        A record that another broker has changed at the same time is left unchanged. Raises `CoordinationError`.
        """
        keys = list(wanted)
        for start in range(0, len(keys), PARTITIONS_MAX):
            await self._raise({key: wanted[key] for key in keys[start : start + PARTITIONS_MAX]})

    async def raise_until_changed(self, key: TopicIdPartition) -> None:
        """Write the next epoch of a partition, and retry until the mirror shows another epoch or another leader."""
        standing = self._mirror.metadata.partitions(key.topic_id).get(key.partition)
        if standing is None:
            return
        before = standing.value.leader_epoch
        while self._leads(key) == before:
            try:
                await self.raise_epochs({key: LeaderEpoch(before + 1)})
            except CoordinationError:
                # No event announces that the store answers again.
                await asyncio.sleep(RETRY_SECONDS)  # noqa: TID251

    async def note_loss(self, key: TopicIdPartition, first: Offset, end: Offset, *, skipped: bool) -> bool:
        """Write that a partition will lack the records from `first` up to `end`; return whether its record says so.

        The caller drops or skips records only after a write that succeeded. Raises `CoordinationError`.
        """
        metadata, topic = self._mirror.metadata, self._mirror.metadata.topic_by_id(key.topic_id)
        if self._leads(key) is None or topic is None or topic.value.mirror is None:
            return False
        link = metadata.links.get(topic.value.mirror.link)
        if link is None:
            return False
        record = metadata.partitions(key.topic_id)[key.partition]
        gap = widened(record.value.gap, first, end, skipped=skipped, after=link.value.acknowledgements)
        if gap == record.value.gap:
            return True
        at = metadata.keys.partition(key.topic_id, key.partition)
        result = await self._coordination.transact(
            (
                created_at(metadata.keys.broker(self._incarnation.broker), self._incarnation.epoch),
                unchanged_since(at, record.mod_revision),
            ),
            [Put(at, encode(msgspec.structs.replace(record.value, gap=gap)))],
        )
        await self._mirror.wait_for(result.revision)
        return result.succeeded

    def _leads(self, key: TopicIdPartition) -> LeaderEpoch | None:
        """Return the leader epoch in which this broker may copy a partition; None if it may not."""
        topic = self._mirror.metadata.topic_by_id(key.topic_id)
        record = self._mirror.metadata.partitions(key.topic_id).get(key.partition)
        own = self._incarnation
        if (
            topic is None
            or topic.value.mirror is None
            or topic.value.mirror.state not in COPIES
            or record is None
            or record.value.leader is None
            or (record.value.leader.broker, record.value.leader.broker_epoch) != (own.broker, own.epoch)
        ):
            return None
        return record.value.leader_epoch

    async def _raise(self, wanted: Mapping[TopicIdPartition, LeaderEpoch]) -> None:
        metadata, own = self._mirror.metadata, self._incarnation
        compares: dict[Compare, None] = {created_at(metadata.keys.broker(own.broker), own.epoch): None}
        puts = []
        for key, epoch in wanted.items():
            standing = self._leads(key)
            if standing is None or standing >= epoch:
                continue
            name, topic = metadata.topic_name(key.topic_id), metadata.topic_by_id(key.topic_id)
            assert name is not None, "a partition that is led has a topic"
            assert topic is not None, "a partition that is led has a topic"
            record = metadata.partitions(key.topic_id)[key.partition]
            at = metadata.keys.partition(key.topic_id, key.partition)
            compares[unchanged_since(metadata.keys.topic(name), topic.mod_revision)] = None
            compares[unchanged_since(at, record.mod_revision)] = None
            puts.append(Put(at, encode(msgspec.structs.replace(record.value, leader_epoch=epoch))))
        if puts:
            result = await self._coordination.transact(tuple(compares), puts)
            await self._mirror.wait_for(result.revision)
            if not result.succeeded and len(puts) > 1:
                for key, epoch in wanted.items():
                    await self._raise({key: epoch})
