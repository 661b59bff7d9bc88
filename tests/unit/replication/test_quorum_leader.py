"""The leader of a partition with a write quorum: commits, near voters, and changes of voters (quorum Q2 to Q5, Q9)."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest

from fairlead_api.identifiers import BrokerEpoch, BrokerId, LeaderEpoch, Offset, Revision
from fairlead_broker.registry.records import DurabilityState, Quorum, Replica
from fairlead_broker.replication import (
    AdvanceLowWatermark,
    BrokersChanged,
    DirectoryFailed,
    FetchRefusal,
    FollowerFetched,
    LeaseChanged,
    LogStartMoved,
    QuorumLeader,
    RaiseLogStart,
    RecordChanged,
    WriteOutcome,
    WriteQuorumSet,
)
from replication_kit import (
    FIRST_REVISION,
    LAG_SECONDS,
    LEADER,
    LEADER_EPOCH,
    SECOND,
    THIRD,
    DrivenLeader,
    advanced,
    entries,
    life,
    only_write,
    quorum_record,
    registered,
    voters_of,
    writes,
)

FOURTH = BrokerId(4)


def led(driven: DrivenLeader) -> QuorumLeader:
    """Return the state machine of a leader with a write quorum."""
    return cast("QuorumLeader", driven.machine)


def begun(record: object = None, *, end: int = 0, **options: object) -> DrivenLeader:
    """Return a leader that has its first batch, at offset `end`, on its own disk."""
    driven = DrivenLeader(
        record if record is not None else quorum_record(),  # type: ignore[arg-type]
        end=end,
        **options,  # type: ignore[arg-type]
    )
    driven.append(end + 1)
    driven.sync(end + 1)
    return driven


def test_the_fastest_voters_commit() -> None:
    """The high watermark is the W-th highest counted offset, so the slowest voter delays nothing (quorum Q4)."""
    driven = begun()
    first = advanced(driven.fetch(SECOND, 1))
    driven.append(9)
    driven.fetch(THIRD, 1)
    second = advanced(driven.fetch(SECOND, 9))
    own = advanced(driven.sync(9))

    assert first == [1]
    assert second == []
    assert own == [9]


def test_two_followers_commit_before_the_disk_of_the_leader() -> None:
    """The leader counts as one voter, and may commit records that its own disk has not synced (quorum Q4)."""
    driven = begun()
    driven.append(5)
    driven.fetch(SECOND, 5)

    assert advanced(driven.fetch(THIRD, 5)) == [5]


def test_all_voters_commit_with_the_largest_quorum() -> None:
    """With W = N, every voter must report before the high watermark is known (quorum Q4)."""
    driven = begun(quorum_record(write=3))
    waiting = advanced(driven.fetch(SECOND, 1))

    assert waiting == []
    assert led(driven).high_watermark is None
    assert advanced(driven.fetch(THIRD, 1)) == [1]


def test_an_older_record_is_committed_by_the_own_epoch() -> None:
    """Copies of older records do not move the high watermark; the batch that begins the epoch does (quorum Q4)."""
    driven = DrivenLeader(quorum_record(), end=7, high_watermark=3)
    copied = advanced(driven.fetch(SECOND, 7)) + advanced(driven.fetch(THIRD, 7))
    unknown = led(driven).high_watermark
    driven.append(8)
    driven.sync(8)

    assert copied == []
    assert (unknown, led(driven).readable_limit) == (None, 8 if led(driven).high_watermark else 3)
    assert advanced(driven.fetch(SECOND, 8)) == [8]
    assert led(driven).high_watermark == 8


def test_only_synced_records_count() -> None:
    """With durability=synced the synced offset counts, with durability=replicated the end of the log (quorum Q2)."""
    synced, replicated = begun(), begun(quorum_record(durability=DurabilityState.REPLICATED))
    unsynced = advanced(synced.fetch(SECOND, 1, synced_offset=Offset(0)))

    assert unsynced == []
    assert advanced(synced.progress(SECOND, 1)) == [1]
    assert advanced(replicated.fetch(SECOND, 1, synced_offset=Offset(0))) == [1]


def test_a_report_counts_in_the_incarnation_of_its_entry() -> None:
    """A restarted voter counts only once the record names its new incarnation (quorum Q2 and Q9)."""
    driven = begun(quorum_record(write=3))
    driven.fetch(THIRD, 1)
    driven.register(SECOND, epoch=BrokerEpoch(40), revision=Revision(40))
    effects = driven.fetch(SECOND, 1, broker_epoch=BrokerEpoch(40))
    write = only_write(effects)

    assert advanced(effects) == []
    assert voters_of(write.record)[SECOND] == 40
    assert write.added == ((SECOND, Revision(40)),)
    assert advanced(driven.answer(write, WriteOutcome.STORED, FIRST_REVISION + 1)) == [1]


def test_a_report_of_another_generation_does_not_count() -> None:
    """A replica that dropped bytes reports a later generation, and its earlier reports are ignored (quorum Q2)."""
    driven = begun(quorum_record(write=3))
    driven.fetch(SECOND, 1)
    replicas = tuple(
        msgspec.structs.replace(each, generation=int(each.broker == SECOND))
        for each in led(driven).record.replicas
    )
    driven.change(FIRST_REVISION + 1, replicas=replicas)
    report = driven.report(SECOND, 1)

    assert led(driven).refusal_of(report) is FetchRefusal.NOT_A_REPLICA
    assert advanced(driven.step(FollowerFetched(report, 0.0))) == []
    assert advanced(driven.progress(SECOND, 1)) == []
    assert advanced(driven.fetch(THIRD, 1)) == []
    assert advanced(driven.fetch(SECOND, 1, generation=1)) == [1]


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"leader_epoch": LeaderEpoch(2)}, FetchRefusal.STALE_LEADER_EPOCH),
        ({"leader_epoch": LeaderEpoch(4)}, FetchRefusal.UNKNOWN_LEADER_EPOCH),
        ({"broker_epoch": BrokerEpoch(1)}, FetchRefusal.STALE_BROKER_EPOCH),
        ({}, None),
    ],
)
def test_fetches_of_other_epochs_are_refused(fields: dict[str, object], refusal: FetchRefusal | None) -> None:
    """A fetch in a different leader epoch, or from an ended incarnation, is refused."""
    driven = begun()

    assert led(driven).refusal_of(driven.report(SECOND, 1, **fields)) is refusal


def test_an_emptied_replica_returns_once_others_have_everything() -> None:
    """An empty replica becomes a voter again if W voters, including the replica, have everything (quorum Q9)."""
    driven = begun(end=7)
    driven.register(THIRD, epoch=BrokerEpoch(40), directories=("new",))
    alone = writes(driven.fetch(THIRD, 0, broker_epoch=BrokerEpoch(40)))
    write = only_write(driven.fetch(SECOND, 8))

    assert alone == []
    assert voters_of(write.record)[THIRD] == 40
    assert write.record.replicas[2] == Replica(broker=THIRD, directory="new")


def test_the_start_of_the_epoch_is_held_before_a_return() -> None:
    """Before voters change, W voters must have all records below the epoch's start, which may be committed (Q9)."""
    driven = DrivenLeader(quorum_record(), end=7, high_watermark=3)
    driven.register(THIRD, epoch=BrokerEpoch(40))
    early = writes(driven.fetch(THIRD, 3, broker_epoch=BrokerEpoch(40)))
    driven.fetch(SECOND, 5)

    assert early == []
    assert voters_of(only_write(driven.fetch(SECOND, 7)).record)[THIRD] == 40


