"""The role of this broker in a partition record: leader, follower, or neither."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead_api.identifiers import BrokerEpoch, BrokerId, LeaderEpoch
from fairlead_broker.coordination.membership import Incarnation
from fairlead_broker.registry.generations import generation_in
from fairlead_broker.registry.records import PartitionRecord, Replica


@dataclass(frozen=True, slots=True)
class Following:
    """Follower role: the leader that a broker follows in a partition, and the broker's own replica.

    A change to any of these fields starts a new follower.
    """

    leader: BrokerId
    leader_epoch: LeaderEpoch
    broker: BrokerId
    """Id of the follower broker."""
    broker_epoch: BrokerEpoch
    """Epoch of the follower broker's incarnation."""
    generation: int
    """Generation of the follower broker's replica."""


class Roles:
    """Roles that partition records give to this broker in its current incarnation."""

    def __init__(self, incarnation: Incarnation, directory: str) -> None:
        """`directory`: id of the data directory."""
        self._incarnation = incarnation
        self._directory = directory

    def own_replica(self, record: PartitionRecord) -> Replica | None:
        """Return this broker's replica in a partition record; None if the broker has no replica."""
        return next((each for each in record.replicas if each.broker == self._incarnation.broker), None)

    def leads(self, record: PartitionRecord) -> bool:
        """Return whether a partition record makes this broker the leader in its current broker epoch (rule 4.1)."""
        leader = record.leader
        return leader is not None and (leader.broker, leader.broker_epoch) == (
            self._incarnation.broker,
            self._incarnation.epoch,
        )

    def following(self, record: PartitionRecord) -> Following | None:
        """Return the follower role that a partition record gives to this broker.

        The result is None if the partition has no leader, or if the leader is this broker in this or an earlier
        incarnation.
        """
        replica = self.own_replica(record)
        if replica is None or record.leader is None or record.leader.broker == self._incarnation.broker:
            return None
        return Following(
            record.leader.broker,
            record.leader_epoch,
            self._incarnation.broker,
            self._incarnation.epoch,
            generation_in(replica, self._directory),
        )
