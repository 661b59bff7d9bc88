"""Changes to the voters, the members and the write quorum of a partition (quorum Q9).

`QuorumLeader` calls this module to derive the next partition record. One rule covers every change: the return of a
restarted or emptied replica, a reassignment, and a different write quorum. The new record is allowed only if W of its
voters have every record that may already be committed. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from fairlead_api.identifiers import BrokerEpoch, BrokerId, Offset, Revision
from fairlead_broker.registry.quorum import members, write_quorum
from fairlead_broker.registry.records import InSync, PartitionRecord, Quorum, Replica

Counted: TypeAlias = Callable[[InSync], Offset | None]
"""Function that returns the offset up to which a voter's records count (quorum Q2); None without a report."""


@dataclass(frozen=True, slots=True)
class Returning:
    """A follower that has fetched in this leader epoch and is registered in the incarnation that it reported."""

    broker_epoch: BrokerEpoch
    counted: Offset
    revision: Revision
    """Mod revision of the registration, which the write compares."""
    replica: Replica
    """Replica in its registered directory, including its generation."""


@dataclass(frozen=True, slots=True)
class VoterChange:
    """The next partition record, and the registrations that its write compares."""

    record: PartitionRecord
    added: tuple[tuple[BrokerId, Revision], ...]


def held(quorum: Quorum, counted: Counted) -> Offset | None:
    """Return the offset below which W voters have every record, or None while too few voters have reported."""
    offsets = [offset for voter in quorum.voters if (offset := counted(voter)) is not None]
    if len(offsets) < quorum.write:
        return None
    offsets.sort(reverse=True)
    return offsets[quorum.write - 1]


def holds(quorum: Quorum, counted: Counted, promised: Offset) -> bool:
    """Return whether W of the voters have every record that may already be committed."""
    offset = held(quorum, counted)
    return offset is not None and offset >= promised


def next_voters(
    record: PartitionRecord,
    leader: BrokerId,
    returning: Mapping[BrokerId, Returning],
    counted: Counted,
    promised: Offset,
    write_wanted: int | None,
    *,
    may_change_members: bool,
) -> VoterChange | None:
    """Return the record with every change that quorum Q9 allows now, or None if no change is due or allowed.

    `promised` is the greater of the high watermark and the start of the leader's epoch. `may_change_members` states
    whether the high watermark is known. `write_wanted` is the configured write quorum, or None for a majority.
    """
    quorum = record.quorum
    assert quorum is not None, "only a partition with a quorum has voters"
    entries = {voter.broker: voter.broker_epoch for voter in quorum.voters}
    changed, added = record, dict[BrokerId, Revision]()

    def is_allowed(wanted: PartitionRecord) -> bool:
        assert wanted.quorum is not None, "the record keeps its quorum"
        return holds(wanted.quorum, counted, promised)

    # All replicas return in one write: a replica's earlier incarnation sends no more reports, so a return never lowers
    # the offset that W voters have, and with W = N that offset may only be reached if several replicas return together.
    joining = {
        broker: each
        for broker, each in returning.items()
        if broker in members(record) and entries.get(broker) != each.broker_epoch
    }
    wanted = _with_voters(changed, joining)
    if joining and is_allowed(wanted):
        changed = wanted
        added.update((broker, each.revision) for broker, each in joining.items())
    if may_change_members:
        moved = _reassigned(changed, leader, returning, promised)
        if moved is not None and is_allowed(moved):
            added.update((broker, returning[broker].revision) for broker in changed.adding)
            changed = moved
        wanted = _with_write(changed, write_wanted)
        if is_allowed(wanted):
            changed = wanted
    return None if changed == record else VoterChange(changed, tuple(sorted(added.items())))


def is_settled(
    record: PartitionRecord, live: Mapping[BrokerId, BrokerEpoch], write_wanted: int | None
) -> bool:
    """Return whether no follower in `live` could return, and neither a reassignment nor a new write quorum is due."""
    quorum = record.quorum
    assert quorum is not None, "only a partition with a quorum has voters"
    if record.adding or record.removing:
        return False
    entries = {voter.broker: voter.broker_epoch for voter in quorum.voters}
    if any(entries.get(broker) != epoch for broker, epoch in live.items()):
        return False
    return quorum.write == write_quorum(write_wanted, len(record.replicas))


def _with_voters(record: PartitionRecord, joining: Mapping[BrokerId, Returning]) -> PartitionRecord:
    """Return the record with the entries, directories and generations of joining replicas."""
    quorum = record.quorum
    assert quorum is not None, "only a partition with a quorum has voters"
    entries = {voter.broker: voter for voter in quorum.voters}
    for broker, each in joining.items():
        entries[broker] = InSync(broker=broker, broker_epoch=each.broker_epoch)
    return msgspec.structs.replace(
        record,
        replicas=tuple(
            joining[each.broker].replica if each.broker in joining else each for each in record.replicas
        ),
        quorum=msgspec.structs.replace(quorum, voters=_in_order(entries, record.replicas)),
    )


def _reassigned(
    record: PartitionRecord, leader: BrokerId, returning: Mapping[BrokerId, Returning], promised: Offset
) -> PartitionRecord | None:
    """Return the record in which added replicas are voters and members, and leaving replicas are gone.

    The result is None while an added replica lacks records, and while the controller must first move the leadership. If
    every present member leaves, the leader stays for one more step, because only a voter can take over.
    """
    if not record.adding and not record.removing:
        return None
    joining = {broker: returning[broker] for broker in record.adding if broker in returning}
    if len(joining) < len(record.adding) or any(each.counted < promised for each in joining.values()):
        return None
    kept = {each.broker for each in record.replicas if each.broker not in record.removing}
    if leader not in kept:
        if not kept.issubset(record.adding) or not record.adding:
            return None
        kept.add(leader)
    return _only(_with_voters(record, joining), kept)


def _only(record: PartitionRecord, kept: Iterable[BrokerId]) -> PartitionRecord:
    """Return the record with only these replicas, and with a write quorum that fits their number."""
    quorum, staying = record.quorum, frozenset(kept)
    assert quorum is not None, "only a partition with a quorum has voters"
    replicas = tuple(each for each in record.replicas if each.broker in staying)
    return _of_write(
        msgspec.structs.replace(
            record,
            replicas=replicas,
            adding=(),
            removing=tuple(broker for broker in record.removing if broker in staying),
            quorum=msgspec.structs.replace(
                quorum,
                write=min(quorum.write, len(replicas)),
                voters=tuple(each for each in quorum.voters if each.broker in staying),
            ),
        ),
        write_quorum(quorum.write, len(replicas)),
    )


def _with_write(record: PartitionRecord, wanted: int | None) -> PartitionRecord:
    """Return the record with the configured write quorum, unless a reassignment is in progress."""
    if record.adding or record.removing:
        return record
    return _of_write(record, write_quorum(wanted, len(record.replicas)))


def _of_write(record: PartitionRecord, write: int) -> PartitionRecord:
    quorum = record.quorum
    assert quorum is not None, "only a partition with a quorum has a write quorum"
    # `min_isr` has the same value, for readers that know only in-sync replicas.
    return msgspec.structs.replace(record, min_isr=write, quorum=msgspec.structs.replace(quorum, write=write))


def _in_order(entries: Mapping[BrokerId, InSync], replicas: Iterable[Replica]) -> tuple[InSync, ...]:
    return tuple(entries[each.broker] for each in replicas if each.broker in entries)
