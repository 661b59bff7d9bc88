"""Transactions of the controller that write many partition records, guarded by compares.

`controlling` runs these transactions. All functions are pure (protocol section 3, rule 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fairlead_api.identifiers import Revision
from fairlead_broker.controller.term import ControllerTerm
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.records import PartitionRecord, encode
from fairlead_broker.registry.store_writes import Put, Transaction, created_at, unchanged_since


@dataclass(frozen=True, slots=True)
class PartitionWrite:
    """A new partition record, and the mod revision of the record that it replaces."""

    key: PartitionKey
    revision: Revision
    record: PartitionRecord
    elects: bool = False
    """Whether the write installs a leader."""


def write_partitions(term: ControllerTerm, writes: Sequence[PartitionWrite]) -> Transaction:
    """Return the transaction that writes all records; at most 60 records are allowed.

    The transaction compares the term, the mod revision of every partition, and the registration of every installed
    leader.
    """
    keys = [term.keys.partition(write.key.topic_id, write.key.partition) for write in writes]
    leaders = {
        write.record.leader.broker: write.record.leader.broker_epoch
        for write in writes
        if write.record.leader is not None
    }
    return Transaction(
        compares=(
            term.guard,
            *(created_at(term.keys.broker(broker), epoch) for broker, epoch in sorted(leaders.items())),
            *(unchanged_since(key, write.revision) for key, write in zip(keys, writes, strict=True)),
        ),
        success=tuple(Put(key, encode(write.record)) for key, write in zip(keys, writes, strict=True)),
    )
