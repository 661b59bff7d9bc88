from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead_api.identifiers import BrokerId, PartitionIndex
from fairlead_broker.controller.election import elect, in_sync_brokers, is_live
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import (
    BrokerRegistration,
    BrokerState,
    DurabilityState,
    PartitionRecord,
    Quorum,
)


class Cluster:
    """Registered brokers by id and epoch."""

    def __init__(self, kit: Any) -> None:
        """Start without brokers."""
        self.kit = kit
        self.brokers: dict[BrokerId, Versioned[BrokerRegistration]] = {}
        self.key = PartitionKey(kit.topic_id, PartitionIndex(0))

    def add(self, broker: int, epoch: int, **about: Any) -> None:
        """Register a broker, by default with a directory that is named after the broker."""
        record = self.kit.registration(about.pop("directory", f"d{broker}"), **about)
        self.brokers[BrokerId(broker)] = Versioned(record, epoch, epoch)  # type: ignore[arg-type]

    def elect(self, record: PartitionRecord) -> PartitionRecord | None:
        """Elect a leader of the partition."""
        return elect(self.key, record, self.brokers)


@pytest.fixture
def cluster(kit: Any) -> Cluster:
    """Return a cluster without brokers."""
    return Cluster(kit)


def test_a_life_is_live_while_its_epoch_is_registered(cluster: Cluster, kit: Any) -> None:
    """A replica is live while its broker is registered in the broker epoch that the partition record names."""
    cluster.add(1, 10)
    named, older, gone = kit.entries((1, 10), (1, 9), (2, 10))

    assert is_live(named, cluster.brokers)
    assert not is_live(older, cluster.brokers)
    assert not is_live(gone, cluster.brokers)


def test_live_voters_are_in_sync(cluster: Cluster, kit: Any) -> None:
    """The in-sync replicas are the ISR, or the voters of a quorum in their current incarnations (quorum Q18)."""
    cluster.add(1, 10)
    cluster.add(2, 20)
    named = kit.entries((1, 10), (2, 19), (3, 30))
    with_quorum = msgspec.structs.replace(kit.partition(()), quorum=Quorum(write=2, voters=named))

    assert in_sync_brokers(kit.partition(named), cluster.brokers) == (1, 2, 3)
    assert in_sync_brokers(with_quorum, cluster.brokers) == (1,)


def test_the_isr_leads_in_assignment_order(cluster: Cluster, kit: Any) -> None:
    """The first in-sync replica in assignment order leads, regardless of the order of the ISR."""
    for broker in (1, 2, 3):
        cluster.add(broker, 10 + broker)
    record = kit.partition(kit.entries((2, 12), (1, 11), (3, 13)), replicas=(3, 1, 2))
    elected = cluster.elect(record)

    assert elected is not None
    assert elected.leader == kit.entries((3, 13))[0]
    assert elected.leader_epoch == record.leader_epoch + 1
    assert elected.isr == kit.entries((3, 13), (2, 12), (1, 11))
    assert elected.elr == ()


def test_entries_of_ended_lives_leave_the_isr(cluster: Cluster, kit: Any) -> None:
    """A replica of an ended incarnation leaves the ISR, and joins the ELR only if the ISR becomes too small."""
    cluster.add(2, 12)
    enough = cluster.elect(kit.partition(kit.entries((1, 11), (2, 12), (3, 13)), min_isr=1))
    too_few = cluster.elect(kit.partition(kit.entries((1, 11), (2, 12), (3, 13)), min_isr=2))

    assert enough is not None
    assert (enough.isr, enough.elr) == (kit.entries((2, 12)), ())
    assert too_few is not None
    assert (too_few.isr, too_few.elr) == (kit.entries((2, 12)), kit.entries((1, 11), (3, 13)))


def test_the_elr_leads_when_no_replica_of_the_isr_can(cluster: Cluster, kit: Any) -> None:
    """An eligible replica is elected if no in-sync replica can lead, and the previous leader stays eligible."""
    cluster.add(3, 13)
    elected = cluster.elect(kit.partition(kit.entries((1, 11)), elr=kit.entries((2, 12), (3, 13)), min_isr=2))

    assert elected is not None
    assert elected.leader == kit.entries((3, 13))[0]
    assert elected.isr == kit.entries((3, 13))
    assert elected.elr == kit.entries((1, 11), (2, 12))


def test_a_replica_outside_of_isr_and_elr_does_not_lead(cluster: Cluster, kit: Any) -> None:
    """A replica that is in neither ISR nor ELR is not elected."""
    cluster.add(2, 12)

    assert cluster.elect(kit.partition(kit.entries((1, 11)))) is None


def test_the_next_life_leads_with_its_own_epoch(cluster: Cluster, kit: Any) -> None:
    """A broker that restarted with all its records is elected in its new broker epoch."""
    cluster.add(1, 20, last_broker_epoch=11)
    elected = cluster.elect(kit.partition(kit.entries((1, 11)), replicas=(1,)))

    assert elected is not None
    assert elected.leader == kit.entries((1, 20))[0]
    assert elected.isr == kit.entries((1, 20))