def test_both_quorums_count_while_a_proposal_is_undecided() -> None:
    """Until a proposal is decided, the high watermark needs W voters of the old and of the new record (quorum Q4)."""
    driven = begun()
    driven.fetch(SECOND, 1)
    driven.register(SECOND, epoch=BrokerEpoch(40))
    write = only_write(driven.fetch(SECOND, 0, broker_epoch=BrokerEpoch(40)) + driven.fetch(THIRD, 1))
    driven.append(5)
    driven.sync(5)
    stored_alone = advanced(driven.fetch(THIRD, 5))
    driven.answer(write, WriteOutcome.UNKNOWN)
    in_doubt = advanced(driven.pass_time(0.5))

    assert voters_of(write.record) == {LEADER: life(LEADER), SECOND: 40, THIRD: life(THIRD)}
    assert stored_alone == [5]
    assert in_doubt == []


def test_a_proposal_that_fewer_voters_hold_holds_the_high_watermark_back() -> None:
    """A larger write quorum counts before it is decided: W voters of the new record must have the offset (Q4)."""
    driven = begun()
    driven.fetch(SECOND, 1)
    driven.fetch(THIRD, 1)
    write = only_write(driven.step(WriteQuorumSet(3)))
    driven.append(5)
    driven.sync(5)
    before = advanced(driven.fetch(SECOND, 5))
    driven.answer(write, WriteOutcome.UNKNOWN)
    still = advanced(driven.fetch(SECOND, 5))
    driven.change(FIRST_REVISION + 1, quorum=write.record.quorum, min_isr=3)

    assert (write.record.quorum, write.record.min_isr) == (Quorum(write=3, voters=entries([1, 2, 3])), 3)
    assert (before, still) == ([], [])
    assert advanced(driven.fetch(THIRD, 5)) == [5]


