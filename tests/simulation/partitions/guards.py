"""The compares in the writes of a leader, a controller and a replica (protocol section 3, rule 3).

The broker's own shells have the same compares; here each rule is one function that can be dropped alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead_api.identifiers import BrokerId, Revision
from fairlead_broker.registry.records import PartitionRecord
from simulator.store import CONTROLLER, Compare, broker_key, partition_key


def leader_sees_partition(partition: int, revision: int) -> tuple[Compare, ...]:
    """Return a compare that holds if the record has not changed since the leader saw it."""
    return (Compare(partition_key(partition), revision),)


def controller_sees_partition(partition: int, revision: int) -> tuple[Compare, ...]:
    """Return a compare that holds if the record has not changed since the controller saw it."""
    return (Compare(partition_key(partition), revision),)


def added_brokers(added: Iterable[tuple[BrokerId, Revision]]) -> tuple[Compare, ...]:
    """Return compares that hold if the registrations of joining replicas have not changed."""
    return tuple(Compare(broker_key(broker), revision) for broker, revision in added)


def controller_term(revision: int) -> tuple[Compare, ...]:
    """Return a compare that holds during the term."""
    return (Compare(CONTROLLER, revision, created=True),)


def ended_incarnation(broker: int, epoch: int) -> tuple[Compare, ...]:
    """Return a compare that holds if the incarnation whose process has ended is still registered."""
    return (Compare(broker_key(broker), epoch, created=True),)


def installed_leader(record: PartitionRecord) -> tuple[Compare, ...]:
    """Return a compare that holds if the leader of the record is still registered in that incarnation."""
    if record.leader is None:
        return ()
    return (Compare(broker_key(record.leader.broker), record.leader.broker_epoch, created=True),)
