"""Vacancies and appointments of partitions with a write quorum (quorum Q1, Q7 and Q8)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from fairlead_api.identifiers import BrokerEpoch, BrokerId, LeaderEpoch, Offset, PartitionIndex
from fairlead_broker.controller.leader_moves import is_leaving, moved
from fairlead_broker.controller.log_end import LogEnd
from fairlead_broker.controller.partition_changes import ClusterView, elect_unclean, next_record
from fairlead_broker.controller.preferred import prefer
from fairlead_broker.controller.reassignment import cancel
from fairlead_broker.controller.vacancies import Promise, appointed, missing_promises
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.quorum import vacated
from fairlead_broker.registry.records import (
    BrokerRegistration,
    BrokerState,
    DurabilityState,
    PartitionRecord,
)
from replication_kit import LEADER, SECOND, THIRD, life, quorum_record, voters_of


class Cluster:
    """Three registered brokers, and their answers with log ends for a vacancy."""

    def __init__(self, kit: Any) -> None:
        self.kit = kit
        self.key = PartitionKey(kit.topic_id, PartitionIndex(0))
        self.brokers: dict[BrokerId, Versioned[BrokerRegistration]] = {}
        self.promises: dict[BrokerId, Promise] = {}
        self.vacancy = vacated(quorum_record())
        for broker in (LEADER, SECOND, THIRD):
            self.add(broker)

    def add(self, broker: int, epoch: int | None = None, **about: Any) -> None:
        """Register a broker."""
        epoch = life(broker) if epoch is None else epoch
        record = self.kit.registration(about.pop("directory", f"d{broker}"), **about)
        self.brokers[BrokerId(broker)] = Versioned(record, epoch, epoch)  # type: ignore[arg-type]

    def promise(self, broker: BrokerId, epoch: int, end: int, **fields: Any) -> None:
        """Answer for the vacancy with the end of a log."""
        plain = Promise(
            BrokerEpoch(self.brokers[broker].create_revision),
            f"d{broker}",
            0,
            self.vacancy.leader_epoch,
            LogEnd(LeaderEpoch(epoch), Offset(end)),
            Offset(0),
        )
        self.promises[broker] = replace(plain, **fields)

    def appoint(self, *avoiding: BrokerId) -> PartitionRecord | None:
        """Return the record that fills the vacancy."""
        return appointed(self.key, self.vacancy, self.promises, self.brokers, avoiding)

    @property
    def view(self) -> ClusterView:
        """The registered brokers, none of them draining."""
        return ClusterView(self.brokers)


@pytest.fixture
def cluster(kit: Any) -> Cluster:
    """Return three registered brokers that have not answered yet."""
    return Cluster(kit)


def test_the_end_of_a_leader_makes_a_vacancy(cluster: Cluster) -> None:
    """A leader whose incarnation has ended is replaced by a vacancy in a raised epoch (quorum Q1)."""
    record = quorum_record()
    live = next_record(cluster.key, record, cluster.view)
    cluster.add(LEADER, 40)
    vacancy = next_record(cluster.key, record, cluster.view)

    assert live is None
    assert vacancy == vacated(record)
    assert vacancy is not None
    assert next_record(cluster.key, vacancy, cluster.view) is None


def test_r_answers_appoint_the_greatest(cluster: Cluster) -> None:
    """A leader is appointed after R answers, in the vacancy's epoch, and counted entries are renewed (quorum Q8)."""
    cluster.add(SECOND, 42, last_broker_epoch=life(SECOND))
    cluster.promise(SECOND, 3, 7)
    too_few = cluster.appoint()
    cluster.promise(THIRD, 3, 9, log_start=Offset(4))
    record = cluster.appoint()

    assert too_few is None
    assert record is not None
    assert record.leader is not None
    assert (record.leader.broker, record.leader_epoch) == (THIRD, cluster.vacancy.leader_epoch)
    assert voters_of(record) == {LEADER: life(LEADER), SECOND: 42, THIRD: life(THIRD)}
    assert record.quorum is not None
    assert record.quorum.log_start == 4


