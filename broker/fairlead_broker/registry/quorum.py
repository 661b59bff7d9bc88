"""Rules about the records of partitions with a write quorum: members, promises, vacancies.

The leader, the controller and the runtime use this module. N is the number of members, W the write quorum, and R = N -
W + 1 the number of voters that must promise before a leader is appointed, so that any R voters include one with all the
records that W voters have stored. The module is pure. Quorum Q1 to Q19 are described in docs/explanation/quorum.md.
"""

from __future__ import annotations

import msgspec

from fairlead_api.identifiers import BrokerId, LeaderEpoch
from fairlead_broker.registry.generations import with_next_generation
from fairlead_broker.registry.records import InSync, PartitionRecord


def majority(member_count: int) -> int:
    """Return the smallest write quorum of a partition with this number of members; the result is also the default."""
    return member_count // 2 + 1


def write_quorum(wanted: int | None, member_count: int) -> int:
    """Return the write quorum that results from a configured value for a number of members; None means the default."""
    least = majority(member_count)
    return least if wanted is None else min(max(wanted, least), member_count)


def members(record: PartitionRecord) -> tuple[BrokerId, ...]:
    """Return the brokers that count as members (N): all replicas except replicas that a reassignment is adding."""
    return tuple(each.broker for each in record.replicas if each.broker not in record.adding)


def promises_needed(record: PartitionRecord) -> int:
    """Return R, the number of voters whose answers allow an appointment (quorum Q8)."""
    assert record.quorum is not None, "only a partition with a quorum has vacancies"
    return len(members(record)) - record.quorum.write + 1


def relied_on(record: PartitionRecord) -> tuple[InSync, ...]:
    """Return the incarnations whose records the partition relies on: the voters, or the members of the isr and elr."""
    return (*record.isr, *record.elr) if record.quorum is None else record.quorum.voters


def in_sync(record: PartitionRecord) -> tuple[InSync, ...]:
    """Return the members of the isr, or the voters of a partition with a quorum."""
    return record.isr if record.quorum is None else record.quorum.voters


def vacated(record: PartitionRecord) -> PartitionRecord:
    """Return the record without a leader, in the next leader epoch (quorum Q1)."""
    return msgspec.structs.replace(record, leader=None, leader_epoch=LeaderEpoch(record.leader_epoch + 1))


def without_voter(
    record: PartitionRecord, broker: BrokerId, directory: str | None = None
) -> PartitionRecord | None:
    """Return the record without the vote of a broker that distrusts the bytes of its replica (quorum Q11).

    The replica starts a new generation; if the broker is the leader, the same write leaves a vacancy. Returns None if
    fewer than R voters would remain; the broker must then keep every byte.
    """
    quorum = record.quorum
    assert quorum is not None, "only a partition with a quorum has voters"
    voters = tuple(voter for voter in quorum.voters if voter.broker != broker)
    if not voters or (broker in members(record) and len(voters) < promises_needed(record)):
        return None
    if record.leader is not None and record.leader.broker == broker:
        record = vacated(record)
    return msgspec.structs.replace(
        record,
        replicas=with_next_generation(record.replicas, broker, directory),
        quorum=msgspec.structs.replace(quorum, voters=voters),
    )
