from __future__ import annotations

import pytest

from fairlead_api.identifiers import BrokerEpoch, BrokerId, LeaderEpoch
from fairlead_broker.log.documents import Identity
from fairlead_broker.registry.records import DurabilityState, InSync, PartitionRecord, Replica
from fairlead_broker.runtime.lifecycle.directory_trust import names_a_newer_incarnation

IDENTITY = Identity(cluster_id="c", broker_id=1, directory_id="d1", last_broker_epoch=40)
PRESENT = BrokerEpoch(70)


def record(
    *, isr: tuple[int, int] | None = None, elr: tuple[int, int] | None = None, home: str
) -> PartitionRecord:
    """Return a partition record of broker 1 in a directory, with an incarnation of a broker in its ISR or ELR."""

    def entries(entry: tuple[int, int] | None) -> tuple[InSync, ...]:
        return (
            () if entry is None else (InSync(broker=BrokerId(entry[0]), broker_epoch=BrokerEpoch(entry[1])),)
        )

    return PartitionRecord(
        leader=None,
        leader_epoch=LeaderEpoch(3),
        replicas=(Replica(broker=BrokerId(1), directory=home), Replica(broker=BrokerId(2), directory="d2")),
        isr=entries(isr),
        elr=entries(elr),
        min_isr=1,
        durability=DurabilityState.REPLICATED,
        unclean=False,
    )


@pytest.mark.parametrize(
    ("counted", "newer"),
    [
        (record(isr=(1, 40), home="d1"), False),
        (record(isr=(1, 41), home="d1"), True),
        (record(elr=(1, 69), home="d1"), True),
        (record(isr=(1, 41), home="another"), False),
        (record(isr=(2, 60), home="d1"), False),
        (record(isr=(1, PRESENT), home="d1"), False),
        (record(isr=(1, 71), home="d1"), True),
    ],
    ids=[
        "the last life that it knows",
        "a later one",
        "a later one that is eligible",
        "of another directory",
        "of another broker",
        "the life that just begins",
        "one of a store that was put back",
    ],
)
def test_an_older_copy_of_a_disk_is_recognised(counted: PartitionRecord, newer: bool) -> None:
    """A directory that has not stored an incarnation named in a partition record is recognised as an older copy."""
    assert names_a_newer_incarnation(counted, BrokerId(1), PRESENT, IDENTITY) is newer
