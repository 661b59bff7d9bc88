"""The cache of append times, limited by age and size."""

from __future__ import annotations

from fairlead_api.identifiers import LeaderEpoch, Offset, PartitionIndex, TimestampUs, TopicId
from fairlead_broker.runtime.peer_serving.positions import (
    REMEMBERED_MAX,
    REMEMBERED_SECONDS,
    AppendTime,
    AppendTimes,
)

TOPIC = TopicId("01890000-0000-7000-8000-000000000000")
TIME = TimestampUs(1_700_000_000_000_000)


def place(offset: int, epoch: int = 1) -> AppendTime:
    """Return an offset of partition 0."""
    return AppendTime(TOPIC, PartitionIndex(0), LeaderEpoch(epoch), Offset(offset))


def test_a_time_is_remembered_for_its_offset_and_its_leader() -> None:
    """An append time is cached per offset and leader epoch, because another leader may have written another record."""
    times = AppendTimes()
    times.put(place(5), TIME, 10.0)

    assert times.get(place(5), 11.0) == TIME
    assert times.get(place(6), 11.0) is None
    assert times.get(place(5, epoch=2), 11.0) is None


def test_what_is_old_is_forgotten() -> None:
    """Append times expire together, at the age limit of the oldest of them."""
    times = AppendTimes()
    times.put(place(5), TIME, 10.0)
    times.put(place(6), TIME, 10.0 + REMEMBERED_SECONDS / 2)

    assert times.get(place(6), 9.9 + REMEMBERED_SECONDS) == TIME
    assert times.get(place(6), 10.0 + REMEMBERED_SECONDS) is None

    times.put(place(6), TIME, 11.0 + REMEMBERED_SECONDS)

    assert times.get(place(6), 10.0 + 2 * REMEMBERED_SECONDS) == TIME


def test_it_has_a_bound() -> None:
    """The number of cached append times is limited."""
    times = AppendTimes()
    for offset in range(REMEMBERED_MAX + 1):
        times.put(place(offset), TIME, 10.0)

    assert times.get(place(0), 10.0) is None
    assert times.get(place(REMEMBERED_MAX), 10.0) == TIME
