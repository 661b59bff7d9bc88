"""What the writes of a leader, a controller and a replica compare (protocol section 3, rule 3).

The broker's own shells compare the same; here each rule is one function, so that each can be dropped alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead_api.identifiers import BrokerId, Revision
from fairlead_broker.registry.records import PartitionRecord
from simulator.store import CONTROLLER, Compare, broker_key, partition_key


def leader_sees_partition(partition: int, revision: int) -> tuple[Compare, ...]:
    """Hold if the record is still the one that the leader has seen."""
    return (Compare(partition_key(partition), revision),)


def controller_sees_partition(partition: int, revision: int) -> tuple[Compare, ...]:
    """Hold if the record is still the one that the controller has seen."""
    return (Compare(partition_key(partition), revision),)


def added_brokers(added: Iterable[tuple[BrokerId, Revision]]) -> tuple[Compare, ...]:
    """Hold if the registrations by which replicas join have not changed."""
    return tuple(Compare(broker_key(broker), revision) for broker, revision in added)


def controller_term(revision: int) -> tuple[Compare, ...]:
    """Hold as long as the term lasts."""
    return (Compare(CONTROLLER, revision, created=True),)


def installed_leader(record: PartitionRecord) -> tuple[Compare, ...]:
    """Hold if the leader that the record names is still in that incarnation."""
    if record.leader is None:
        return ()
    return (Compare(broker_key(record.leader.broker), record.leader.broker_epoch, created=True),)