def test_a_refused_proposal_no_longer_counts() -> None:
    """A refused write is dropped, and the next write waits for another event."""
    driven = begun()
    driven.fetch(SECOND, 1)
    driven.fetch(THIRD, 1)
    write = only_write(driven.step(WriteQuorumSet(3)))
    driven.append(5)
    driven.sync(5)
    driven.fetch(SECOND, 5)
    effects = driven.answer(write, WriteOutcome.REFUSED)
    late = driven.answer(write, WriteOutcome.STORED, 99)
    held_back = writes(driven.fetch(THIRD, 5))

    assert advanced(effects) == [5]
    assert writes(effects) == []
    assert late == held_back == []
    assert only_write(driven.pass_time(1)).record.min_isr == 3


def test_the_write_quorum_waits_for_the_high_watermark() -> None:
    """A changed write quorum is written once the high watermark is known (quorum Q9)."""
    driven = begun()
    early = writes(driven.step(WriteQuorumSet(3)))
    driven.fetch(SECOND, 1)

    assert early == []
    assert only_write(driven.fetch(THIRD, 1)).record.min_isr == 3


def reassigned(adding: tuple[BrokerId, ...], removing: tuple[BrokerId, ...]) -> DrivenLeader:
    """Return a leader with a known high watermark, whose partition is being moved."""
    brokers = {
        broker: registered(broker) for broker in (LEADER, SECOND, THIRD, FOURTH, BrokerId(5), BrokerId(6))
    }
    plain = quorum_record()
    added = tuple(Replica(broker=broker, directory=f"d{broker}", generation=50) for broker in adding)
    kept = tuple(each for each in plain.replicas if each.broker not in removing)
    leaving = tuple(each for each in plain.replicas if each.broker in removing)
    record = msgspec.structs.replace(
        plain, replicas=(*kept, *added, *leaving), adding=adding, removing=removing
    )
    driven = begun(record, brokers=brokers)
    driven.fetch(SECOND, 1)
    return driven


def test_the_leader_finishes_a_reassignment() -> None:
    """Once the added replica has all records, one write makes it a voter and drops the leaving voter (quorum Q9)."""
    driven = reassigned((FOURTH,), (THIRD,))
    early = writes(driven.fetch(FOURTH, 0, generation=50))
    write = only_write(driven.fetch(FOURTH, 1, generation=50))

    assert early == []
    assert voters_of(write.record).keys() == {LEADER, SECOND, FOURTH}
    assert [each.broker for each in write.record.replicas] == [LEADER, SECOND, FOURTH]
    assert (write.record.adding, write.record.removing) == ((), ())
    assert write.added == ((FOURTH, Revision(24)),)


def test_a_leader_that_leaves_waits_for_the_controller() -> None:
    """A leader whose replica leaves writes nothing while another member stays (quorum Q9)."""
    driven = reassigned((FOURTH,), (LEADER,))

    assert writes(driven.fetch(FOURTH, 1, generation=50)) == []


def test_all_replicas_are_exchanged_in_two_steps() -> None:
    """If every member leaves, the leader stays until one of the added voters can take over (quorum Q9)."""
    added = (FOURTH, BrokerId(5), BrokerId(6))
    driven = reassigned(added, (LEADER, SECOND, THIRD))
    driven.fetch(FOURTH, 1, generation=50)
    driven.fetch(BrokerId(5), 1, generation=50)
    write = only_write(driven.fetch(BrokerId(6), 1, generation=50))

    assert voters_of(write.record).keys() == {*added, LEADER}
    assert (write.record.adding, write.record.removing) == ((), (LEADER,))
    assert write.record.min_isr == 3