def test_the_epoch_counts_before_the_offset(cluster: Cluster) -> None:
    """A longer log of an older epoch is behind a shorter log of a newer epoch (quorum Q8)."""
    cluster.promise(SECOND, 2, 90)
    cluster.promise(THIRD, 3, 7)
    record = cluster.appoint()

    assert record is not None
    assert record.leader is not None
    assert record.leader.broker == THIRD


def test_any_replica_that_is_not_behind_r_answers_may_lead(cluster: Cluster) -> None:
    """The first suitable replica in assignment order leads if R answers are not ahead of it (quorum Q8)."""
    cluster.promise(LEADER, 3, 9)
    cluster.promise(SECOND, 3, 8)
    cluster.promise(THIRD, 3, 7)
    first, second = cluster.appoint(), cluster.appoint(LEADER)
    cluster.promise(SECOND, 3, 6)
    none_other = cluster.appoint(LEADER, THIRD)

    assert first is not None
    assert first.leader is not None
    assert first.leader.broker == LEADER
    assert second is not None
    assert second.leader is not None
    assert second.leader.broker == SECOND
    assert none_other is not None
    assert none_other.leader is not None
    assert none_other.leader.broker == LEADER


@pytest.mark.parametrize(
    "fields",
    [
        {"leader_epoch": LeaderEpoch(3)},
        {"broker_epoch": BrokerEpoch(1)},
        {"directory": "other"},
        {"generation": 1},
    ],
)
def test_answers_of_another_place_or_epoch_do_not_count(cluster: Cluster, fields: dict[str, Any]) -> None:
    """An answer counts in its vacancy's epoch, and in the incarnation, directory and generation of its voter (Q7)."""
    cluster.promise(SECOND, 3, 7)
    cluster.promise(THIRD, 3, 7, **fields)

    assert cluster.appoint() is None
    assert missing_promises(cluster.key, cluster.vacancy, cluster.promises, cluster.brokers) == (
        LEADER,
        THIRD,
    )


@pytest.mark.parametrize(
    ("about", "durability", "counts"),
    [
        ({"last_broker_epoch": life(THIRD)}, DurabilityState.SYNCED, True),
        ({"last_broker_epoch": life(THIRD) - 1}, DurabilityState.SYNCED, False),
        ({"last_broker_epoch": life(THIRD)}, DurabilityState.REPLICATED, False),
        ({"last_broker_epoch": life(THIRD), "intact_since": 5}, DurabilityState.REPLICATED, True),
        ({"directory": "new"}, DurabilityState.SYNCED, False),
    ],
)
def test_only_voters_that_kept_everything_count(
    cluster: Cluster, about: dict[str, Any], durability: DurabilityState, counts: bool
) -> None:
    """A restarted voter counts if it has the disk of its entry and lost no counted record (quorum Q7)."""
    cluster.vacancy = msgspec.structs.replace(cluster.vacancy, durability=durability)
    cluster.promise(SECOND, 3, 7)
    cluster.add(THIRD, 40, **about)
    cluster.promise(THIRD, 3, 7)

    assert (cluster.appoint() is not None) is counts
    missing = missing_promises(cluster.key, cluster.vacancy, cluster.promises, cluster.brokers)
    assert (missing == ()) is counts


def test_a_stopping_voter_answers_and_is_not_appointed(cluster: Cluster) -> None:
    """The answer from a stopping or quarantined voter counts, but another replica leads (quorum Q8 and Q14)."""
    cluster.add(THIRD, state=BrokerState.STOPPING)
    cluster.promise(THIRD, 3, 9)
    cluster.promise(SECOND, 3, 9)
    record = cluster.appoint()
    cluster.add(SECOND, quarantined=(0,))

    assert record is not None
    assert record.leader is not None
    assert record.leader.broker == SECOND
    assert cluster.appoint() is None


def test_a_broker_that_is_gone_gives_no_promise(cluster: Cluster) -> None:
    """The answer from a broker that is no longer registered does not count."""
    cluster.promise(SECOND, 3, 7)
    cluster.promise(THIRD, 3, 9)
    del cluster.brokers[THIRD]

    assert cluster.appoint() is None


