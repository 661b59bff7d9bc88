from __future__ import annotations

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fairlead_api.identifiers import BrokerEpoch, BrokerId, LeaderEpoch
from fairlead_broker.registry.generations import generation_in
from fairlead_broker.registry.isr import taken_out, with_isr
from fairlead_broker.registry.records import DurabilityState, InSync, PartitionRecord, Replica


def entries(*brokers: int, epoch: int = 5) -> tuple[InSync, ...]:
    """Return replicas of brokers in one broker epoch."""
    return tuple(InSync(broker=BrokerId(n), broker_epoch=BrokerEpoch(epoch)) for n in brokers)


def record(isr: tuple[InSync, ...], elr: tuple[InSync, ...] = (), min_isr: int = 2) -> PartitionRecord:
    """Create the record of a partition with three replicas."""
    return PartitionRecord(
        leader=None,
        leader_epoch=LeaderEpoch(0),
        replicas=tuple(Replica(broker=BrokerId(n), directory="d") for n in (1, 2, 3)),
        isr=isr,
        elr=elr,
        min_isr=min_isr,
        durability=DurabilityState.SYNCED,
    )


def test_an_isr_that_is_large_enough_needs_no_eligible_replicas() -> None:
    """An ISR of at least `min_isr` empties the ELR, because the high watermark advances without the ELR's replicas."""
    changed = with_isr(record(entries(1), entries(2)), isr=entries(1, 3), min_isr=2)

    assert (changed.isr, changed.elr) == (entries(1, 3), ())


def test_a_replica_that_leaves_a_small_isr_is_eligible() -> None:
    """A replica that leaves an ISR that is too small becomes eligible, because the high watermark then stops."""
    changed = with_isr(record(entries(1, 2, 3)), isr=entries(1), min_isr=2)

    assert changed.elr == entries(2, 3)


def test_eligible_replicas_stay_until_they_are_in_sync_again() -> None:
    """A replica that joins the ISR leaves the ELR, even in a new incarnation."""
    kept = with_isr(
        record(entries(1), entries(2, 3), min_isr=3), isr=(*entries(1), *entries(2, epoch=9)), min_isr=3
    )

    assert kept.elr == entries(3)


def test_a_lower_min_isr_can_make_them_superfluous() -> None:
    """A lower `min_isr` empties the ELR."""
    changed = with_isr(record(entries(1), entries(2)), isr=entries(1), min_isr=1)

    assert (changed.min_isr, changed.elr) == (1, ())


def test_a_leaving_or_quarantined_replica_is_not_eligible() -> None:
    """A broker outside `replicas` and a quarantined replica are not eligible."""
    before = record(entries(1, 2, 3), min_isr=3)
    changed = with_isr(before, isr=entries(1), min_isr=3, leaving=[BrokerId(2)], quarantined=[BrokerId(3)])

    assert changed.elr == ()


def test_isr_and_elr_are_never_empty_together() -> None:
    """A change that would empty both ISR and ELR is rejected."""
    with pytest.raises(AssertionError):
        with_isr(record(entries(1)), isr=(), min_isr=1, quarantined=[BrokerId(1)])


def test_nothing_else_of_the_record_changes() -> None:
    """A change to the ISR keeps all other fields of the partition record, including unknown fields."""
    before = msgspec.structs.replace(record(entries(1, 2)), unknown={"later": 1})
    changed = with_isr(before, isr=entries(1), min_isr=2)

    assert msgspec.structs.replace(changed, isr=before.isr, elr=before.elr) == before


@given(data=st.data())
def test_the_rule_for_every_isr(data: st.DataObject) -> None:
    """The new ELR is empty if the new ISR has `min_isr` replicas; otherwise it has all other electable replicas."""
    brokers = st.sets(st.integers(1, 6))
    isr, elr = data.draw(brokers), data.draw(brokers)
    elr -= isr
    new, leaving, quarantined = data.draw(brokers), data.draw(brokers), data.draw(brokers)
    min_isr = data.draw(st.integers(1, 6))
    expected = set() if len(new) >= min_isr else (isr | elr) - new - leaving - quarantined
    assume(new or expected)
    changed = with_isr(
        record(entries(*isr), entries(*elr)),
        isr=entries(*new),
        min_isr=min_isr,
        leaving={BrokerId(n) for n in leaving},
        quarantined={BrokerId(n) for n in quarantined},
    )

    assert {entry.broker for entry in changed.elr} == expected
    assert len(changed.elr) == len(expected)


class TestTakenOut:
    """Removal of a replica from ISR and ELR, because its broker is about to drop or distrust the stored bytes."""

    def test_leaves_isr_and_elr_for_another_generation(self) -> None:
        """A removed replica leaves ISR and ELR with a higher generation, so that its earlier reports are ignored."""
        before = msgspec.structs.replace(record(entries(1, 2)), leader=entries(1)[0])
        after = taken_out(before, BrokerId(2))

        assert after is not None
        assert (after.isr, after.elr, after.leader) == (entries(1), (), before.leader)
        assert [replica.generation for replica in after.replicas] == [0, 1, 0]

    def test_is_taken_out_of_elr_alone_too(self) -> None:
        """A replica that is removed leaves the ELR, and the other replicas of the ELR stay eligible."""
        after = taken_out(record(entries(1), entries(2, 3), min_isr=3), BrokerId(3))

        assert after is not None
        assert (after.isr, after.elr) == (entries(1), entries(2))

    def test_writes_the_directory_that_it_has_by_now(self) -> None:
        """The record gets the current directory of the broker, with a higher generation."""
        after = taken_out(record(entries(1)), BrokerId(2), "new")

        assert after is not None
        assert after.replicas[1] == Replica(broker=BrokerId(2), directory="new", generation=1)

    def test_the_others_of_an_isr_that_gets_too_small_stay(self) -> None:
        """The other replicas of an ISR that becomes too small stay eligible."""
        after = taken_out(record(entries(1, 2), entries(3), min_isr=3), BrokerId(2))

        assert after is not None
        assert (after.isr, after.elr) == (entries(1), entries(3))

    def test_a_leader_that_leaves_the_isr_gives_up_its_leadership(self) -> None:
        """If the leader itself is removed, the record has no leader, so that the controller elects another leader."""
        before = msgspec.structs.replace(record(entries(1, 2)), leader=entries(1)[0])
        after = taken_out(before, BrokerId(1))

        assert after is not None
        assert after.leader is None
        assert after.leader_epoch == before.leader_epoch

    @pytest.mark.parametrize(
        "before", [record(entries(1), min_isr=1), record((), entries(1)), record(entries(1), entries(1))]
    )
    def test_the_last_one_may_not_go(self, before: PartitionRecord) -> None:
        """The last replica of ISR and ELR stays, because otherwise no replica could be elected."""
        assert taken_out(before, BrokerId(1)) is None


def test_a_directory_that_is_new_to_the_record_starts_at_generation_0() -> None:
    """A directory that the record does not contain starts at generation 0."""
    replica = Replica(broker=BrokerId(1), directory="d", generation=4)

    assert (generation_in(replica, "d"), generation_in(replica, "e")) == (4, 0)
