"""The rule that derives the eligible leader replicas (elr) from the in-sync replicas (isr).

The leader and the controller use this module for every write of a partition record that changes `isr` or `min_isr`
(protocol section 4, rule 6; modelled on KIP-966). The module is pure.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from fairlead_api.identifiers import BrokerId
from fairlead_broker.registry.generations import with_next_generation
from fairlead_broker.registry.quorum import without_voter
from fairlead_broker.registry.records import InSync, PartitionRecord


def with_isr(
    record: PartitionRecord,
    *,
    isr: tuple[InSync, ...],
    min_isr: int,
    leaving: Collection[BrokerId] = (),
    quarantined: Collection[BrokerId] = (),
) -> PartitionRecord:
    """Return the partition record with a changed isr or min_isr, and with the resulting elr.

    `leaving`: brokers that are removed from `replicas`. Stopping brokers that keep their replicas are not included,
    since they join the elr. `quarantined`: brokers that do not trust the bytes of their replica.
    """
    elr: tuple[InSync, ...] = ()
    if len(isr) < min_isr:
        out = {entry.broker for entry in isr}.union(leaving, quarantined)
        elr = tuple(entry for entry in (*record.isr, *record.elr) if entry.broker not in out)
    assert isr or elr, "isr and elr are never empty together"
    return msgspec.structs.replace(record, isr=isr, min_isr=min_isr, elr=elr)


def taken_out(
    record: PartitionRecord, broker: BrokerId, directory: str | None = None
) -> PartitionRecord | None:
    """Return the partition record without a broker that is about to drop its replica or distrusts its bytes.

    The broker is removed from isr, elr and leadership (protocol section 2), and its replica starts a new
    generation, so that no earlier report from the replica counts. `directory` is the replica's current directory.
    The returned record names this directory, since a generation applies only to the directory that the record names.
    Returns None if isr and elr would be empty, or if too few voters would remain in a partition with a quorum. If the
    result is None, the broker must keep every byte.
    """
    if record.quorum is not None:
        return without_voter(record, broker, directory)
    isr = tuple(entry for entry in record.isr if entry.broker != broker)
    elr = tuple(entry for entry in record.elr if entry.broker != broker)
    if not isr and not elr:
        return None
    if len(isr) < len(record.isr):
        record = with_isr(record, isr=isr, min_isr=record.min_isr, quarantined=(broker,))
    else:
        record = msgspec.structs.replace(record, elr=elr)
    return msgspec.structs.replace(
        record,
        leader=None if record.leader is not None and record.leader.broker == broker else record.leader,
        replicas=with_next_generation(record.replicas, broker, directory),
    )