def test_a_restored_record_asks_all_members(cluster: Cluster) -> None:
    """After the store is restored, the greatest log of all members leads, above every known epoch."""
    cluster.vacancy = msgspec.structs.replace(cluster.vacancy, restored=True)
    cluster.promise(SECOND, 8, 7)
    cluster.promise(THIRD, 3, 9)
    too_few = cluster.appoint()
    cluster.promise(LEADER, 3, 9, generation=7)
    record = cluster.appoint()
    for broker in (LEADER, SECOND, THIRD):
        cluster.add(broker, state=BrokerState.STOPPING)

    assert too_few is None
    assert record is not None
    assert record.leader is not None
    assert (record.leader.broker, record.leader_epoch, record.restored) == (SECOND, 9, False)
    assert voters_of(record) == {SECOND: life(SECOND)}
    assert cluster.appoint() is None


def test_an_operator_appoints_the_longest_log(cluster: Cluster) -> None:
    """An unclean election raises the epoch and makes its leader the only voter, in one write."""
    ends = {SECOND: LogEnd(LeaderEpoch(3), Offset(5))}
    record = elect_unclean(cluster.key, cluster.vacancy, cluster.view, ends)

    assert record is not None
    assert voters_of(record) == {SECOND: life(SECOND)}
    assert record.leader_epoch == cluster.vacancy.leader_epoch + 1
    assert record.isr == ()


@pytest.mark.parametrize(
    ("state", "draining", "removing", "adding", "leaves"),
    [
        (BrokerState.RUNNING, False, (), (), False),
        (BrokerState.STOPPING, False, (), (), True),
        (BrokerState.DRAINING, False, (), (), True),
        (BrokerState.RUNNING, True, (), (), True),
        (BrokerState.RUNNING, False, (LEADER,), (), True),
        (BrokerState.RUNNING, False, (LEADER, SECOND), (THIRD,), False),
    ],
)
def test_leaders_that_should_move(
    cluster: Cluster,
    state: BrokerState,
    draining: bool,
    removing: tuple[BrokerId, ...],
    adding: tuple[BrokerId, ...],
    leaves: bool,
) -> None:
    """A leadership must move if its broker stops or drains, or if its replica leaves and another member stays (Q9)."""
    record = quorum_record(removing=removing, adding=adding)
    cluster.add(LEADER, state=state)
    view = ClusterView(cluster.brokers, draining=frozenset({LEADER} if draining else ()))

    assert is_leaving(record, view) is leaves
    assert not is_leaving(cluster.vacancy, view)


def test_a_move_begins_if_its_taker_is_near(cluster: Cluster) -> None:
    """A leadership move begins only if a voter that should take over is near."""
    record = quorum_record()
    cluster.add(THIRD, state=BrokerState.DRAINING)
    cluster.add(SECOND)

    def move(near: set[BrokerId], wanted: BrokerId | None = None) -> PartitionRecord | None:
        return moved(cluster.key, record, cluster.view, near, wanted)

    assert move({LEADER, THIRD}) is None
    assert move({LEADER, SECOND}) == vacated(record)
    assert move({LEADER, SECOND}, THIRD) is None
    assert move({LEADER, SECOND}, SECOND) == vacated(record)
    cluster.add(SECOND, directory="other")
    assert move({LEADER, SECOND}) is None
    cluster.add(SECOND, 40)
    assert move({LEADER, SECOND}) is None


def test_the_preferred_leader_gets_a_vacancy(cluster: Cluster) -> None:
    """The election of the preferred leader of a partition with a quorum begins with a vacancy."""
    record = quorum_record(leader=quorum_record(voters=(SECOND,)).quorum.voters[0])  # type: ignore[union-attr]

    assert prefer(cluster.key, record, cluster.view) == vacated(record)
    assert prefer(cluster.key, quorum_record(), cluster.view) is None


def test_a_cancelled_reassignment_drops_the_added_replicas(cluster: Cluster) -> None:
    """Added replicas are not voters, so a cancellation drops them at once (quorum Q9)."""
    record = quorum_record(voters=(LEADER, SECOND), adding=(THIRD,), removing=(LEADER,))
    cancelled = cancel(cluster.key, record, cluster.brokers)

    assert cancelled is not None
    assert [each.broker for each in cancelled.replicas] == [LEADER, SECOND]
    assert (cancelled.adding, cancelled.removing) == ((), ())
