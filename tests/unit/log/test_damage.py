"""Ranges of damaged offsets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.identifiers import Offset
from fairlead_broker.log.damage import DamagedRange, merge_ranges, readable_until, skip_accepted
from log_kit import BatchMaker, LogBox


def ranges(*pairs: tuple[int, int]) -> list[DamagedRange]:
    """Return ranges of offsets."""
    return [DamagedRange(Offset(first), Offset(following)) for first, following in pairs]


def test_neighbours_become_one_range() -> None:
    """Ranges that touch or overlap are joined, whatever their order; others stay apart."""
    merged = merge_ranges(ranges((30, 40), (0, 10), (10, 15), (12, 13), (20, 25)), Offset(0), Offset(100))

    assert list(merged) == ranges((0, 15), (20, 25), (30, 40))


def test_ranges_outside_of_the_log_are_dropped() -> None:
    """What lies below the log start or behind the end is nobody's concern any more."""
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
    """Return the offsets in ranges of one kind."""
    kind = [each for each in damaged if each.accepted == accepted]
    return {offset for each in kind for offset in range(each.first_offset, each.next_good_offset)}


@given(RANGES)
def test_what_was_accepted_stays_accepted(damaged: list[DamagedRange]) -> None:
    """However ranges overlap, an offset is accepted if any range with it is, and damaged if it is in any."""
    merged = merge_ranges(damaged, Offset(0), Offset(100))
    accepted = offsets_of(damaged, accepted=True)

    assert offsets_of(merged, accepted=True) == accepted
    assert offsets_of(merged, accepted=False) == offsets_of(damaged, accepted=False) - accepted
    assert [each.first_offset for each in merged] == sorted(each.first_offset for each in merged)
    assert merge_ranges(merged, Offset(0), Offset(100)) == merged


@given(RANGES, st.integers(0, 40))
def test_reads_pass_what_was_accepted_and_nothing_else(damaged: list[DamagedRange], offset: int) -> None:
    """A read begins at the first offset that is not accepted, and is refused there or goes up to the next range."""
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
    """As far as its reader may see, so that the reader waits behind it and not before it."""
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
