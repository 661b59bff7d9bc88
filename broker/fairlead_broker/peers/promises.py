"""Messages of the peer call for promises: requests about vacancies, and the answers of replicas (quorum Q6)."""

from __future__ import annotations

import msgspec

from fairlead_api.identifiers import BrokerEpoch, LeaderEpoch, Offset, Revision
from fairlead_broker.peers.messages import Count, PeerPartition


class PromiseAsked(PeerPartition, frozen=True, kw_only=True):
    """Request for a promise about one vacancy."""

    leader_epoch: LeaderEpoch
    """Leader epoch of the vacancy."""
    revision: Revision
    """Mod revision of the partition record with the vacancy."""


class PromisesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request for the promises of a broker's replicas."""

    partitions: list[PromiseAsked]


class PromiseGiven(PeerPartition, frozen=True, kw_only=True):
    """A replica's promise to take no further part in leader epochs below the vacancy's, with the end of its log."""

    broker_epoch: BrokerEpoch
    """Incarnation of the broker that answers."""
    directory: str
    generation: Count
    leader_epoch: LeaderEpoch
    """Leader epoch of the vacancy."""
    last_epoch: LeaderEpoch | None
    """Leader epoch of the last record, or of the last deleted record of an empty log; None if there was no record."""
    end_offset: Offset
    log_start: Offset


class PromisesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Promises of all replicas that can give a promise."""

    promises: list[PromiseGiven]
