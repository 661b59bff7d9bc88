"""Many partition records in one transaction hold only while everything that they were made from holds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead_api.identifiers import BrokerEpoch, BrokerId, PartitionIndex
from fairlead_broker.controller.office import PARTITIONS_MAX
from fairlead_broker.controller.partition_writes import PartitionWrite, write_partitions
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.records import InSync, PartitionRecord
from partition_kit import KEY, TOPIC_ID, record


@pytest.fixture
def office(world: Any) -> Any:
    """A world with one partition, led by nobody, and brokers 1 and 2."""
    world.register(2, world.metadata.brokers[BrokerId(1)].value)
    world.put(world.office.keys.partition(KEY.topic_id, KEY.partition), record(None, "12", replicas="12"))
    return world


def led(world: Any, broker: int) -> PartitionRecord:
    """The partition's record under a leader in its present life."""
    epoch = BrokerEpoch(world.metadata.brokers[BrokerId(broker)].create_revision)
    leader = InSync(broker=BrokerId(broker), broker_epoch=epoch)
    return msgspec.structs.replace(stored(world), leader=leader, isr=(leader,))


def stored(world: Any) -> Any:
    """The record that the store has."""
    return world.partitions()[KEY.partition].value


def write_of(world: Any, made: PartitionRecord) -> PartitionWrite:
    """Replace what is stored now."""
    return PartitionWrite(KEY, world.partitions()[KEY.partition].mod_revision, made, elects=True)


def test_records_are_written_while_everything_holds(office: Any) -> None:
    """The office, the record and the new leader's life are as they were."""
    made = led(office, 2)

    assert office.run(write_partitions(office.office, [write_of(office, made)]))
    assert stored(office) == made


def test_a_term_that_is_over_writes_nothing(office: Any) -> None:
    """Somebody else is the controller."""
    transaction = write_partitions(office.office, [write_of(office, led(office, 2))])
    office.take_office()

    assert not office.run(transaction)


def test_a_record_that_has_changed_is_not_written_over(office: Any) -> None:
    """The leader has changed its isr meanwhile."""
    transaction = write_partitions(office.office, [write_of(office, led(office, 2))])
    office.put(office.office.keys.partition(KEY.topic_id, KEY.partition), led(office, 1))

    assert not office.run(transaction)
    assert stored(office).leader.broker == 1


def test_nobody_is_made_a_leader_in_a_life_that_is_over(office: Any) -> None:
    """The broker was registered anew after the decision."""
    transaction = write_partitions(office.office, [write_of(office, led(office, 2))])
    office.register(2, office.metadata.brokers[BrokerId(2)].value)

    assert not office.run(transaction)
    assert stored(office).leader is None


def test_a_record_without_a_leader_needs_no_broker(office: Any) -> None:
    """It is written though everybody is gone."""
    transaction = write_partitions(
        office.office, [write_of(office, record(None, "1", min_isr=1, replicas="12"))]
    )
    office.delete(office.office.keys.broker(BrokerId(1)))
    office.delete(office.office.keys.broker(BrokerId(2)))

    assert office.run(transaction)


def test_as_many_as_are_allowed_fit_into_one_transaction(office: Any) -> None:
    """Sixty partitions of two leaders; a leader's life is compared once, and one lost compare loses them all."""
    keys = office.office.keys
    found = {}
    for n in range(PARTITIONS_MAX):
        key = PartitionKey(TOPIC_ID, PartitionIndex(n))
        found[key] = office.put(keys.partition(key.topic_id, key.partition), led(office, 1))
    writes = [
        PartitionWrite(key, revision, led(office, 1 + key.partition % 2)) for key, revision in found.items()
    ]
    transaction = write_partitions(office.office, writes)

    assert len(transaction.compares) == 1 + 2 + PARTITIONS_MAX
    assert office.run(transaction)
    assert {n: each.value.leader.broker for n, each in office.partitions().items()} == {
        n: 1 + n % 2 for n in range(PARTITIONS_MAX)
    }
    assert not office.run(transaction), "every record has another revision now"
