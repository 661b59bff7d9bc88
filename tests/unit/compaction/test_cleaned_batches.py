"""Batches that replace stored batches: which records are kept, which batches are merged, and which fields remain."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import pytest

from fairlead_api.batch.batches import ProducerStamp, Record, decode_records, encode, record_batch
from fairlead_api.batch.control_batches import Marker, MarkerKind, pack_marker
from fairlead_api.batch.extension import (
    ExtensionEntry,
    ExtensionType,
    idempotency_extension,
    pack_extension,
    read_extension,
)
from fairlead_api.batch.header import (
    LENGTH_STOP,
    STAMP_BYTES,
    Attribute,
    BatchHeader,
    make_stamp,
    pack_header,
    read_header,
)
from fairlead_api.identifiers import Offset, ProducerEpoch, ProducerId, TimestampUs
from fairlead_broker.compaction.cleaned_batches import CleanedBatches, Totals
from fairlead_broker.compaction.fates import VERBATIM_BYTES, Fates, RoundFacts
from fairlead_broker.compaction.kept_rows import kept_rows
from fairlead_broker.compaction.key_hashes import KeyHashes
from fairlead_broker.compaction.key_map import KeyMap
from fairlead_broker.compaction.newest_records import NewestRecords
from fairlead_broker.compaction.windows import KEYS, NO_HORIZON, WindowBuilder

HASHES = KeyHashes(bytes(32))
NOW = 1_000_000
RETENTION = 500
FACTS = RoundFacts(now_us=NOW, delete_retention_us=RETENTION, removal_limit=0)
Row = tuple[bytes | None, bytes | None]


@dataclass
class History:
    """Stored batches, one after another."""

    batches: list[bytes] = field(default_factory=list)
    end: int = 0
    time_us: int = 10
    epoch: int = 1

    def add(
        self,
        *rows: Row,
        flags: int = 0,
        producer: ProducerStamp | None = None,
        extension: tuple[ExtensionEntry, ...] = (),
    ) -> int:
        """Append a batch, and return its base offset."""
        columns = record_batch(
            [value for _, value in rows],
            [key for key, _ in rows],
            [self.time_us] * len(rows),
            default_timestamp_us=0,
        )
        return self._append(encode(columns, producer=producer, extension=extension).to_bytes(), flags)

    def mark(self, producer: int, epoch: int, first: int, kind: MarkerKind = MarkerKind.COMMIT) -> int:
        """Append a marker."""
        marker = Marker(
            ProducerId(producer), ProducerEpoch(epoch), kind, Offset(first), TimestampUs(self.time_us)
        )
        return self._append(pack_marker(marker), 0)

    def control(self) -> int:
        """Append a control batch of a later release."""
        extension = pack_extension((ExtensionEntry(ExtensionType.MARKER, struct.pack("<HHqq", 9, 9, 0, 0)),))
        known = read_header(
            pack_marker(Marker(ProducerId(1), ProducerEpoch(1), MarkerKind.ABORT, None, TimestampUs(0)))
        )
        header = msgspec.structs.replace(
            known, attributes=int(Attribute.CONTROL), extension_bytes=len(extension), length=known.length
        )
        return self._append(pack_header(header, [extension]) + extension, 0)

    def _append(self, data: bytes, flags: int) -> int:
        header = read_header(data)
        assert header.length + LENGTH_STOP == len(data)
        base, self.end = self.end, self.end + header.last_offset_delta + 1
        self.batches.append(make_stamp(header, base, self.epoch, self.time_us, flags) + data[STAMP_BYTES:])
        return base


@dataclass
class Cleaned:
    """The batches that replace stored batches."""

    batches: list[bytes]
    totals: Totals

    @property
    def headers(self) -> list[BatchHeader]:
        """Header of each batch."""
        return [read_header(each) for each in self.batches]

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Offsets of each batch."""
        return [(each.base_offset, each.next_offset) for each in self.headers]

    @property
    def records(self) -> list[Record]:
        """All records."""
        return decode_records(b"".join(self.batches))

    @property
    def offsets(self) -> list[int]:
        """Offset of each record."""
        return [each.offset for each in self.records]

    def horizons(self) -> list[int]:
        """Horizons of the batches that have a horizon."""
        entries = [
            entry
            for each in self.batches
            for entry in read_extension(each, read_header(each))
            if entry.type == 1
        ]
        return [struct.unpack("<q", entry.value)[0] for entry in entries]


