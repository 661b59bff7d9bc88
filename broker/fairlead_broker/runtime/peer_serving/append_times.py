"""When the batches at some offsets were appended, remembered for a while.

For `positions`: the lag of all groups is asked for again and again, and most groups stand where others stand or where
they stood, so that the same header would be read a thousand times. Pure: time is an argument.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fairlead_api.identifiers import LeaderEpoch, Offset, PartitionIndex, TimestampUs, TopicId

REMEMBERED_SECONDS: Final = 60.0
"""Compaction may take the batch away, and the next one is younger: then a lag is told too long for so many seconds."""
REMEMBERED_MAX: Final = 50_000
"""About 10 MiB."""


class AppendTime(NamedTuple):
    """An offset in the log of one leader; another leader may have another batch there."""

    topic_id: TopicId
    partition: PartitionIndex
    leader_epoch: LeaderEpoch
    offset: Offset


class AppendTimes:
    """Forgets everything at once: when the first of it is too old, or when it is too much."""

    __slots__ = ("_began", "_times")

    def __init__(self) -> None:
        self._times: dict[AppendTime, TimestampUs] = {}
        self._began = 0.0

    def get(self, place: AppendTime, now: float) -> TimestampUs | None:
        """Return what is remembered; `now` in seconds that never go back."""
        if now - self._began >= REMEMBERED_SECONDS:
            self._times.clear()
        return self._times.get(place)

    def put(self, place: AppendTime, append_time_us: TimestampUs, now: float) -> None:
        """Remember a time that was just read."""
        if len(self._times) >= REMEMBERED_MAX:
            self._times.clear()
        if not self._times:
            self._began = now
        self._times[place] = append_time_us
