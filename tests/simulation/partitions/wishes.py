"""Requests from operators to the controller: changes of replicas, leaders, min ISRs and durabilities."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import msgspec

from fairlead_broker.controller import reassignment
from fairlead_broker.controller.election import move_leader
from fairlead_broker.controller.partition_changes import ClusterView
from fairlead_broker.registry.isr import with_isr
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.quorum import vacated
from fairlead_broker.registry.records import DurabilityState, PartitionRecord
from partitions.plan import Fault

if TYPE_CHECKING:
    from partitions.world import World


class Wishes:
    """Open requests from operators, at most one of each kind per partition; all are dropped when the faults stop."""

    def __init__(self, world: World) -> None:
        """Start without requests."""
        self._world = world
        self._open: dict[int, set[Fault]] = {}
        self.homes: dict[int, list[int]] = {}
        """Target brokers of a partition's move, drawn at random if not set."""
        self.writes: dict[int, int] = {}
        """Configured write quorums of partitions."""

    def wish(self, partition: int, kind: Fault) -> None:
        """Request a change."""
        self._open.setdefault(partition, set()).add(kind)

    def clear(self) -> None:
        """Drop all requests."""
        self._open.clear()
        self.homes.clear()

    def next_record(
        self, partition: int, key: PartitionKey, item: Versioned[PartitionRecord], view: ClusterView
    ) -> PartitionRecord | None:
        """Return the record that fulfils a request, or None if there is no request or the request must wait."""
        wanted = self._open.get(partition)
        if not wanted:
            return None
        kind = min(wanted, key=lambda each: each.value)
        wanted.discard(kind)
        record, rng = item.value, self._world.schedule.rng
        match kind:
            case Fault.REASSIGN:
                return self._reassigned(partition, key, item, view, rng)
            case Fault.MOVE_LEADER if record.quorum is not None:
                return None if record.leader is None else vacated(record)
            case Fault.CHANGE_MIN_ISR if record.quorum is not None:
                most = len(reassignment.target(record))
                self.writes[partition] = rng.randint(min(most, self._world.plan.min_isr_least), most)
                return None
            case Fault.MOVE_LEADER:
                avoiding = () if record.leader is None else (record.leader.broker,)
                return move_leader(key, record, view.brokers, avoiding)
            case Fault.CHANGE_MIN_ISR:
                least, most = self._world.plan.min_isr_least, len(reassignment.target(record))
                return (
                    with_isr(record, isr=record.isr, min_isr=rng.randint(least, most)) if record.isr else None
                )
            case _:
                return with_durability(record)

    def _reassigned(
        self,
        partition: int,
        key: PartitionKey,
        item: Versioned[PartitionRecord],
        view: ClusterView,
        rng: Random,
    ) -> PartitionRecord | None:
        record = item.value
        if reassignment.is_under_way(record):
            return reassignment.cancel(key, record, view.brokers) if rng.random() < 0.5 else None
        live = sorted(number for number, each in view.brokers.items() if each.value.directories)
        chosen = self.homes.pop(partition, None) or rng.sample(live, min(len(live), len(record.replicas)))
        if len(chosen) < len(record.replicas) or not set(chosen) <= set(live):
            return None
        if set(chosen) == set(reassignment.target(record)):
            return None
        places = [
            reassignment.Target(broker, view.brokers[broker].value.directories[0].id) for broker in chosen
        ]
        return reassignment.start(record, places, item.mod_revision)


def with_durability(record: PartitionRecord) -> PartitionRecord | None:
    """Return the record with the next durability state; the change to `synced` passes through `syncing`."""
    match record.durability:
        case DurabilityState.REPLICATED:
            return msgspec.structs.replace(record, durability=DurabilityState.SYNCING)
        case DurabilityState.SYNCED:
            return msgspec.structs.replace(record, durability=DurabilityState.REPLICATED)
        case _:
            return None
