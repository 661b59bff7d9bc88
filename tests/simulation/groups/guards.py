"""Rules of a coordinator's shell (the code around the pure package), each in a function so that it can be dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead_api.identifiers import PartitionIndex
from fairlead_api.problems import ProblemError
from fairlead_broker.groups import Group
from groups.keys import coordinator_key
from groups.messages import Commit, Partition
from simulator.broker import own_registration
from simulator.store import Compare, Item, broker_key

if TYPE_CHECKING:
    from groups.broker import Broker
    from groups.coordinator import Coordinator


def claim(group: str, found: Item | None, broker: Broker) -> tuple[Compare, ...]:
    """Return compares that hold if the claim, the claimant and the absence of the holder have not changed."""
    compares = [
        Compare(coordinator_key(group), 0 if found is None else found.mod_revision),
        *own_registration(broker.number, broker.epoch),
    ]
    if found is not None and found.value.broker != broker.number:
        holder = broker.mirror.brokers.get(found.value.broker)
        revision = 0 if holder is None else holder.create_revision
        compares.append(Compare(broker_key(found.value.broker), revision, created=True))
    return tuple(compares)


def claimed(group: str, revision: int) -> tuple[Compare, ...]:
    """Return compares that hold until the group is claimed again, even by the writer."""
    return (Compare(coordinator_key(group), revision),)


def may_answer(broker: Broker) -> bool:
    """Return whether an answer is current: no other broker can have taken over the group."""
    return broker.leased


def sessions_begin(coordinator: Coordinator) -> float:
    """Return the time at which the sessions of a loaded group begin: the time of loading."""
    return coordinator.broker.world.now


def in_doubt(coordinator: Coordinator) -> None:
    """After a write with an unknown outcome, continue under a new claim, which makes that write fail."""
    coordinator.drop()


def check_commit(coordinator: Coordinator, commit: Commit) -> list[Partition]:
    """Return the partitions that may be committed; raise an error if the member is unknown or in another epoch."""
    assert coordinator.group is not None, "loaded"
    coordinator.group.check_commit(commit.member_id, commit.member_epoch)
    return [each for each in commit.offsets if _has(coordinator.group, commit.member_id, each)]


def _has(group: Group, member_id: str, partition: Partition) -> bool:
    try:
        group.check_committed_partition(member_id, partition[0], PartitionIndex(partition[1]))
    except ProblemError:
        return False
    return True
