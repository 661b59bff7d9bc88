"""What the shells of a coordinator hold to, one function a rule, so that each can be left out alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead_api.identifiers import BrokerEpoch, PartitionIndex
from fairlead_api.problems import ProblemError
from fairlead_broker.groups import Group
from groups.keys import coordinator_key
from groups.messages import Commit, Partition
from simulator.store import Compare, Item, broker_key

if TYPE_CHECKING:
    from groups.broker import Broker
    from groups.coordinator import Coordinator


def claim(group: str, found: Item | None, broker: Broker) -> tuple[Compare, ...]:
    """Hold if nobody has claimed since, and neither the claimant nor the absence of the holder has changed."""
    compares = [
        Compare(coordinator_key(group), 0 if found is None else found.mod_revision),
        *registration(broker.number, broker.epoch),
    ]
    if found is not None and found.value.broker != broker.number:
        holder = broker.mirror.brokers.get(found.value.broker)
        compares.append(
            Compare(
                broker_key(found.value.broker), 0 if holder is None else holder.create_revision, created=True
            )
        )
    return tuple(compares)


def claimed(group: str, revision: int) -> tuple[Compare, ...]:
    """Hold as long as nobody has claimed the group anew, the writer itself included."""
    return (Compare(coordinator_key(group), revision),)


def registration(broker: int, epoch: BrokerEpoch) -> tuple[Compare, ...]:
    """Hold as long as the writer's life is registered."""
    return (Compare(broker_key(broker), epoch, created=True),)


def may_answer(broker: Broker) -> bool:
    """Say whether nobody can have taken over: what is answered now was true a moment ago."""
    return broker.leased


def sessions_begin(coordinator: Coordinator) -> float:
    """Say since when members of a loaded group count as heard of: from now on, whatever was before."""
    return coordinator.broker.world.now


def in_doubt(coordinator: Coordinator) -> None:
    """Go on after a write of which nobody knows: under a new claim, which that write does not outlive."""
    coordinator.drop()


def check_commit(coordinator: Coordinator, commit: Commit) -> list[Partition]:
    """Return the partitions that may be committed; raise where the member is none, or not in this epoch."""
    assert coordinator.group is not None, "loaded"
    coordinator.group.check_commit(commit.member_id, commit.member_epoch)
    return [each for each in commit.offsets if _has(coordinator.group, commit.member_id, each)]


def _has(group: Group, member_id: str, partition: Partition) -> bool:
    try:
        group.check_committed_partition(member_id, partition[0], PartitionIndex(partition[1]))
    except ProblemError:
        return False
    return True
