"""The values of `producers/...`: which producer ids are given out, and whom a producer's name stands for.

Read and written by the registry of producers in `coordination`. Not mirrored: nothing is decided by them on a hot path.
Pure.
"""

from __future__ import annotations

from fairlead_api.identifiers import ProducerEpoch, ProducerId, TimestampUs
from fairlead_broker.registry.records import Count, Record


class ProducerIdsRecord(Record, frozen=True, kw_only=True):
    """`producers/next-id`."""

    next_id: Count
    """Every id below it is given out to a broker, in blocks."""


class ProducerNameRecord(Record, frozen=True, kw_only=True):
    """`producers/names/<name>`."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    """The newest epoch that was given out; batches of lower ones are fenced where a higher one has written."""
    used_us: TimestampUs
    """When the name was last asked for, or its producer was last seen writing."""
