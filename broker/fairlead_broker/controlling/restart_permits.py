"""The cluster's only permit to restart a broker, which is stored in a key with a lease of five minutes.

`operations` uses this module. A rolling restart requests the permit before it restarts each broker. The
controller grants the permit to one broker at a time, if every partition has enough in-sync replicas without that
broker. The permit ends when its broker registers in a later incarnation, when the broker is unregistered, or when
the lease ends.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from fairlead_api.identifiers import BrokerEpoch, BrokerId, PartitionIndex
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.controller.election import Brokers, is_live
from fairlead_broker.controlling import operation_refusals as refusals
from fairlead_broker.controlling.leader_moves import NearVoters
from fairlead_broker.coordination.mirror import Mirror
from fairlead_broker.coordination.partition_index import PartitionsByBroker
from fairlead_broker.coordination.protocol import (
    Coordination,
    CoordinationUnavailable,
    Lease,
    LeaseNotFound,
    UnknownOutcome,
)
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.quorum import members, promises_needed
from fairlead_broker.registry.records import (
    BrokerState,
    InSync,
    PartitionRecord,
    RestartPermitRecord,
    decode,
    encode,
)
from fairlead_broker.registry.store_writes import Delete, Get, KeyValue, Put, created_at, unchanged_since

PERMIT_SECONDS: Final = 300


@dataclass(frozen=True, slots=True)
class RestartPermit:
    """The cluster's only permit to restart a broker."""

    broker: BrokerId
    seconds: int
    """Number of seconds that the permit is valid."""


class RestartPermits:
    """Manager of the restart permit."""

    def __init__(
        self, coordination: Coordination, mirror: Mirror, index: PartitionsByBroker, near: NearVoters
    ) -> None:
        """`near` asks a leader which voters of partitions with a write quorum are near."""
        self._coordination = coordination
        self._metadata = mirror.metadata
        self._index = index
        self._near = near

    async def request(self, broker: BrokerId) -> RestartPermit:
        """Grant the permit to a registered broker, even if the broker already holds it. Raises `restart_refused`."""
        forbidding, quorums = self._forbidding(broker), await self._quorums_forbidding(broker)
        if forbidding or quorums:
            raise refusals.restart_forbidden(broker, forbidding, quorums)
        try:
            return await self._grant(broker)
        except (CoordinationUnavailable, UnknownOutcome) as error:
            detail = f"the coordination store did not answer: {error}"
            raise ProblemError("coordination_unavailable", detail, side_effect=SideEffect.MAYBE) from error

    async def forget(self, broker: BrokerId) -> None:
        """End the permit of a permanently gone broker. If the store does not answer, the permit ends with its lease."""
        key = self._metadata.keys.restart_permit
        with suppress(CoordinationUnavailable, UnknownOutcome):
            [item] = (await self._coordination.transact((), (Get(key),))).reads
            if item is not None and decode(key, item.value, RestartPermitRecord).broker == broker:
                await self._coordination.transact((unchanged_since(key, item.mod_revision),), (Delete(key),))

    def _forbidding(self, broker: BrokerId) -> list[tuple[str, PartitionIndex]]:
        """Return the partitions that prevent the broker's restart until other replicas are in sync."""
        return [
            self._named(key)
            for key in self._index.of_broker(broker)
            if (partition := self._index.find(key)) is not None
            and partition.value.quorum is None
            and _needs(partition.value, broker, self._metadata.brokers)
        ]

    async def _quorums_forbidding(self, broker: BrokerId) -> list[refusals.TooFewNear]:
        """Return the partitions with too few other near voters to acknowledge records and elect a leader (quorum Q15).

        A partition that needs all its replicas never prevents the restart, since waiting would not help.
        """
        found, asked = [], dict[BrokerId, list[tuple[PartitionKey, int]]]()
        for key in self._index.of_broker(broker):
            partition = self._index.find(key)
            if partition is None or partition.value.quorum is None:
                continue
            record = partition.value
            needed = max(partition.value.quorum.write, promises_needed(record))
            if needed >= len(members(record)):
                continue
            if record.leader is None:
                found.append(refusals.TooFewNear(*self._named(key), near=0, needed=needed))
            else:
                asked.setdefault(record.leader.broker, []).append((key, needed))
        answers = await asyncio.gather(
            *(self._near(leader, [key for key, _ in keys]) for leader, keys in asked.items())
        )
        for keys, near in zip(asked.values(), answers, strict=True):
            found += [
                refusals.TooFewNear(*self._named(key), others, needed)
                for key, needed in keys
                if (others := len(near.get(key, frozenset()) - {broker})) < needed
            ]
        return found

    def _named(self, key: PartitionKey) -> tuple[str, PartitionIndex]:
        return (self._metadata.topic_name(key.topic_id) or key.topic_id, key.partition)

    async def _grant(self, broker: BrokerId) -> RestartPermit:
        key = self._metadata.keys.restart_permit
        standing = self._registered(broker)
        seen = await self._coordination.transact((), (Get(key),))
        [item] = seen.reads
        if item is not None:
            holder = decode(key, item.value, RestartPermitRecord)
            if (holder.broker, holder.broker_epoch) == (broker, standing) and await self._renewed(item):
                return RestartPermit(broker, PERMIT_SECONDS)
            if not self._is_back(holder) and holder.broker != broker:
                raise refusals.another_restarts(broker, holder.broker)
        lease = await self._coordination.grant_lease(PERMIT_SECONDS)
        record = RestartPermitRecord(broker=broker, broker_epoch=standing)
        result = await self._coordination.transact(
            (
                unchanged_since(key, item.mod_revision if item else 0),
                created_at(self._metadata.keys.broker(broker), standing),
            ),
            (Put(key, encode(record), lease.lease_id),),
        )
        if not result.succeeded:
            with suppress(LeaseNotFound):
                await self._coordination.revoke(lease)
            raise refusals.another_restarts(broker, broker)
        return RestartPermit(broker, PERMIT_SECONDS)

    async def _renewed(self, permit: KeyValue) -> bool:
        """Extend the permit to its full validity from now. Returns False if the permit has ended."""
        if permit.lease_id is None:
            return False
        try:
            await self._coordination.keep_alive(Lease(permit.lease_id, PERMIT_SECONDS))
        except LeaseNotFound:
            return False
        return True

    def _registered(self, broker: BrokerId) -> BrokerEpoch:
        registered = self._metadata.brokers.get(broker)
        if registered is None:
            raise refusals.broker_not_found(broker)
        return BrokerEpoch(registered.create_revision)

    def _is_back(self, holder: RestartPermitRecord) -> bool:
        """Return whether the permit's holder has restarted."""
        registered = self._metadata.brokers.get(holder.broker)
        return registered is not None and BrokerEpoch(registered.create_revision) != holder.broker_epoch


def _needs(record: PartitionRecord, broker: BrokerId, brokers: Brokers) -> bool:
    """Return whether a partition prevents the broker's restart.

    A partition with no more replicas than its minimum never prevents the restart, since waiting would not help. Any
    other partition below its minimum prevents the restart, because the broker may be the next to catch up.
    """
    in_sync = {entry.broker for entry in record.isr if _stays(entry, brokers)}
    if len(record.replicas) <= record.min_isr or len(in_sync) > record.min_isr:
        return False
    return len(in_sync) < record.min_isr or broker in in_sync


def _stays(entry: InSync, brokers: Brokers) -> bool:
    """Return whether a broker still runs in the incarnation that was in sync, and is not stopping."""
    return is_live(entry, brokers) and brokers[entry.broker].value.state is not BrokerState.STOPPING
