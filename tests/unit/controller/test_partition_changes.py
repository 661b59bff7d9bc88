"""The next step of a partition record, in individual cases and after arbitrary sequences of events."""

from __future__ import annotations

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from fairlead_api.identifiers import BrokerId, LeaderEpoch, Offset, Revision
from fairlead_broker.controller.election import can_stay
from fairlead_broker.controller.log_end import LogEnd
from fairlead_broker.controller.partition_changes import (
    ClusterView,
    elect_unclean,
    has_live_leader,
    next_record,
)
from fairlead_broker.controller.reassignment import Target, cancel, is_under_way, start
from fairlead_broker.registry.isr import with_isr
from fairlead_broker.registry.records import BrokerState, DurabilityState, InSync, PartitionRecord
from partition_kit import DRAINING, KEY, R1, R2, R3, R4, STOPPING, brokers, record, registered, short


@pytest.mark.parametrize(
    ("there", "found", "expected"),
    [
        pytest.param([R1, R2, R3], record(1, "123"), None, id="all is well"),
        pytest.param([R2, R3], record(1, "123"), (2, 8, "23", ""), id="the leader is gone"),
        pytest.param([R1, R2, R3], record(None, "23"), (2, 8, "23", ""), id="the leader has resigned"),
        pytest.param([R1, R3], record(1, "123"), (1, 7, "13", ""), id="a follower is gone"),
        pytest.param([R1], record(1, "123"), (1, 7, "1", "23"), id="below the minimum they become eligible"),
        pytest.param([R2], record(1, "1", "23"), (2, 8, "2", "13"), id="an eligible one leads"),
        pytest.param([R2], record(1, "1", min_isr=1), (None, 7, "1", ""), id="nobody complete is left"),
        pytest.param([R2], record(None, "1", min_isr=1), None, id="and that is written down once"),
        pytest.param([(1, STOPPING), R2, R3], record(1, "123"), (2, 8, "23", ""), id="the leader stops"),
        pytest.param([R1, R2, (3, STOPPING)], record(1, "123"), (1, 7, "12", ""), id="a follower stops"),
        pytest.param([(1, STOPPING)], record(1, "1", "23"), None, id="who stops alone leads to the end"),
        pytest.param(
            [(1, STOPPING), R2], record(1, "1", "2"), (2, 8, "2", "1"), id="it stops below the minimum"
        ),
        pytest.param([(1, DRAINING), R2, R3], record(1, "123"), (2, 8, "213", ""), id="the leader drains"),
        pytest.param([(1, DRAINING), R2], record(1, "1", "2"), None, id="a drain waits for somebody in sync"),
        pytest.param(
            [(1, DRAINING), (2, DRAINING), R3],
            record(1, "123"),
            (3, 8, "312", ""),
            id="the leader drains, and the first of the others too",
        ),
        pytest.param(
            [(1, DRAINING), (2, DRAINING)],
            record(1, "12"),
            None,
            id="two that are registered as draining do not hand it back and forth",
        ),
        pytest.param(
            [R1, (2, DRAINING), R3], record(1, "123"), None, id="a follower that drains stays in sync"
        ),
        pytest.param(
            [R1, R2, R3, R4],
            record(1, "123", replicas="2341", adding=(BrokerId(4),), removing=(BrokerId(1),)),
            None,
            id="a move waits for those that are added",
        ),
        pytest.param(
            [R1, R2, R3, R4],
            record(1, "1234", replicas="2341", adding=(BrokerId(4),), removing=(BrokerId(1),)),
            (2, 8, "2134", ""),
            id="before a move ends the leader goes to one who stays",
        ),
        pytest.param(
            [R1, R2, R3, R4],
            record(2, "1234", replicas="2341", adding=(BrokerId(4),), removing=(BrokerId(1),)),
            (2, 7, "234", ""),
            id="a move ends",
        ),
        pytest.param(
            [R1, R2, R4],
            record(
                1,
                "14",
                replicas="1423",
                adding=(BrokerId(4),),
                removing=(BrokerId(2), BrokerId(3)),
                min_isr=3,
            ),
            None,
            id="a move never ends below the minimum",
        ),
    ],
)
def test_the_next_step_follows_from_how_things_are(
    there: list[tuple[int, BrokerState]], found: PartitionRecord, expected: tuple[object, ...] | None
) -> None:
    """The next leader, leader epoch, ISR and ELR follow from the partition record and the registered brokers."""
    assert short(next_record(KEY, found, ClusterView(brokers(*there)))) == expected


def test_a_move_ends_with_the_replicas_that_were_wanted() -> None:
    """A finished move leaves exactly the requested replicas, in the requested order."""
    found = record(2, "1234", replicas="2341", adding=(BrokerId(4),), removing=(BrokerId(1),))
    after = next_record(KEY, found, ClusterView(brokers(R1, R2, R3, R4)))

    assert after is not None
    assert [replica.broker for replica in after.replicas] == [2, 3, 4]
    assert not is_under_way(after)


