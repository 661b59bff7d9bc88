"""Messages of the peer call for voters: what the leader of a partition with a write quorum knows about its replicas."""

from __future__ import annotations

import msgspec

from fairlead_api.identifiers import BrokerId, LeaderEpoch, Offset
from fairlead_broker.peers.messages import PeerPartition


class VotersRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request for the voters of partitions that a broker leads."""

    partitions: list[PeerPartition]


class VoterState(msgspec.Struct, frozen=True, kw_only=True):
    """A replica of a partition with a write quorum, as seen by the leader (quorum Q18)."""

    broker: BrokerId
    counted: Offset | None
    """Offset below which the records of the replica count, or None while the replica has not reported."""
    near: bool
    """Whether the replica is a voter with every committed record, and has had every record within the lag time."""
    entry_is_current: bool
    """Whether the partition record names the incarnation in which the replica reports."""


class PartitionVoters(PeerPartition, frozen=True, kw_only=True):
    """The replicas of a partition."""

    leader_epoch: LeaderEpoch
    replicas: list[VoterState]


class VotersAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The requested partitions that the broker leads."""

    partitions: list[PartitionVoters]