def test_an_old_copy_of_the_disk_does_not_lead(cluster: Cluster, kit: Any) -> None:
    """A replica in a directory older than its recorded incarnation is not elected, because records may be missing."""
    cluster.add(1, 20, last_broker_epoch=10)

    assert cluster.elect(kit.partition(kit.entries((1, 11)), replicas=(1,))) is None


@pytest.mark.parametrize(
    "about",
    [
        {"directory": "another"},
        {"state": BrokerState.STOPPING},
        {"quarantined": (0,)},
    ],
)
def test_an_in_sync_replica_that_cannot_serve_does_not_lead(
    cluster: Cluster, kit: Any, about: dict[str, Any]
) -> None:
    """An in-sync replica in a different directory, in quarantine or on a stopping broker is not elected."""
    cluster.add(1, 11, **about)

    assert cluster.elect(kit.partition(kit.entries((1, 11)))) is None


def test_the_quarantine_of_another_partition_does_not_matter(cluster: Cluster, kit: Any) -> None:
    """The quarantine of a replica of another partition has no effect on the election."""
    cluster.add(1, 11, quarantined=(1, 2))

    assert cluster.elect(kit.partition(kit.entries((1, 11)))) is not None


def test_a_draining_broker_still_leads(cluster: Cluster, kit: Any) -> None:
    """A draining broker can be elected, and a stopping broker cannot."""
    cluster.add(1, 11, state=BrokerState.DRAINING)

    assert cluster.elect(kit.partition(kit.entries((1, 11)))) is not None


def test_a_stopping_member_leaves_the_isr_for_the_elr(cluster: Cluster, kit: Any) -> None:
    """A stopping member of an ISR that is too small becomes eligible, because it is complete until it stops."""
    cluster.add(1, 11)
    cluster.add(2, 12, state=BrokerState.STOPPING)
    elected = cluster.elect(kit.partition(kit.entries((1, 11), (2, 12)), min_isr=2))

    assert elected is not None
    assert (elected.isr, elected.elr) == (kit.entries((1, 11)), kit.entries((2, 12)))


@pytest.mark.parametrize(
    ("durability", "intact_since", "leads"),
    [
        (DurabilityState.SYNCED, None, True),
        (DurabilityState.REPLICATED, None, False),
        (DurabilityState.REPLICATED, 12, False),
        (DurabilityState.REPLICATED, 11, True),
        (DurabilityState.REPLICATED, 5, True),
        (DurabilityState.SYNCING, None, False),
        (DurabilityState.SYNCING, 11, True),
    ],
)
def test_a_restart_that_may_have_lost_unsynced_bytes(
    cluster: Cluster, kit: Any, durability: DurabilityState, intact_since: int | None, leads: bool
) -> None:
    """A replica with unsynced bytes is elected only if every later restart kept the page cache or was clean."""
    cluster.add(1, 20, last_broker_epoch=11, intact_since=intact_since)
    elected = cluster.elect(kit.partition(kit.entries((1, 11), (2, 12)), durability=durability))

    assert (elected is not None) is leads


@pytest.mark.parametrize("durability", [DurabilityState.REPLICATED, DurabilityState.SYNCING])
def test_a_replica_that_is_alone_leads_again_after_a_loss_of_power(
    cluster: Cluster, kit: Any, durability: DurabilityState
) -> None:
    """The only replica leads again after a loss of power, because no other replica has more records."""
    cluster.add(1, 20, last_broker_epoch=11)
    elected = cluster.elect(kit.partition(kit.entries((1, 11)), durability=durability, replicas=(1,)))

    assert elected is not None


@pytest.mark.parametrize("durability", [DurabilityState.REPLICATED, DurabilityState.SYNCING])
def test_the_last_member_of_several_replicas_does_not_lead_with_less(
    cluster: Cluster, kit: Any, durability: DurabilityState
) -> None:
    """The last of several in-sync replicas is not elected after a loss of unsynced bytes."""
    cluster.add(1, 20, last_broker_epoch=11)
    elected = cluster.elect(kit.partition(kit.entries((1, 11)), durability=durability, replicas=(1, 2, 3)))

    assert elected is None


def test_fields_of_a_later_release_stay(cluster: Cluster, kit: Any) -> None:
    """Unknown fields of the partition record and its entries are kept."""
    cluster.add(1, 20, last_broker_epoch=11)
    [entry] = kit.entries((1, 11))
    record = kit.partition((msgspec.structs.replace(entry, unknown={"new": 1}),))
    elected = cluster.elect(msgspec.structs.replace(record, unknown={"newer": 2}))

    assert elected is not None
    assert elected.unknown == {"newer": 2}
    assert elected.isr[0].unknown == {"new": 1}