def test_slow_voters_stay_voters() -> None:
    """No replica is removed for being slow, but acks=all is refused with fewer than W near voters (quorum Q5)."""
    driven = begun()
    driven.fetch(SECOND, 1)
    driven.append(9)
    driven.sync(9)
    effects = driven.pass_time(LAG_SECONDS + 2)
    alone = (led(driven).in_sync_count, led(driven).enough_in_sync)
    driven.fetch(SECOND, 9)

    assert writes(effects) == []
    assert alone == (1, False)
    assert (led(driven).near, led(driven).enough_in_sync) == ({LEADER, SECOND}, True)
    assert led(driven).min_isr == 2


def test_a_dead_voter_is_not_near() -> None:
    """A voter whose incarnation is not registered is not near, even right after the start of the epoch (quorum Q5)."""
    driven = begun()
    driven.step(BrokersChanged({LEADER: registered(LEADER), SECOND: registered(SECOND)}))

    assert led(driven).near == {LEADER, SECOND}


def test_a_voter_without_the_beginning_of_the_epoch_is_not_caught_up() -> None:
    """A near voter counts as caught up once it has every committed record; before the first commit, none does."""
    driven = begun()
    unknown = led(driven).caught_up
    driven.fetch(SECOND, 1)
    committed = led(driven).caught_up
    driven.fetch(THIRD, 1)

    assert led(driven).near == {LEADER, SECOND, THIRD}
    assert (unknown, committed) == (frozenset(), {LEADER, SECOND})
    assert led(driven).caught_up == {LEADER, SECOND, THIRD}


def test_a_leader_with_a_slow_disk_leaves_a_vacancy() -> None:
    """A leader whose disk lags resigns if enough other voters are near to elect a leader and to commit."""
    driven = begun()
    driven.append(9)
    driven.fetch(SECOND, 9)
    driven.pass_time(LAG_SECONDS)
    driven.fetch(THIRD, 9)
    write = only_write(driven.pass_time(2))
    driven.answer(write, WriteOutcome.STORED, FIRST_REVISION + 1)
    driven.append(12)
    driven.fetch(SECOND, 12)

    assert write.record.leader is None
    assert write.record.leader_epoch == LEADER_EPOCH + 1
    assert led(driven).resigned
    assert advanced(driven.fetch(THIRD, 12)) == []


@pytest.mark.parametrize(
    ("durability", "voters"),
    [(DurabilityState.SYNCED, {LEADER, SECOND, THIRD}), (DurabilityState.REPLICATED, {SECOND, THIRD})],
)
def test_a_failed_disk_gives_up_leadership_and_unsynced_votes(
    durability: DurabilityState, voters: set[BrokerId]
) -> None:
    """A leader with a failed disk resigns, and gives up its vote if unsynced records counted (quorum Q11)."""
    driven = begun(quorum_record(durability=durability))
    driven.fetch(SECOND, 1)
    driven.fetch(THIRD, 1)
    write = only_write(driven.step(DirectoryFailed()))

    assert write.record.leader is None
    assert voters_of(write.record).keys() == voters


def test_a_failed_disk_waits_for_enough_near_voters() -> None:
    """A leader with a failed disk resigns once the other near voters can elect a leader and commit (quorum Q11)."""
    driven = begun()
    driven.fetch(SECOND, 1)
    driven.fetch(THIRD, 1)
    driven.register(THIRD, epoch=BrokerEpoch(40))
    waiting = writes(driven.step(DirectoryFailed()))

    assert waiting == []
    assert only_write(driven.register(THIRD)).record.leader is None


def test_nothing_is_written_without_a_lease() -> None:
    """Without a confirmed lease, acks=all continues, while weak acks and writes of the record stop (rule 3.7)."""
    driven = begun()
    driven.step(LeaseChanged(confirmed=False))
    driven.register(THIRD, epoch=BrokerEpoch(40))
    effects = driven.fetch(SECOND, 1) + driven.fetch(THIRD, 1, broker_epoch=BrokerEpoch(40))
    alone = begun(
        quorum_record(write=1, voters=(LEADER,), replicas=(Replica(broker=LEADER, directory="d1"),))
    )
    alone.step(LeaseChanged(confirmed=False))

    assert advanced(effects) == [1]
    assert writes(effects) == []
    assert (led(driven).serves_weak_acks, led(driven).acknowledges_in_doubt) == (False, True)
    assert led(alone).serves_weak_acks


