"""What one sync writes out, and what may be said when it has.

Used by `partition_log` and `syncing`. Taken before the sync, published behind it: what is appended in between
belongs to the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fairlead_api.identifiers import Offset
from fairlead_broker.log.segments.segments import Segment
from fairlead_broker.log.segments.storage import File


@dataclass(frozen=True, slots=True)
class SyncPoint:
    """A state of the log that is to be synced."""

    generation: int
    """Truncations so far: the same offsets mean other records behind one. Read before the end, and changed after it:
    a point never has an older end than its generation."""
    end_offset: Offset
    names: int
    """Files made so far whose names have to be on the disk too."""
    segments: tuple[Segment, ...]
    files: tuple[File, ...]

    def forget_files(self) -> None:
        """Let go of the files of closed segments, once they are written out."""
        for segment in self.segments:
            # A segment closed meanwhile has index files that were not among those written out.
            segment.forget_files(self.files)


def unsynced_segments(segments: Sequence[Segment], synced: Offset) -> Iterator[Segment]:
    """Yield segments that hold something past an offset, the newest first."""
    for segment in reversed(segments):
        if segment.next_offset > synced or segment.unsynced_files:
            yield segment
        elif segment.next_offset > segment.base_offset:
            return