def test_another_life_of_a_follower_has_to_join_again() -> None:
    """A new incarnation of a follower must join again."""
    there = brokers(R1, R2) | {BrokerId(3): registered(3, 99, last_broker_epoch=13)}

    assert short(next_record(KEY, record(1, "123"), ClusterView(there))) == (1, 7, "12", "")


def test_another_life_of_the_leader_leads_again_with_a_higher_epoch() -> None:
    """A new incarnation of the leader leads again in a higher epoch if it is complete and no other replica can lead."""
    there = {BrokerId(1): registered(1, 99, last_broker_epoch=11)}
    after = next_record(KEY, record(1, "1", min_isr=1), ClusterView(there))

    assert short(after) == (1, 8, "1", "")
    assert after is not None
    assert after.leader is not None
    assert after.leader.broker_epoch == 99


def test_a_draining_broker_leads_only_without_an_alternative() -> None:
    """A draining broker leads only if no other replica can lead."""
    view = ClusterView(brokers(R2, R3), draining=frozenset({BrokerId(2)}))
    alone = ClusterView(brokers(R2), draining=frozenset({BrokerId(2)}))

    assert short(next_record(KEY, record(1, "123"), view)) == (3, 8, "32", "")
    assert short(next_record(KEY, record(1, "123"), alone)) == (2, 8, "2", "13")


def test_a_quarantined_replica_is_neither_in_sync_nor_eligible() -> None:
    """A quarantined replica is neither in sync nor eligible, whichever broker leads."""
    there = brokers(R1, R2) | {BrokerId(3): registered(3, 13, quarantined=True)}

    assert short(next_record(KEY, record(1, "123", min_isr=3), ClusterView(there))) == (1, 7, "12", "")
    assert short(next_record(KEY, record(None, "3", "2"), ClusterView(there))) == (2, 8, "2", "")


def test_a_replica_whose_disk_has_failed_is_not_waited_for() -> None:
    """A replica without a registered directory leaves the ISR and is not elected."""
    there = brokers(R1, R2) | {BrokerId(3): registered(3, 13, directories=())}

    assert short(next_record(KEY, record(1, "123"), ClusterView(there))) == (1, 7, "12", "")
    assert short(next_record(KEY, record(None, "3", "2"), ClusterView(there))) == (2, 8, "2", "3")


def test_no_leader_is_elected_on_a_restored_record() -> None:
    """On a partition record from a store's backup, no leader is elected, because the ISR may have shrunk since."""
    view = ClusterView(brokers(R1, R2, R3))
    led, leaderless = (msgspec.structs.replace(record(leader, "23"), restored=True) for leader in (4, None))

    assert short(next_record(KEY, leaderless, view)) is None
    assert short(next_record(KEY, led, view)) == (None, 7, "23", "")


def end(epoch: int, offset: int) -> LogEnd:
    """Return a log end."""
    return LogEnd(LeaderEpoch(epoch), Offset(offset))


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ({2: end(7, 5), 3: end(7, 9)}, (3, 8, "3", "")),
        ({2: end(7, 5), 3: end(6, 9)}, (2, 8, "2", "")),
        ({2: end(7, 5), 3: end(7, 5)}, (2, 8, "2", "")),
        ({2: end(30, 5), 3: end(7, 9)}, (2, 31, "2", "")),
        ({1: end(9, 100), 2: end(7, 5)}, (2, 10, "2", "")),
        ({2: end(-1, 0)}, (2, 8, "2", "")),
        ({1: end(9, 100)}, None),
        ({}, None),
    ],
)
def test_unclean_the_longest_log_leads(
    ends: dict[BrokerId, LogEnd], expected: tuple[object, ...] | None
) -> None:
    """An unclean election picks the longest log by epoch, end and assignment order.

    The leader epoch of the new leader is above every reported epoch.
    """
    view = ClusterView(brokers(R2, R3))

    assert short(elect_unclean(KEY, record(None, "1", min_isr=1), view, ends)) == expected


def test_an_unclean_election_of_a_restored_record_waits_for_all_answers() -> None:
    """An unclean election on a record from a backup needs the log end of every replica."""
    view = ClusterView(brokers(R1, R2, R3))
    found = msgspec.structs.replace(record(None, "1"), restored=True)
    some = {BrokerId(1): end(7, 5), BrokerId(2): end(7, 6)}
    elected = elect_unclean(KEY, found, view, {**some, BrokerId(3): end(7, 1)})

    assert elect_unclean(KEY, found, view, some) is None
    assert short(elected) == (2, 8, "2", "")
    assert elected is not None
    assert not elected.restored


def test_unclean_the_new_leader_is_written_with_the_directory_that_it_has() -> None:
    """An unclean election records the current directory of the new leader."""
    there = {BrokerId(2): registered(2, 12, directories=("new",))}
    after = elect_unclean(KEY, record(None, "1", min_isr=1), ClusterView(there), {BrokerId(2): end(-1, 0)})

    assert after is not None
    assert [replica.directory for replica in after.replicas] == ["d1", "new", "d3"]