def test_records_are_deleted_when_w_voters_deleted_them() -> None:
    """The low watermark is the W-th highest log start (quorum Q16)."""
    driven = begun(end=9, log_start=0)
    driven.fetch(SECOND, 10)
    unknown = led(driven).low_watermark
    driven.step(LogStartMoved(Offset(4)))
    effects = driven.fetch(THIRD, 10, log_start=Offset(4))

    assert unknown == 0
    assert [each.offset for each in effects if isinstance(each, AdvanceLowWatermark)] == [4]


def test_a_follower_that_deletes_later_moves_the_low_watermark() -> None:
    """After a follower's next report, its log start counts towards the low watermark (quorum Q16)."""
    quorum = Quorum(write=2, voters=entries([1, 2, 3]), log_start=4)
    driven = begun(quorum_record(quorum=quorum), end=9, log_start=4)
    before = driven.fetch(SECOND, 10)
    after = driven.fetch(SECOND, 10, log_start=Offset(4))

    assert [each for each in before if isinstance(each, AdvanceLowWatermark)] == []
    assert [each for each in after if isinstance(each, AdvanceLowWatermark)] == [
        AdvanceLowWatermark(Offset(4))
    ]


def test_the_leader_follows_a_greater_log_start() -> None:
    """A leader deletes what a voter has deleted, up to the high watermark (quorum Q16)."""
    quorum = Quorum(write=2, voters=entries([1, 2, 3]), log_start=6)
    driven = begun(quorum_record(quorum=quorum), end=9)
    unknown = driven.step(LeaseChanged(confirmed=True))
    known = driven.fetch(SECOND, 10)
    again = driven.fetch(THIRD, 10, log_start=Offset(8))

    assert [each for each in unknown if isinstance(each, RaiseLogStart)] == []
    assert [each for each in known if isinstance(each, RaiseLogStart)] == [RaiseLogStart(Offset(6))]
    assert [each for each in again if isinstance(each, RaiseLogStart)] == [RaiseLogStart(Offset(8))]


def test_tombstones_wait_for_present_followers() -> None:
    """The leader removes tombstones below the offsets of all followers that are present."""
    driven = begun()
    unknown = led(driven).removal_limit()
    driven.append(9)
    driven.sync(9)
    driven.fetch(SECOND, 9)
    driven.fetch(THIRD, 4)

    assert (unknown, led(driven).removal_limit()) == (0, 4)


def test_what_the_leader_knows_about_its_replicas() -> None:
    """The leader reports the counted offset of each replica, and whether its entry is current (quorum Q18)."""
    driven = begun()
    driven.register(THIRD, epoch=BrokerEpoch(40))
    driven.fetch(SECOND, 1)
    driven.fetch(THIRD, 0, broker_epoch=BrokerEpoch(40))
    machine = led(driven)

    assert [machine.counted_of(each) for each in (LEADER, SECOND, THIRD, FOURTH)] == [1, 1, 0, None]
    assert [machine.is_current(each) for each in (LEADER, SECOND, THIRD, FOURTH)] == [
        True,
        True,
        False,
        False,
    ]
    assert (machine.leader_epoch, machine.revision, machine.end_offset) == (LEADER_EPOCH, FIRST_REVISION, 1)
    assert (machine.counts_synced, machine.begins_with_batch, machine.lease_confirmed) == (True, True, True)
    assert machine.log_start == 0


def test_a_record_of_another_leader_ends_the_leadership() -> None:
    """A leader that is no longer named by the record commits nothing more, and older records change nothing."""
    driven = begun()
    driven.step(RecordChanged(quorum_record(write=3), Revision(FIRST_REVISION - 1)))
    unchanged = led(driven).min_isr
    driven.change(FIRST_REVISION + 1, leader=entries([SECOND])[0])

    assert unchanged == 2
    assert led(driven).resigned
    assert advanced(driven.fetch(SECOND, 1)) == []