def cleaned(
    batches: Sequence[bytes], until: int = 2**40, window: int = 3, *, is_whole: bool = True, **facts: object
) -> Cleaned:
    """Clean batches according to the given facts, a few batches in each window."""
    known = msgspec.structs.replace(FACTS, **facts)
    key_map, fates = KeyMap(1 << 16), Fates(known, until)
    for batch in batches:
        builder = WindowBuilder(fates.has_rows, KEYS)
        builder.add(read_header(batch), memoryview(batch))
        found = builder.take()
        keyed = [row for row, key in enumerate(found.columns.column(0).to_pylist()) if key is not None]
        if keyed:
            upper, lower = HASHES.of(found.columns.column(0))
            assert key_map.put(upper[keyed], lower[keyed], found.offsets[keyed])
    totals, out = Totals(), []
    newest = NewestRecords(key_map, HASHES, 0)
    writer = CleanedBatches(known, fates, totals)
    builder = WindowBuilder(lambda header: fates.has_rows(header) and newest.may_be_in(header))
    for number, batch in enumerate(batches):
        builder.add(read_header(batch), memoryview(batch))
        assert not builder.is_full, "few records do not fill a window"
        if number % window == window - 1:
            found = builder.take()
            out += writer.add(found, kept_rows(found, newest, known))
    if not builder.is_empty:
        found = builder.take()
        out += writer.add(found, kept_rows(found, newest, known))
    out += writer.finish()
    result = Cleaned([data for _, data in out], totals)
    ends = [start for start, _ in result.ranges[1:]]
    assert not is_whole or [end for _, end in result.ranges[:-1]] == ends, (
        "an offset is in no batch or in two"
    )
    return result


@pytest.mark.parametrize("window", [1, 2, 100])
def test_neighbours_are_merged_within_a_leader_epoch(window: int) -> None:
    """Records of one epoch are merged into one batch that covers all offsets; an epoch without records is kept."""
    history = History()
    for number in range(4):
        history.add((b"a", b"%d" % number), (None, b"without a key"))
    history.epoch = 2
    history.add((b"a", b"of epoch 2"))
    history.epoch, history.time_us = 3, 99
    history.add((b"a", b"newest"), (b"b", b"1"))
    history.add((b"c", None), (b"b", b"2"))
    found = cleaned(history.batches, window=window)

    assert found.ranges == [(0, 8), (8, 9), (9, 13)]
    assert found.offsets == [9, 11, 12]
    assert [each.record_count for each in found.headers] == [0, 0, 3]
    assert [each.append_time_us for each in found.headers] == [10, 10, 99]
    assert (found.totals.kept_records, found.totals.dropped_records) == (3, 10)


def test_append_times_of_records_are_never_mixed() -> None:
    """Batches with append times are merged only if the times are equal; other batches take the newest time."""
    history = History()
    history.add((b"gone", b"1"))
    history.add((b"a", b"1"), flags=1)
    history.add((b"b", b"1"), flags=1)
    history.add((b"gone", b"2"))
    history.time_us = 20
    history.add((b"c", b"1"), flags=1)
    history.add((b"gone", b"3"), flags=1)
    history.time_us = 30
    history.add((b"d", b"1"))
    history.time_us = 40
    history.add((b"gone", b"4"))
    history.add((b"e", b"1"))
    found = cleaned(history.batches)

    times = {record.key: record.timestamp_us for record in found.records}
    assert times == {b"a": 10, b"b": 10, b"c": 20, b"d": 30, b"e": 40, b"gone": 40}
    assert [each.append_time_us for each in found.headers] == [10, 20, 40]


def test_tombstones_stay_until_their_horizon_and_the_removal_limit() -> None:
    """The first round stamps a horizon, later rounds keep it, and an expired tombstone below the limit is removed."""
    history = History()
    history.add((b"a", b"1"))
    history.add((b"a", None), (b"b", b"1"))
    first = cleaned(history.batches)
    kept = cleaned(first.batches, now_us=NOW + RETENTION)
    limited = cleaned(first.batches, now_us=NOW + RETENTION + 1, removal_limit=1)
    gone = cleaned(first.batches, now_us=NOW + RETENTION + 1, removal_limit=3)

    assert [each.offsets for each in (first, kept, limited, gone)] == [[1, 2], [1, 2], [1, 2], [2]]
    assert [each.horizons() for each in (first, kept, limited, gone)] == [[NOW + RETENTION]] * 3 + [[]]
    assert [each.totals.removed_to for each in (first, kept, limited, gone)] == [0, 0, 0, 2]
    assert (first.totals.oldest_horizon_us, first.totals.horizon_bytes) == (
        NOW + RETENTION,
        len(first.batches[0]),
    )
    assert gone.totals.oldest_horizon_us == NO_HORIZON


def test_batches_with_other_horizons_are_not_merged() -> None:
    """Tombstones of two rounds keep their different horizons; batches without tombstones are merged with either."""
    history = History()
    history.add((b"a", None))
    old = cleaned(history.batches, now_us=5).batches
    later = History(end=1)
    later.add((b"b", b"1"))
    later.add((b"c", None))
    found = cleaned([*old, *later.batches])

    assert found.ranges == [(0, 2), (2, 3)]
    assert found.horizons() == [5 + RETENTION, NOW + RETENTION]


