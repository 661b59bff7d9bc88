"""Ranges of damaged offsets, and logs and reads that skip losses which an operator has accepted.

A gap is a range of offsets for which the log has no batches.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.configuration import Durability, TopicConfig
from fairlead_api.identifiers import LeaderEpoch, Offset
from fairlead_broker.log import DiskFull, LogDamaged, SegmentScrub
from fairlead_broker.log.leader_epochs import LEADER_EPOCHS, EpochStart
from fairlead_broker.log.segments.damage import DamagedRange, merge_ranges, readable_until, skip_accepted
from fairlead_broker.replication.divergence import divergence, end_before, epochs_between
from log_kit import BatchMaker, FaultyStorage, LogBox, begin, read_all, stored
from refusals import raises


def ranges(*pairs: tuple[int, int]) -> list[DamagedRange]:
    """Return ranges of offsets."""
    return [DamagedRange(Offset(first), Offset(following)) for first, following in pairs]


def test_neighbours_become_one_range() -> None:
    """Damaged ranges that touch or overlap are merged in any order, and other ranges stay separate."""
    merged = merge_ranges(ranges((30, 40), (0, 10), (10, 15), (12, 13), (20, 25)), Offset(0), Offset(100))

    assert list(merged) == ranges((0, 15), (20, 25), (30, 40))


def test_ranges_outside_of_the_log_are_dropped() -> None:
    """Damaged ranges below the log start or after the log end are dropped."""
    merged = merge_ranges(ranges((0, 10), (5, 12), (90, 100), (100, 110)), Offset(10), Offset(100))

    assert list(merged) == ranges((5, 12), (90, 100))


RANGES = st.lists(
    st.builds(
        lambda first, count, accepted: DamagedRange(Offset(first), Offset(first + count), accepted),
        st.integers(0, 30),
        st.integers(1, 8),
        st.booleans(),
    ),
    max_size=8,
)


def offsets_of(damaged: list[DamagedRange] | tuple[DamagedRange, ...], *, accepted: bool) -> set[int]:
    """Return the offsets in the accepted ranges, or in the ranges that are not accepted."""
    kind = [each for each in damaged if each.accepted == accepted]
    return {offset for each in kind for offset in range(each.first_offset, each.next_good_offset)}


@given(RANGES)
def test_what_was_accepted_stays_accepted(damaged: list[DamagedRange]) -> None:
    """An offset in overlapping ranges is accepted if any of the ranges is accepted, and is damaged otherwise."""
    merged = merge_ranges(damaged, Offset(0), Offset(100))
    accepted = offsets_of(damaged, accepted=True)

    assert offsets_of(merged, accepted=True) == accepted
    assert offsets_of(merged, accepted=False) == offsets_of(damaged, accepted=False) - accepted
    assert [each.first_offset for each in merged] == sorted(each.first_offset for each in merged)
    assert merge_ranges(merged, Offset(0), Offset(100)) == merged


@given(RANGES, st.integers(0, 40))
def test_reads_pass_what_was_accepted_and_nothing_else(damaged: list[DamagedRange], offset: int) -> None:
    """A read skips only accepted offsets, ends before the next damaged range, and is refused inside a damaged range."""
    merged = merge_ranges(damaged, Offset(0), Offset(100))
    accepted, refused = offsets_of(merged, accepted=True), offsets_of(merged, accepted=False)
    start = skip_accepted(merged, Offset(offset))
    limit = readable_until(merged, start, Offset(50))

    assert start not in accepted
    assert set(range(offset, start)) <= accepted
    if start in refused:
        assert isinstance(limit, DamagedRange)
        assert limit.first_offset <= start < limit.next_good_offset
    else:
        assert not isinstance(limit, DamagedRange)
        assert not (accepted | refused) & set(range(start, limit))


def test_a_read_passes_an_accepted_loss_that_nothing_follows_yet(box: LogBox, make: BatchMaker) -> None:
    """A read in an accepted loss at the log end skips to its offset limit, so that the reader waits after the loss."""
    log = box.open()
    make.fill(log, 3)
    log.note_damage([DamagedRange(Offset(2), Offset(6))])
    assert log.accept_damage(Offset(2), Offset(6))
    reads = [
        read(Offset(offset), 1 << 20, Offset(limit))
        for read in (log.read, log.read_cached)
        for offset, limit in ((2, 6), (3, 5), (4, 3))
    ]

    assert [each and (len(each.data), each.next_offset) for each in reads] == [(0, 6), (0, 5), (0, 4)] * 2


@pytest.mark.parametrize("behind", [0, 3])
def test_a_read_passes_a_gap_that_an_accepted_loss_follows(
    box: LogBox, make: BatchMaker, behind: int
) -> None:
    """A read in a gap before an accepted loss skips both, and the reader waits after the loss if no record follows."""
    log = box.open()
    begin(log)
    make.fill(log, 9, 1)
    log.skip_to(Offset(11), ())
    log.append_copies(memoryview(stored(*(make(offset) for offset in range(11, 22 + behind)))))
    log.note_damage([DamagedRange(Offset(11), Offset(22))])
    assert log.accept_damage(Offset(11), Offset(22))
    reads = [log.read(Offset(offset), 1 << 20, log.end_offset) for offset in (9, 10, 11)]
    limited = log.read(Offset(9), 1 << 20, Offset(15))

    data = stored(*(make(offset) for offset in range(22, 22 + behind)))
    assert [(each.data, each.next_offset) for each in reads] == [(data, 22 + behind)] * 3
    assert (limited.data, limited.next_offset) == (b"", 15)


def test_a_read_in_a_gap_reports_the_damage_behind_it(box: LogBox, make: BatchMaker) -> None:
    """A read in a gap returns no data up to the end of the gap; with a higher limit, it reports the damage after it."""
    log = box.open()
    begin(log)
    make.fill(log, 9, 1)
    log.skip_to(Offset(11), ())
    log.append_copies(memoryview(stored(*(make(offset) for offset in range(11, 25)))))
    log.note_damage([DamagedRange(Offset(11), Offset(22))])
    waits = [log.read(Offset(9), 1 << 20, Offset(limit)) for limit in (10, 11)]
    told = []
    for offset, limit in ((9, 12), (9, 25), (10, 25), (11, 25)):
        with pytest.raises(LogDamaged) as refusal:
            log.read(Offset(offset), 1 << 20, Offset(limit))
        told.append((refusal.value.first_offset, refusal.value.next_good_offset))

    assert [(each.data, each.next_offset) for each in waits] == [(b"", 10), (b"", 11)]
    assert told == [(11, 22)] * 4


@pytest.mark.parametrize("scrubbed", [False, True])
@pytest.mark.parametrize("stop", ["in order", "killed", "running"])
def test_whole_batches_that_changed_places_are_damage(
    box: LogBox, make: BatchMaker, stop: str, scrubbed: bool
) -> None:
    """Two good batches in the wrong order on the disk are reported as damage, and no reader silently skips a record."""
    log = box.open(TopicConfig(durability=Durability.SYNCED))
    begin(log)
    log.append([first := make(0, 10), second := make(10, 10), make(20, 10)])
    log.sync()
    if stop == "in order":
        box.stop()
    elif stop == "killed":
        log._write_checkpoint()
        box.kill()
    with box.log_files()[0].open("r+b") as file:
        file.write(stored(second, first))
    if stop != "running":
        log = box.open()
    if scrubbed:
        walk = SegmentScrub(log, log.segments[0])
        while walk.step():
            pass
        walk.finish()
        assert log.damaged == tuple(ranges((0, 10)))
    found = []
    for offset in (0, 10, 20):
        try:
            found.append(log.read(Offset(offset), 1 << 20, log.end_offset).next_offset)
        except LogDamaged as damaged:
            found.append((damaged.first_offset, damaged.next_good_offset))

    assert found == [(0, 10), 20, 30]


@pytest.mark.parametrize("changed", [1, 7, 20, 38])
def test_a_stale_batch_amid_a_read_is_damage(box: LogBox, make: BatchMaker, changed: int) -> None:
    """An intact batch with older offsets, which a lost write left in place of another batch, is never read."""
    log = box.open(TopicConfig(durability=Durability.SYNCED))
    begin(log)
    batches = [make(number) for number in range(40)]
    log.append(batches)
    log.sync()
    with box.log_files()[0].open("r+b") as file:
        file.seek(changed * batches[0].nbytes)
        file.write(stored(make(changed - 1)))
    before = log.read(Offset(0), 1 << 20, log.end_offset)
    with pytest.raises(LogDamaged) as damaged:
        log.read(Offset(changed), 1 << 20, log.end_offset)
    after = log.read(Offset(changed + 1), 1 << 20, log.end_offset)

    assert (before.data, before.next_offset) == (stored(*batches[:changed]), changed)
    assert (damaged.value.first_offset, damaged.value.next_good_offset) == (changed, changed + 1)
    assert (after.data, after.next_offset) == (stored(*batches[changed + 1 :]), 40)


@pytest.mark.parametrize("records", [0, 3])
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("durability", list(Durability))
def test_a_log_goes_on_behind_what_its_leader_has_lost(
    box: LogBox, make: BatchMaker, records: int, killed: bool, durability: Durability
) -> None:
    """A log skips the records that its leader lost by starting a new segment, and a start keeps the accepted loss."""
    log = box.open(TopicConfig(durability=durability))
    begin(log)
    before = make.fill(log, records, 1)
    log.skip_to(Offset(8), [EpochStart(LeaderEpoch(4), Offset(2))])
    ends = [(log.end_offset, log.synced_offset, log.last_epoch)]
    box.kill() if killed else box.stop()
    log = box.open()
    ends.append((log.end_offset, log.synced_offset, log.last_epoch))
    make.leader_epoch = 4
    log.append_copies(memoryview(stored(make(8, 2))))

    assert ends == [(8, 8, 4)] * 2
    assert [start.epoch for start in log.leader_epochs] == [1, 4][records == 0 :]
    assert log.recovery_report.damaged == log.recovery_report.cuts == []
    assert log.damaged == (DamagedRange(Offset(records), Offset(8), accepted=True),)
    assert log.read(Offset(records), 1 << 20, Offset(10)).next_offset == 10
    for segment in log.segments:
        scrub = SegmentScrub(log, segment)
        while scrub.step():
            pass
        scrub.finish()
    assert log.damaged == (DamagedRange(Offset(records), Offset(8), accepted=True),)
    assert log.truncate_to(Offset(5)) == records
    assert log.damaged == ()
    assert read_all(log) == stored(*before)


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("killed", [False, True])
def test_a_log_that_cannot_go_on_durably_is_where_it_was(
    box: LogBox, faults: FaultyStorage, make: BatchMaker, killed: bool, durability: Durability
) -> None:
    """A log without space for the checkpoint of a skip keeps its old end, so that no leader counts on a new end."""
    log = box.open(TopicConfig(durability=durability))
    begin(log)
    before = make.fill(log, 3, 1)
    log.sync()
    lost = [EpochStart(LeaderEpoch(1), Offset(0)), EpochStart(LeaderEpoch(4), Offset(5))]
    # The space is enough for the list of leader epochs, but not for the checkpoint.
    faults.full_suffixes = {".tmp"}
    faults.room_bytes = len(LEADER_EPOCHS.encode_header()) + len(LEADER_EPOCHS.encode([(0, 0), (5, 4)]))
    with raises(DiskFull, "checkpoint"):
        log.skip_to(Offset(8), lost)
    faults.room_bytes = None
    assert (log.end_offset, log.synced_offset, log.last_epoch, log.damaged) == (3, 3, 1, ())
    assert len(box.log_files()) == log.segment_count == 1
    if killed:
        box.kill()
        log = box.open()
    before += make.fill(log, 2, 1)
    assert read_all(log) == stored(*before)
    log.skip_to(Offset(8), lost)
    assert (log.end_offset, log.synced_offset, log.last_epoch) == (8, 8, 4)
    assert log.damaged == (DamagedRange(Offset(5), Offset(8), accepted=True),)
    box.stop()
    assert box.open().end_offset == 8


@given(epochs=st.lists(st.integers(0, 2), min_size=2, max_size=8), data=st.data())
def test_a_log_that_passed_a_loss_has_not_parted_from_its_leader(
    epochs: list[int], data: st.DataObject
) -> None:
    """A log that skipped a loss agrees with every log of the same history, and appends later copies from its leader."""
    lost_from = data.draw(st.integers(0, len(epochs) - 1))
    with TemporaryDirectory() as folder:
        leader, follower = LogBox(Path(folder) / "leader").open(), LogBox(Path(folder) / "follower").open()
        make = BatchMaker(leader_epoch=0)
        for offset, ahead in enumerate(epochs):
            if ahead or not offset:
                make.leader_epoch += ahead
                begin(leader, make.leader_epoch)
            batch = make.fill(leader, 1, 1)
            if offset < lost_from:
                follower.append_copies(memoryview(stored(*batch)))
        end = leader.end_offset
        follower.skip_to(end, epochs_between(leader.leader_epochs, follower.end_offset, end))

        for length in range(1, end + 1):
            # Replicas that have the lost records, or have deleted them, can follow this log.
            place = end, LeaderEpoch(sum(epochs[:length])), Offset(length)
            assert divergence(follower.leader_epochs, *place) is None
            assert end_before(follower.leader_epochs, *place) is None
        assert divergence(leader.leader_epochs, end, follower.last_epoch, follower.end_offset) is None
        follower.append_copies(memoryview(stored(*make.fill(leader, 1, 1))))
        assert follower.end_offset == leader.end_offset
