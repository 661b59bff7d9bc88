"""Leadership returns to the preferred leaders."""

from __future__ import annotations

import pytest

from fairlead_api.identifiers import BrokerId, PartitionIndex
from fairlead_broker.controller.partition_changes import ClusterView
from fairlead_broker.controller.preferred import imbalanced, prefer, preferred_leader
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.records import PartitionRecord
from partition_kit import DRAINING, KEY, R1, R2, R3, STOPPING, TOPIC_ID, brokers, record, registered, short

ALL = brokers(R1, R2, R3)
FIRST = BrokerId(1)


def test_the_preferred_leader_takes_over_and_the_isr_stays() -> None:
    """The preferred leader takes over in a higher epoch, and the ISR does not change."""
    found = record(2, "123")

    assert preferred_leader(found) == 1
    assert short(prefer(KEY, found, ClusterView(ALL))) == (1, 8, "123", "")


@pytest.mark.parametrize(
    ("found", "view"),
    [
        pytest.param(record(1, "123"), ClusterView(ALL), id="it leads"),
        pytest.param(record(2, "23"), ClusterView(ALL), id="it is not in sync"),
        pytest.param(record(2, "2", "1"), ClusterView(ALL), id="it is eligible only"),
        pytest.param(record(2, "123"), ClusterView(brokers(R2, R3)), id="it is gone"),
        pytest.param(
            record(2, "123"), ClusterView(ALL | {FIRST: registered(1, 99)}), id="it is in another life"
        ),
        pytest.param(record(2, "123"), ClusterView(brokers((1, STOPPING), R2, R3)), id="it stops"),
        pytest.param(record(2, "123"), ClusterView(brokers((1, DRAINING), R2, R3)), id="it is draining"),
        pytest.param(
            record(2, "123"), ClusterView(ALL, draining=frozenset({FIRST})), id="it is to be drained"
        ),
        pytest.param(record(2, "123", removing=(FIRST,)), ClusterView(ALL), id="it is leaving"),
        pytest.param(
            record(2, "123"),
            ClusterView(ALL | {FIRST: registered(1, 11, quarantined=True)}),
            id="it distrusts its bytes",
        ),
        pytest.param(
            record(2, "123"),
            ClusterView(ALL | {FIRST: registered(1, 11, directories=("other",))}),
            id="its disk has failed",
        ),
        pytest.param(record(None, "1", restored=True), ClusterView(ALL), id="others may have more"),
    ],
)
def test_leadership_stays_where_it_is(found: PartitionRecord, view: ClusterView) -> None:
    """Leadership stays if the preferred leader leads, is out of sync, or is draining or stopping."""
    assert prefer(KEY, found, view) is None


def numbered(*records: PartitionRecord) -> list[tuple[PartitionKey, PartitionRecord]]:
    """Return the records as partitions of one topic."""
    return [(PartitionKey(TOPIC_ID, PartitionIndex(n)), each) for n, each in enumerate(records)]


def moved(
    found: list[tuple[PartitionKey, PartitionRecord]], percentage: int, view: ClusterView
) -> dict[int, int | None]:
    """Return the new leader of each partition that is moved."""
    moves = imbalanced(found, view, percentage)
    return {key.partition: each.leader and each.leader.broker for key, each in moves.items()}


def test_brokers_get_their_partitions_back_above_the_percentage_and_not_at_it() -> None:
    """Leadership returns if the displaced share exceeds the percentage: one of four partitions does not exceed 25%."""
    found = numbered(record(2, "123"), *[record(1, "123")] * 3)

    assert moved(found, 25, ClusterView(ALL)) == {}
    assert moved(found, 24, ClusterView(ALL)) == {0: 1}


def test_each_broker_is_judged_by_the_partitions_that_it_should_lead() -> None:
    """The displaced share is computed for each preferred leader from the partitions that it should lead."""
    found = numbered(
        record(1, "123", replicas="312"), record(2, "123"), *[record(1, "123", replicas="123")] * 9
    )

    assert moved(found, 10, ClusterView(ALL)) == {0: 3}
    assert moved(found, 9, ClusterView(ALL)) == {0: 3, 1: 1}


def test_partitions_without_a_leader_are_not_displaced() -> None:
    """Partitions without a leader are not counted as displaced."""
    found = numbered(record(None, "123"), record(2, "123"))
    without_second = ClusterView(brokers(R1, R3))

    assert moved(found, 49, ClusterView(ALL)) == {1: 1}
    assert moved(found, 50, ClusterView(ALL)) == {}
    assert moved(found, 0, without_second) == {}


def test_what_cannot_be_moved_at_once_waits_for_the_next_look() -> None:
    """A partition that cannot move at once waits, and other partitions of the same broker move."""
    found = numbered(record(2, "23"), record(2, "123"))

    assert moved(found, 10, ClusterView(ALL)) == {1: 1}
