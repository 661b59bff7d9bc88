"""What the writes of a leader, a controller and a replica compare (protocol section 3, rule 3).

As the broker's own shells do it; kept as one function a rule, so that each can be left out alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead_api.identifiers import BrokerId, Revision
from fairlead_broker.registry.records import PartitionRecord
from simulator.store import CONTROLLER, Compare, broker_key, partition_key


def leader_sees_partition(partition: int, revision: int) -> tuple[Compare, ...]:
    """Hold if nobody else has written the record."""
    return (Compare(partition_key(partition), revision),)


def controller_sees_partition(partition: int, revision: int) -> tuple[Compare, ...]:
    """Hold if nobody else has written the record."""
    return (Compare(partition_key(partition), revision),)


def own_registration(broker: int, epoch: int) -> tuple[Compare, ...]:
    """Hold as long as the writer's life is registered."""
    return (Compare(broker_key(broker), epoch, created=True),)


def added_brokers(added: Iterable[tuple[BrokerId, Revision]]) -> tuple[Compare, ...]:
    """Hold if the registrations by which replicas join are still as they were."""
    return tuple(Compare(broker_key(broker), revision) for broker, revision in added)


def controller_term(revision: int) -> tuple[Compare, ...]:
    """Hold as long as the term lasts."""
    return (Compare(CONTROLLER, revision, created=True),)


def installed_leader(record: PartitionRecord) -> tuple[Compare, ...]:
    """Hold if the leader that the record names is still in that life."""
    if record.leader is None:
        return ()
    return (Compare(broker_key(record.leader.broker), record.leader.broker_epoch, created=True),)
