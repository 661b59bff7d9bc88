"""The data directory on disk: file names and every byte, after a run of the log.

The batches are the test vectors of docs/reference/record-batch-vectors, so a newer Arrow changes nothing here. The
golden directory is also opened again, because a later release must read it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec

import checkout
import golden
from fairlead_api.batch.control_batches import Marker, MarkerKind, pack_marker
from fairlead_api.batch.extension import idempotency_extension, pack_extension
from fairlead_api.batch.header import STAMP_BYTES, iterate_headers, make_stamp, pack_header, read_header
from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import (
    BrokerEpoch,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TimestampUs,
    TopicId,
    TopicIdPartition,
)
from fairlead_broker.log.leader_epochs import EpochStart
from fairlead_broker.log.segments.segment_writer import StampedBatch
from log_kit import FIRST_TIME_US, OTHER_TOPIC, LogBox, begin, read_all

_VECTORS = checkout.ROOT / "docs/reference/record-batch-vectors"
_SMALL = TopicConfig(segment_bytes=2048, index_interval_bytes=512)
_HEADER_BYTES = 88
_ROW_BYTES = 48


def log_files() -> Any:
    """Describe every file of a small data directory after a graceful stop."""
    with tempfile.TemporaryDirectory() as folder:
        box = LogBox(Path(folder) / "data")
        _run(box)
        return {
            str(path.relative_to(box.path)): _content(path)
            for path in sorted(box.path.rglob("*"))
            if path.is_file()
        }


def _content(path: Path) -> Any:
    """Return the bytes of a file: a document as its header and its JSON, any other file in hexadecimal rows."""
    if path.name == "lock":
        return "the number of the process"
    data = path.read_bytes()
    if data.startswith(b"FLDC"):
        return {"header": data[:16].hex(), "json": data[16:].decode()}
    return [data[at : at + _ROW_BYTES].hex() for at in range(0, len(data), _ROW_BYTES)]


def _run(box: LogBox) -> None:
    """Write three segments in three leader epochs, delete the first records, and accept a loss."""
    log = box.open(_SMALL)
    box.opened.set_broker_epoch(BrokerEpoch(3), intact_since=BrokerEpoch(2), residence="boot/volume")
    box.opened.quarantine([TopicIdPartition(TopicId(OTHER_TOPIC), PartitionIndex(4))])
    begin(log, 1)
    for number in range(8):
        log.append([_batch(log.end_offset, 1, producer=(7, 2, number))])
    begin(log, 4)
    log.append(
        [_batch(log.end_offset, 4, key=b"order-1"), _batch(Offset(log.end_offset + 1), 4, "stamped.bin")]
    )
    log.append([_batch(log.end_offset, 4, producer=(11, 3, 0), is_transactional=True)])
    log.append([_marker(log.end_offset, 4)])
    log.sync()
    log.checkpoint_high_watermark = log.end_offset
    log.advance_log_start(Offset(5), remove_us=box.clock.now_us())
    log.remove_dropped(box.clock.now_us())
    log.skip_to(Offset(log.end_offset + 10), [EpochStart(LeaderEpoch(5), Offset(log.end_offset + 2))])
    begin(log, 6)
    for number in range(2):
        log.append([_batch(log.end_offset, 6, producer=(9, 0, number))])
    log.checkpoint_high_watermark = Offset(log.end_offset - 1)
    box.stop()


def _batch(
    offset: Offset,
    epoch: int,
    vector: str = "one-record.bin",
    *,
    producer: tuple[int, int, int] = (-1, -1, -1),
    key: bytes | None = None,
    is_transactional: bool = False,
) -> StampedBatch:
    """Return a batch with the body of a test vector and a new header, stamped as by a leader."""
    data = (_VECTORS / vector).read_bytes()
    found = read_header(data)
    extension = b"" if key is None else pack_extension(idempotency_extension(key, key.ljust(16, b"\0")))
    content = extension + data[found.body_start :]
    header = msgspec.structs.replace(
        found,
        length=_HEADER_BYTES - 12 + len(content),
        extension_bytes=len(extension),
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        attributes=found.attributes | is_transactional,
    )
    return _stamped(pack_header(header, [content]) + content, offset, epoch)


def _marker(offset: Offset, epoch: int) -> StampedBatch:
    """Return a marker that aborts the transaction of the preceding batch."""
    kind, decided_us = MarkerKind.ABORT, TimestampUs(FIRST_TIME_US)
    marker = Marker(ProducerId(11), ProducerEpoch(3), kind, Offset(offset - 1), decided_us)
    return _stamped(pack_marker(marker), offset, epoch)


def _stamped(packed: bytes, offset: Offset, epoch: int) -> StampedBatch:
    header = read_header(packed)
    stamp = make_stamp(header, offset, epoch, FIRST_TIME_US + offset)
    last = Offset(offset + header.last_offset_delta)
    return StampedBatch(
        stamp, memoryview(packed)[STAMP_BYTES:], offset, last, header.max_timestamp_us, len(packed)
    )


def test_the_files_of_a_data_directory_are_unchanged() -> None:
    """The run writes the same bytes to the files of a data directory as earlier releases did."""
    golden.assert_unchanged("log_files", log_files())


def test_the_golden_directory_is_opened_and_read(tmp_path: Path) -> None:
    """A data directory of an earlier release opens as clean and undamaged, with the same records and producers."""
    files = {name: _bytes(content) for name, content in golden.read("log_files").items()}
    for name, data in files.items():
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_bytes(data)
    stored = b"".join(data for name, data in sorted(files.items()) if name.endswith(".log"))
    box = LogBox(tmp_path / "data")
    log = box.open(_SMALL)
    log.load_aborted()
    found = read_all(log)

    assert box.opened.was_clean
    assert box.opened.identity.last_broker_epoch == 3
    assert (log.log_start_offset, log.end_offset, log.checkpoint_high_watermark) == (5, 27, 26)
    assert log.last_epoch == 6
    assert [(each.first_offset, each.next_good_offset, each.accepted) for each in log.damaged] == [
        (15, 25, True)
    ]
    assert sorted(log.producers.state.producers) == [7, 9, 11]
    assert list(log.producers.state.keys) == [b"order-1"]
    assert log.producers.aborted.between(Offset(5), Offset(27)) == [(11, 13, 14, 3)]
    assert stored.endswith(found)
    assert [header.base_offset for _, header in iterate_headers(found)] == [5, 6, 7, 8, 9, 13, 14, 25, 26]
    box.stop()


def _bytes(content: Any) -> bytes:
    if isinstance(content, str):
        return b""
    if isinstance(content, dict):
        return bytes.fromhex(content["header"]) + str(content["json"]).encode()
    return bytes.fromhex("".join(content))
