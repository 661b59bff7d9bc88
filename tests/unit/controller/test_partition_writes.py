"""Partition records are written in one transaction, which compares all records on which the plan is based."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead_api.identifiers import BrokerEpoch, BrokerId, PartitionIndex
from fairlead_broker.controller.partition_writes import PartitionWrite, write_partitions
from fairlead_broker.controller.term import PARTITIONS_MAX
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.records import InSync, PartitionRecord
from partition_kit import KEY, TOPIC_ID, record


@pytest.fixture
def term(world: Any) -> Any:
    """Return a world with brokers 1 and 2, and one partition without a leader."""
    world.register(2, world.metadata.brokers[BrokerId(1)].value)
    world.put(world.term.keys.partition(KEY.topic_id, KEY.partition), record(None, "12", replicas="12"))
    return world


def led(world: Any, broker: int) -> PartitionRecord:
    """Return the partition record with a leader in its current incarnation."""
    epoch = BrokerEpoch(world.metadata.brokers[BrokerId(broker)].create_revision)
    leader = InSync(broker=BrokerId(broker), broker_epoch=epoch)
    return msgspec.structs.replace(stored(world), leader=leader, isr=(leader,))


def stored(world: Any) -> Any:
    """Return the stored record."""
    return world.partitions()[KEY.partition].value


def write_of(world: Any, made: PartitionRecord) -> PartitionWrite:
    """Return a write that replaces the stored record."""
    return PartitionWrite(KEY, world.partitions()[KEY.partition].mod_revision, made, elects=True)


def test_records_are_written_while_everything_holds(term: Any) -> None:
    """A partition record is written if the term, the stored record and the leader's registration are unchanged."""
    made = led(term, 2)

    assert term.run(write_partitions(term.term, [write_of(term, made)]))
    assert stored(term) == made


def test_a_term_that_is_over_writes_nothing(term: Any) -> None:
    """A controller whose term has ended writes nothing."""
    transaction = write_partitions(term.term, [write_of(term, led(term, 2))])
    term.start_term()

    assert not term.run(transaction)


def test_a_record_that_has_changed_is_not_written_over(term: Any) -> None:
    """A partition record that has changed since the write was planned is not overwritten."""
    transaction = write_partitions(term.term, [write_of(term, led(term, 2))])
    term.put(term.term.keys.partition(KEY.topic_id, KEY.partition), led(term, 1))

    assert not term.run(transaction)
    assert stored(term).leader.broker == 1


def test_an_ended_incarnation_is_not_elected(term: Any) -> None:
    """An ended incarnation is not made the leader."""
    transaction = write_partitions(term.term, [write_of(term, led(term, 2))])
    term.register(2, term.metadata.brokers[BrokerId(2)].value)

    assert not term.run(transaction)
    assert stored(term).leader is None


def test_a_record_without_a_leader_needs_no_broker(term: Any) -> None:
    """A partition record without a leader is written even if every broker has stopped."""
    transaction = write_partitions(term.term, [write_of(term, record(None, "1", min_isr=1, replicas="12"))])
    term.delete(term.term.keys.broker(BrokerId(1)))
    term.delete(term.term.keys.broker(BrokerId(2)))

    assert term.run(transaction)


def test_as_many_as_are_allowed_fit_into_one_transaction(term: Any) -> None:
    """Sixty partitions fit into one transaction, which compares each leader's registration once."""
    keys = term.term.keys
    found = {}
    for n in range(PARTITIONS_MAX):
        key = PartitionKey(TOPIC_ID, PartitionIndex(n))
        found[key] = term.put(keys.partition(key.topic_id, key.partition), led(term, 1))
    writes = [
        PartitionWrite(key, revision, led(term, 1 + key.partition % 2)) for key, revision in found.items()
    ]
    transaction = write_partitions(term.term, writes)

    assert len(transaction.compares) == 1 + 2 + PARTITIONS_MAX
    assert term.run(transaction)
    assert {n: each.value.leader.broker for n, each in term.partitions().items()} == {
        n: 1 + n % 2 for n in range(PARTITIONS_MAX)
    }
    assert not term.run(transaction), "every record has a new revision"