def test_batches_of_remembered_producers_and_keys_keep_their_fields() -> None:
    """A batch in the producer state keeps its range and its producer or key, even without records."""
    history = History()
    produced = history.add((b"a", b"1"), (b"a", b"2"), producer=ProducerStamp(7, 1, 0))
    keyed = history.add((b"b", b"1"), (b"c", None), extension=idempotency_extension(b"once", bytes(16)))
    forgotten = history.add((b"a", b"3"), producer=ProducerStamp(8, 1, 0))
    history.add((b"b", b"2"))
    found = cleaned(history.batches, producer_batches=frozenset({produced}), keyed_batches=frozenset({keyed}))

    assert found.ranges == [(0, 2), (2, 4), (forgotten, 6)]
    assert [each.producer_id for each in found.headers] == [7, -1, -1]
    assert [entry.type for entry in read_extension(found.batches[1], found.headers[1])] == [1, 2, 4]
    assert found.offsets == [3, 4, 5]
    assert found.totals.horizon_bytes == len(found.batches[1])


def test_transactions_become_plain_records_or_go() -> None:
    """Committed records lose the transactional bit; aborted records, and markers below the limit, are removed."""
    history = History()
    history.add((b"a", b"committed"), producer=ProducerStamp(1, 1, 0, is_transactional=True))
    history.add((b"a", b"aborted"), producer=ProducerStamp(2, 1, 0, is_transactional=True))
    history.add((b"c", b"after another abort"), producer=ProducerStamp(2, 2, 0, is_transactional=True))
    commit = history.mark(1, 1, 0)
    history.mark(2, 1, 1, MarkerKind.ABORT)
    last = history.mark(2, 2, 2)
    other = history.control()
    history.add((b"b", b"1"))
    aborted = ((2, 1, 2), (2, 100, 120))
    first = cleaned(history.batches, aborted=aborted)
    kept = frozenset({(2, 2)})
    second = cleaned(first.batches, aborted=aborted, removal_limit=100, last_markers=kept)

    assert [record.value for record in first.records] == [b"committed", b"after another abort", b"1"]
    assert first.ranges == [(0, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7, 8)]
    assert not any(each.is_transactional and not each.is_control for each in first.headers)
    assert second.ranges == [(0, last), (last, other), (other, other + 1), (other + 1, 8)]
    assert second.totals.removed_to == commit + 2
    assert second.offsets == first.offsets


def test_the_last_batch_of_a_transactional_producer_keeps_its_sequences() -> None:
    """A remembered batch of a transaction keeps its producer and range without the bit; an aborted one is empty."""
    history = History()
    committed = history.add(
        (b"a", b"1"), (b"b", b"2"), producer=ProducerStamp(1, 4, 7, is_transactional=True)
    )
    history.mark(1, 4, committed)
    aborted = history.add((b"a", b"3"), (b"b", b"4"), producer=ProducerStamp(2, 9, 5, is_transactional=True))
    marker = history.mark(2, 9, aborted, MarkerKind.ABORT)
    history.add((b"b", b"5"))
    found = cleaned(
        history.batches,
        aborted=((2, aborted, marker),),
        producer_batches=frozenset({committed, aborted}),
        last_markers=frozenset({(1, 4), (2, 9)}),
        removal_limit=100,
    )
    kept = [each for each in found.headers if each.base_offset in {committed, aborted}]

    assert [(each.producer_id, each.producer_epoch, each.base_sequence) for each in kept] == [
        (1, 4, 7),
        (2, 9, 5),
    ]
    assert [(each.last_offset_delta, each.record_count) for each in kept] == [(1, 1), (1, 0)]
    assert not any(each.is_transactional for each in kept)
    assert [record.value for record in found.records] == [b"1", b"5"]


def test_batches_above_the_range_stay() -> None:
    """A batch that begins at or above the end of the range is kept unchanged."""
    history = History()
    history.add((b"a", b"1"), (b"a", b"2"))
    history.add((b"a", b"3"), (b"a", b"4"), producer=ProducerStamp(1, 1, 0, is_transactional=True))
    history.add((b"b", None))
    above = history.add((b"a", b"5"), (b"a", b"6"))
    found = cleaned(history.batches, until=above)

    assert found.batches[-1] == history.batches[-1]
    assert found.offsets == [3, 4, 5, 6]
    assert [each.is_transactional for each in found.headers] == [False] * len(found.headers)


def test_a_large_batch_without_a_gap_stays_as_it_is() -> None:
    """A large batch that loses no record is not rewritten, unless a horizon must be stamped."""
    history = History()
    history.add((b"a", bytes(VERBATIM_BYTES)))
    history.add((b"b", bytes(VERBATIM_BYTES)), (b"c", None))
    history.add((b"d", bytes(VERBATIM_BYTES)))
    history.add((b"e", b"1"))
    found = cleaned(history.batches)
    again = cleaned(found.batches)

    assert [found.batches[number] == history.batches[number] for number in (0, 1, 2)] == [True, False, True]
    assert again.batches == found.batches


def test_a_merged_batch_has_limits() -> None:
    """Batches are merged up to the largest body size and the largest range of offsets."""
    history = History()
    for number in range(6):
        history.add((b"%d" % number, bytes(100)))
    found = cleaned(history.batches, batch_bytes_max=300)
    far = History(end=2**31 + 5)
    far.add((b"x", b"1"))
    apart = cleaned([*history.batches, *far.batches], is_whole=False)

    assert found.ranges == [(0, 2), (2, 4), (4, 6)]
    assert apart.ranges == [(0, 6), (2**31 + 5, 2**31 + 6)]