class History:
    """A partition and four brokers with any sequence of events."""

    def __init__(self, min_isr: int, durability: DurabilityState) -> None:
        """Start with brokers 1 to 3 in sync and broker 1 as the leader."""
        self.revision = 100
        self.brokers = brokers(R1, R2, R3, R4)
        self.draining: frozenset[BrokerId] = frozenset()
        self.record = record(1, "123", min_isr=min_isr, durability=durability)

    @property
    def view(self) -> ClusterView:
        """The cluster as the controller sees it."""
        return ClusterView(dict(self.brokers), draining=self.draining, cordoned=self.draining)

    def happen(self, what: str, broker: BrokerId) -> None:
        """Change the state of a broker, as brokers and operators do."""
        here = self.brokers.get(broker)
        self.revision += 1
        if what == "come" and here is None:
            last = max([entry.broker_epoch for entry in (*self.record.isr, *self.record.elr)])
            self.brokers[broker] = registered(broker, self.revision, last_broker_epoch=last)
        elif what == "wipe" and here is None:
            self.brokers[broker] = registered(broker, self.revision)
        elif what == "go":
            self.brokers.pop(broker, None)
        elif what in ("stop", "quarantine") and here is not None:
            state = STOPPING if what == "stop" else here.value.state
            quarantined = what == "quarantine" or bool(here.value.quarantined)
            self.brokers[broker] = registered(broker, here.create_revision, state, quarantined=quarantined)
        elif what == "drain":
            self.draining ^= {broker}
        elif what == "join":
            self._join(broker)
        elif what == "move" and not is_under_way(self.record):
            ids = sorted({1, 2, 3, 4} - {broker})
            places = [Target(BrokerId(n), f"d{n}") for n in ids]
            self.record = start(self.record, places, Revision(self.revision))
        elif what == "cancel":
            self.record = cancel(KEY, self.record, self.brokers) or self.record

    def _join(self, broker: BrokerId) -> None:
        """Add a replica to the ISR, as a leader does."""
        here = self.brokers.get(broker)
        kept = broker in {replica.broker for replica in self.record.replicas}
        if here is None or not kept or not has_live_leader(self.record, self.brokers):
            return
        entry = InSync(broker=broker, broker_epoch=here.create_revision)  # type: ignore[arg-type]
        others = tuple(each for each in self.record.isr if each.broker != broker)
        if entry not in self.record.isr and can_stay(KEY, entry, self.brokers):
            self.record = with_isr(self.record, isr=(*others, entry), min_isr=self.record.min_isr)

    def settle(self) -> list[PartitionRecord]:
        """Apply the controller's steps until none is left, and return the record after each step."""
        steps: list[PartitionRecord] = []
        while (after := next_record(KEY, self.record, self.view)) is not None:
            assert after != self.record, "a step changes something"
            steps.append(after)
            self.record = after
            assert len(steps) < 10, "a fixed point is reached"
        return steps


HAPPENINGS = st.lists(
    st.tuples(
        st.sampled_from(
            ["come", "go", "stop", "wipe", "quarantine", "drain", "join", "move", "cancel", "join", "come"]
        ),
        st.sampled_from([BrokerId(n) for n in (1, 2, 3, 4)]),
        st.booleans(),
    ),
    max_size=40,
)


@given(HAPPENINGS, st.integers(1, 3), st.sampled_from(list(DurabilityState)))
def test_whatever_happens_the_record_comes_to_rest_and_stays_sound(
    happenings: list[tuple[str, BrokerId, bool]], min_isr: int, durability: DurabilityState
) -> None:
    """After any events, the ISR or ELR has a member, each new leader has a higher epoch, and the leader is live."""
    history = History(min_isr, durability)
    for what, broker, settles in happenings:
        history.happen(what, broker)
        if not settles:
            continue
        before = history.record
        for after in history.settle():
            kept = {replica.broker for replica in after.replicas}
            known = {entry.broker for entry in (*before.isr, *before.elr)}
            in_sync = {entry.broker for entry in after.isr}
            assert after.isr or after.elr
            assert in_sync <= known, "the controller adds no replica to the ISR"
            assert in_sync.isdisjoint(entry.broker for entry in after.elr)
            assert not after.elr or len(after.isr) < after.min_isr
            assert kept >= {entry.broker for entry in (*after.isr, *after.elr)}
            assert after.leader_epoch == before.leader_epoch + (
                after.leader is not None and after.leader != before.leader
            )
            if after.leader is not None:
                assert after.leader in after.isr
                assert has_live_leader(after, history.brokers)
            if len(after.replicas) < len(before.replicas):
                assert len(after.isr) >= after.min_isr, "no move ends below the minimum"
            before = after
