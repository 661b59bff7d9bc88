"""The last time at which a replica had every record of the leader."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.identifiers import Offset
from fairlead_broker.replication.follower_progress import ENTRIES_PER_LAG, EndOffsets

LAG_SECONDS = 10.0
STEP_SECONDS = LAG_SECONDS / ENTRIES_PER_LAG


def at(ring: EndOffsets, counted: int, now: float) -> float | None:
    """Return the time at which a replica with this offset last had every record."""
    return ring.caught_up_at(Offset(counted), now)


def test_a_replica_at_the_log_end_is_complete_now() -> None:
    """A replica at the log end is complete at the current time, even if the partition was idle for a long time."""
    ring = EndOffsets(Offset(10), 0.0, LAG_SECONDS)
    ring.note(500.0)

    assert at(ring, 10, 501.0) == 501.0


def test_a_replica_without_the_newest_was_complete_until_its_append() -> None:
    """A replica without the newest records was complete until they were appended."""
    ring = EndOffsets(Offset(10), 0.0, LAG_SECONDS)
    ring.appended(Offset(20), 3.0)
    ring.appended(Offset(30), 5.0)

    assert at(ring, 10, 6.0) == 3.0
    assert at(ring, 25, 6.0) == 5.0
    assert at(ring, 30, 6.0) == 6.0


def test_a_replica_far_behind_has_no_known_time() -> None:
    """For a replica behind the oldest remembered log end, the time is unknown."""
    ring = EndOffsets(Offset(10), 0.0, LAG_SECONDS)
    ring.appended(Offset(20), 3.0)

    assert at(ring, 9, 4.0) is None


def test_what_is_older_than_the_lag_time_is_forgotten() -> None:
    """Log ends older than the lag time are dropped: a replica that reached no newer log end is out of sync anyway."""
    ring = EndOffsets(Offset(10), 0.0, LAG_SECONDS)
    ring.appended(Offset(20), 3.0)
    ring.note(13.0)

    assert at(ring, 10, 13.0) == 3.0

    ring.note(13.5)

    assert at(ring, 10, 13.5) is None
    assert at(ring, 20, 13.5) == 13.5


def test_appends_in_quick_succession_share_an_entry() -> None:
    """Appends in quick succession share an entry, so a returned time may be too early, but is never too late."""
    ring = EndOffsets(Offset(0), 0.0, LAG_SECONDS)
    for n in range(1, 100):
        ring.appended(Offset(n), n * STEP_SECONDS / 100)

    assert at(ring, 98, STEP_SECONDS) == 0.0


@given(
    st.lists(st.tuples(st.integers(0, 5), st.floats(0, 2)), max_size=60),
    st.integers(0, 100),
)
def test_the_returned_time_is_never_later_than_the_true_one(
    history: list[tuple[int, float]], counted: int
) -> None:
    """The returned time is never later than the actual time at which the replica last had the whole log."""
    ring = EndOffsets(Offset(0), 0.0, LAG_SECONDS)
    now, end, complete_until = 0.0, 0, 0.0
    for grown, seconds in history:
        now += seconds
        if end <= counted:
            complete_until = now
        end += grown
        ring.appended(Offset(end), now)
    told = at(ring, counted, now)

    assert told is None or told <= (now if end <= counted else complete_until)
