"""Records that a page shows: excerpts of a few rows, merged by time across all partitions."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, cast

from fairlead_console.records import arrow
from fairlead_console.records.scan import Positions, Progress, Rows, Scan, ScanRange

if TYPE_CHECKING:
    import pyarrow as pa

EXCERPT_BYTES: Final = 4096
"""Number of bytes of a key or value that a list shows."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Start of a key, a value or the value of a header."""

    data: bytes
    size: int
    """Size of the whole in bytes."""

    @property
    def is_cut(self) -> bool:
        """Whether bytes are missing."""
        return len(self.data) < self.size


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record with excerpts of its contents."""

    partition: int
    offset: int
    timestamp_us: int
    key: Excerpt | None
    value: Excerpt | None
    headers: tuple[tuple[str, Excerpt | None], ...]


@dataclass(frozen=True, slots=True)
class FoundPage:
    """Records in the order of a page, and the progress of the scan."""

    records: list[FoundRecord]
    progress: Progress


async def found_page(scan: Scan, scan_range: ScanRange, records_max: int) -> FoundPage:
    """Collect the records of a scan; records that do not fit on the page must be found again by the next scan."""
    by_partition: dict[int, list[FoundRecord]] = {}
    async for rows in scan.rows():
        kept = by_partition.setdefault(rows.partition, [])
        # The first record beyond the page gives the position of the next page.
        kept += found_records(rows, records_max + 1 - len(kept))
    return _page(by_partition.values(), scan.progress, scan_range, records_max)


def found_records(rows: Rows, records_max: int, excerpt_bytes: int = EXCERPT_BYTES) -> list[FoundRecord]:
    """Return the first rows of a batch as records with excerpts."""
    columns = rows.columns.slice(0, max(0, records_max))
    if not columns.num_rows:
        return []
    times = cast("list[int]", columns.column("timestamp").cast(arrow.pa.int64()).to_pylist())
    headers: list[Any] = columns.column("headers").to_pylist()
    offsets: list[int] = cast("list[int]", columns.column("offset").to_pylist())
    return [
        FoundRecord(
            rows.partition,
            offset,
            timestamp_us,
            key,
            value,
            tuple((each["key"], _excerpt_of(each["value"], excerpt_bytes)) for each in entries or ()),
        )
        for offset, timestamp_us, key, value, entries in zip(
            offsets,
            times,
            _excerpts(cast("pa.BinaryArray", columns.column("key")), excerpt_bytes),
            _excerpts(cast("pa.BinaryArray", columns.column("value")), excerpt_bytes),
            headers,
            strict=True,
        )
    ]


def _excerpts(column: pa.BinaryArray, excerpt_bytes: int) -> list[Excerpt | None]:
    starts = arrow.pc.binary_slice(column, 0, excerpt_bytes).to_pylist()
    sizes = arrow.pc.binary_length(column).to_pylist()
    return [
        None if data is None else Excerpt(data, size or 0) for data, size in zip(starts, sizes, strict=True)
    ]


def _excerpt_of(data: bytes | None, excerpt_bytes: int) -> Excerpt | None:
    return None if data is None else Excerpt(data[:excerpt_bytes], len(data))


def _page(
    lists: Iterable[list[FoundRecord]], progress: Progress, scan_range: ScanRange, records_max: int
) -> FoundPage:
    """Merge the lists by time, keeping the order of each list, and move positions back to the first record left out."""
    lists = list(lists)
    newest_first = scan_range.is_backward
    merged = heapq.merge(*lists, key=attrgetter("timestamp_us"), reverse=newest_first)
    records = [record for record, _ in zip(merged, range(records_max), strict=False)]
    shown: Positions = {}
    for record in records:
        shown[record.partition] = shown.get(record.partition, 0) + 1
    for found in lists:
        count = shown.get(found[0].partition, 0) if found else 0
        if count < len(found):
            left_out = found[count]
            progress.positions[left_out.partition] = left_out.offset + newest_first
            progress.end = "found"
    progress.found = len(records)
    return FoundPage(records, progress)
