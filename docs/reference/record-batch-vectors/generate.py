"""Write the test vectors of the record batch: `python generate.py [FOLDER]`.

The Python SDK wrote the files `captured-*.bin` once, with real compressors. The captured files are never written again,
because stored batches must stay readable in all later releases. All files except the captured files are made with
`encoder`, and have the same bytes each time.
"""

from __future__ import annotations

import base64
import json
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from encoder import NOW_US, Batch, Message, Row, entry, lz4_junk, lz4_stored, padded, zstd_run, zstd_stored

LIMITS = {
    "batch_bytes_max": 1_000_000,
    "decompressed_bytes_max": 2_000_000,
    "timestamp_before_max_us": 2**63 - 1,
    "timestamp_after_max_us": 3_600_000_000,
}


@dataclass(frozen=True)
class Vector:
    """One file: its batch, the expected answer of a leader to a produce request, and the records for a reader."""

    name: str
    says: str
    batch: bytes
    produce: str = "accepted"
    read: str = "records"
    records: list[dict[str, Any]] = field(default_factory=list)


MANY = [
    Row(b"", b"", NOW_US - 5),
    Row(None, None, NOW_US),
    Row(b"\x00\xff", b"k", NOW_US - 7, (("trace", b"1"), ("trace", None), ("", b""))),
    Row("größe".encode(), b"k", NOW_US + 3, ()),
]
"""Records with null and empty keys and values, duplicate and empty header names, a null header value, and an empty list
of headers."""


def text(data: bytes | None) -> str | None:
    """Return bytes in base64, as in the JSON file; None for None."""
    return None if data is None else base64.b64encode(data).decode()


def described(
    rows: list[Row], base_offset: int = 0, time_us: int | None = None, deltas: list[int] | None = None
):
    """Return the records that a reader finds, as in the JSON file."""
    return [
        {
            "offset": base_offset + (number if deltas is None else deltas[number]),
            "timestamp_us": row.timestamp_us if time_us is None else time_us,
            "key": text(row.key),
            "value": text(row.value),
            "headers": [[name, text(value)] for name, value in row.headers or ()],
        }
        for number, row in enumerate(rows)
    ]


def good_vectors() -> Iterator[Vector]:
    """Yield batches that every reader accepts."""
    one, plain = [Row(b"hello")], Batch()
    yield Vector("one-record", "one record that has only a value", plain.encode(), records=described(one))
    many = Batch(MANY, producer=(7, 2, 40))
    yield Vector(
        "nulls-and-empties",
        "records with null and empty keys and values, duplicate header names and a null header value; a producer id",
        many.encode(),
        records=described(MANY),
    )
    old = [Row(b"a", timestamp_us=-62_135_596_800_000_000), Row(b"b", timestamp_us=-1)]
    yield Vector(
        "times-before-1970",
        "negative timestamps, including the smallest accepted timestamp",
        Batch(old).encode(),
        records=described(old),
    )
    lz4 = replace(many, codec=1, wrap=lz4_stored)
    yield Vector(
        "lz4-stored-block", "an LZ4 frame with one stored block", lz4.encode(), records=described(MANY)
    )
    zstd = replace(many, codec=2, wrap=zstd_stored)
    yield Vector(
        "zstd-stored-block", "a zstd frame with one stored block", zstd.encode(), records=described(MANY)
    )
    skipped = replace(plain, extension=padded(entry(0x7FFF, b"later") + entry(3, b"")))
    yield Vector(
        "extension-skipped", "extension types that a reader skips", skipped.encode(), records=described(one)
    )
    full = replace(plain, edit=put_buffer(3, b"\x01"))
    yield Vector(
        "all-ones-bitmap", "validity bitmaps although no value is null", full.encode(), records=described(one)
    )
    stamped = replace(many, stamp=(1000, 3, NOW_US + 9, 0))
    yield Vector(
        "stamped",
        "a batch that a leader stamped at offset 1000",
        stamped.encode(),
        records=described(MANY, 1000),
    )
    append = replace(many, stamp=(1000, 3, NOW_US + 9, 1))
    yield Vector(
        "stamped-append-time",
        "stamp flag 0: the time of every record is the append time",
        append.encode(),
        records=described(MANY, 1000, NOW_US + 9),
    )


def put_buffer(number: int, content: bytes) -> Callable[[Message], None]:
    """Return an edit that replaces a buffer before the buffers are placed."""

    def edit(message: Message) -> None:
        message.buffers[number] = content

    return edit


def put_number(what: str, index: int, part: int, number: int) -> Callable[[Message], None]:
    """Return a change of one number in the metadata; `what` is nodes (length, null count) or places (start, bytes)."""

    def lie(message: Message) -> None:
        getattr(message, what)[index][part] = number

    return lie


def put_field(name: str, number: int) -> Callable[[Message], None]:
    """Return an edit that replaces a field of the message."""

    def edit(message: Message) -> None:
        setattr(message, name, number)

    return edit


def special_vectors() -> Iterator[Vector]:
    """Yield batches that only brokers write: readers accept such a batch, and a leader refuses it from a client."""
    refused = "malformed_batch"
    rows = [Row(b"a", b"1"), Row(b"b", b"2")]
    kept = Batch(rows, deltas=[1, 4], attributes=4, last_offset_delta=6, stamp=(50, 1, NOW_US, 0))
    yield Vector(
        "compacted",
        "an offset column: of seven records, those with the offset deltas 1 and 4 remain",
        kept.encode(),
        refused,
        records=described(rows, 50, deltas=[1, 4]),
    )
    empty = Batch([], last_offset_delta=6, stamp=(50, 1, NOW_US, 0))
    yield Vector(
        "compacted-away",
        "a batch without remaining records: record count 0, no body",
        empty.encode(),
        refused,
    )
    marker = Batch([Row(b"", struct.pack("<hh", 0, 2))], attributes=2, stamp=(50, 1, NOW_US, 0))
    yield Vector(
        "control",
        "a control batch (leader-epoch start), of which readers deliver no record",
        marker.encode(),
        refused,
    )
    horizon = Batch(extension=padded(entry(1, struct.pack("<q", NOW_US))))
    yield Vector(
        "horizon", "a tombstone horizon", horizon.encode(), refused, records=described([Row(b"hello")])
    )


PLAIN = Batch()
NAMED = Batch([Row(b"x", headers=(("a", b"1"), ("b", b"2"))), Row(b"y"), Row(b"z")])


def broken_framing() -> Iterator[Vector]:
    """Yield batches that are truncated, have a wrong length, or are damaged."""
    whole = PLAIN.encode()

    def bad(name: str, says: str, batch: bytes, code: str = "malformed_batch") -> Vector:
        return Vector(name, says, batch, code, code)

    yield bad("bad-short", "a batch of which only 20 bytes are left", whole[:20])
    yield bad("bad-cut", "the last 8 bytes of the batch are missing", whole[:-8])
    yield bad(
        "bad-length",
        "the length of the batch is 4 less than a multiple of 8",
        whole[:8] + struct.pack("<I", len(whole) - 16) + whole[12:-4],
    )
    flipped = whole[:-1] + bytes([whole[-1] ^ 1])
    yield bad("bad-content-checksum", "the last bit of the batch is flipped", flipped, "crc_mismatch")
    stamped = replace(PLAIN, stamp=(9, 1, NOW_US, 0)).encode()
    yield Vector(
        "bad-stamp-checksum",
        "a bit of the base offset is flipped: a leader ignores the stamp, a reader must not",
        bytes([stamped[0] ^ 1]) + stamped[1:],
        "accepted",
        "crc_mismatch",
    )


def broken_headers() -> Iterator[Vector]:
    """Yield batches with a header or extension field that is invalid, or that clients must not write."""

    def leader(name: str, says: str, code: str = "malformed_batch", **fields: Any) -> Vector:
        batch = replace(PLAIN, **fields)
        return Vector(name, says, batch.encode(), code, records=described(batch.rows))

    yield broken("bad-format", "format 2", "unsupported_version", format=2)
    yield broken("bad-codec", "codec 3", "unsupported_version", codec=3)
    yield broken("bad-schema", "schema id 1", "unsupported_version", schema_id=1)
    yield broken("bad-attribute", "attribute bit 6", attributes=1 << 6)
    yield leader("bad-transactional", "attribute bit 0 in a batch from a client", attributes=1)
    yield broken("bad-offset-column-bit", "attribute bit 2 without an offset column", attributes=4)
    yield broken("bad-count", "record count 2 in a batch of one record", record_count=2)
    yield broken("bad-last-delta", "last offset delta 1 in a batch of one record", last_offset_delta=1)
    yield broken(
        "bad-count-negative", "a negative record count and a negative last offset delta", record_count=-1
    )
    yield leader(
        "bad-min-timestamp",
        "a min timestamp below the smallest timestamp of the records",
        min_timestamp_us=NOW_US - 1,
    )
    yield leader(
        "bad-max-timestamp",
        "a max timestamp above the largest timestamp of the records",
        max_timestamp_us=NOW_US + 1,
    )
    yield leader(
        "bad-producer", "a producer id without a producer epoch and a base sequence", producer=(5, -1, -1)
    )
    yield broken("bad-body-length", "a declared body length that is 8 bytes too large", uncompressed_more=8)
    yield leader("bad-padding", "padding bytes that are not zero", codec=1, wrap=lz4_stored, padding=b"\1")
    yield broken("bad-extension-type", "extension type 0x8000", extension=padded(entry(0x8000, b"")))
    yield broken(
        "bad-extension-cut",
        "an extension entry longer than the extension",
        extension=struct.pack("<HHI", 9, 5, 0),
    )
    yield broken("bad-extension-padding", "extension padding that is not zero", extension=b"\0" * 7 + b"\1")
    yield broken(
        "bad-extension-length", "an extension length that is not a multiple of 8", extension=bytes(4)
    )
    yield leader(
        "bad-idempotency-key", "extension type 2 in a batch from a client", extension=padded(entry(2, b"key"))
    )
    yield leader(
        "bad-time-ahead",
        "a timestamp two hours ahead of the leader's clock",
        "invalid_record",
        rows=[Row(b"x", timestamp_us=NOW_US + 7_200_000_000)],
    )
    yield leader(
        "bad-year",
        "a timestamp before the year 1",
        "invalid_record",
        rows=[Row(b"x", timestamp_us=-62_135_596_800_000_001)],
    )


def broken(name: str, says: str, code: str = "malformed_batch", base: Batch = PLAIN, **fields: Any) -> Vector:
    """Return a batch with valid checksums that differs from `base` in the given fields."""
    return Vector(name, says, replace(base, **fields).encode(), code, code)


def broken_bodies() -> Iterator[Vector]:
    """Yield batches with valid checksums, a valid header and an invalid body."""
    yield from broken_messages()
    yield from broken_columns()
    yield from broken_buffers()
    yield from broken_values()
    yield from broken_frames()


def broken_messages() -> Iterator[Vector]:
    """Yield bodies with an invalid frame or type of the Arrow message."""
    yield broken(
        "bad-message-marker",
        "the continuation marker of the Arrow message is missing",
        wrap=lambda data: bytes(4) + data[4:],
    )
    yield broken(
        "bad-metadata-length",
        "a metadata length that exceeds the body",
        wrap=lambda data: data[:4] + b"\xf8\x0f\0\0" + data[8:],
    )
    yield broken("bad-metadata-version", "metadata version V4", edit=put_field("version", 3))
    yield broken("bad-message-type", "a dictionary batch", edit=put_field("kind", 2))
    yield broken(
        "bad-message-body-length",
        "a body length in the Arrow message that is 8 too large",
        edit=put_field("body_bytes_more", 8),
    )


def broken_columns() -> Iterator[Vector]:
    """Yield bodies whose metadata contradicts the schema, or contains wrong counts."""
    yield broken(
        "bad-nodes",
        "one column is missing in the metadata",
        edit=lambda message: message.nodes.pop() and None,
    )
    yield broken(
        "bad-buffers",
        "one buffer is missing in the metadata",
        edit=lambda message: message.buffers.pop() and None,
    )
    yield broken("bad-rows", "a column with a different number of rows", lie=put_number("nodes", 0, 0, 2))
    yield broken("bad-rows-negative", "a negative number of rows", lie=put_number("nodes", 1, 0, -1))
    yield broken("bad-null-count", "a column with more nulls than rows", lie=put_number("nodes", 1, 1, 2))
    yield broken(
        "bad-null-count-lie",
        "a null count of 0 although the bitmap marks a null",
        base=PLAIN,
        edit=put_buffer(3, b"\0"),
    )
    yield broken("bad-bitmap-missing", "a null count of 1 without a bitmap", lie=put_number("nodes", 1, 1, 1))


def broken_buffers() -> Iterator[Vector]:
    """Yield bodies with invalid positions of buffers, or invalid offsets in a buffer."""
    yield broken(
        "bad-buffer-outside",
        "a buffer that ends after the end of the body",
        lie=put_number("places", 16, 1, 1 << 40),
    )
    yield broken("bad-buffer-negative", "a buffer of negative length", lie=put_number("places", 5, 1, -8))
    yield broken(
        "bad-buffer-unaligned", "a buffer that begins at an odd byte", lie=put_number("places", 5, 0, 25)
    )
    yield broken(
        "bad-buffer-overlap",
        "the offsets buffer of the values overlaps that of the keys",
        lie=put_number("places", 4, 0, 0),
    )
    yield broken(
        "bad-offsets-short",
        "an offsets buffer that is too short for one row",
        lie=put_number("places", 4, 1, 4),
    )
    yield broken(
        "bad-offsets-falling",
        "value offsets that decrease",
        base=NAMED,
        edit=put_buffer(4, struct.pack("<4i", 0, 2, 1, 3)),
    )
    yield broken(
        "bad-offsets-outside",
        "value offsets beyond the end of the data",
        edit=put_buffer(4, struct.pack("<2i", 0, 1 << 30)),
    )
    yield broken(
        "bad-list-offsets",
        "list offsets beyond the last header",
        base=NAMED,
        edit=put_buffer(9, struct.pack("<4i", 0, 2, 2, 9)),
    )


def broken_values() -> Iterator[Vector]:
    """Yield bodies that Arrow accepts but the rules for records forbid."""
    yield broken(
        "bad-utf8",
        "a header name that is not UTF-8",
        base=replace(NAMED, rows=[Row(b"x", headers=((b"\xff", b""),))]),
    )
    yield broken(
        "bad-null-timestamp", "a null timestamp", "invalid_record", rows=[Row(b"x", timestamp_us=None)]
    )
    yield broken(
        "bad-null-header-name",
        "a null header name",
        "invalid_record",
        rows=[Row(b"x", headers=((None, b"1"),))],
    )


def broken_frames() -> Iterator[Vector]:
    """Yield compressed bodies that are not exactly one frame of the declared codec and length."""
    yield broken("bad-not-compressed", "codec LZ4, but an uncompressed body", codec=1)
    yield broken(
        "bad-two-frames",
        "two LZ4 frames, of which the second is empty",
        codec=1,
        wrap=lambda data: lz4_stored(data) + bytes.fromhex("04224d1860408200000000"),
    )
    yield broken(
        "bad-skippable-frame",
        "a skippable frame after the zstd frame",
        codec=2,
        wrap=lambda data: zstd_stored(data) + bytes.fromhex("502a4d1800000000"),
    )
    yield broken(
        "bad-frame-cut",
        "a zstd frame without its last bytes",
        codec=2,
        wrap=lambda data: zstd_stored(data)[:-9],
    )
    yield broken(
        "bad-bomb",
        "a body that decompresses to 128 KiB, more than the header declares",
        codec=2,
        wrap=zstd_run,
    )
    yield broken("bad-block", "an LZ4 frame with a block that cannot be decompressed", codec=1, wrap=lz4_junk)
    declared = replace(PLAIN, codec=2, wrap=zstd_run, uncompressed_more=50_000_000)
    yield Vector(
        "bad-declared-size",
        "a declared body length of 50 MB",
        declared.encode(),
        "batch_too_large",
        "malformed_batch",
    )


CAPTURED = {
    "captured-plain": "without compression",
    "captured-lz4": "in an LZ4 frame of a real compressor",
    "captured-zstd": "in a zstd frame of a real compressor",
}


def all_vectors(folder: Path) -> Iterator[Vector]:
    """Yield every vector, in the order of `vectors.json`."""
    yield from good_vectors()
    for name, says in CAPTURED.items():
        batch = (folder / f"{name}.bin").read_bytes()
        yield Vector(name, f"a batch written with pyarrow 26, {says}", batch, records=described(MANY))
    yield from special_vectors()
    yield from broken_framing()
    yield from broken_headers()
    yield from broken_bodies()


def main(folder: Path, captured: Path) -> None:
    """Write one file for each vector, and `vectors.json` with the list of all vectors."""
    listed = []
    for vector in all_vectors(captured):
        (folder / f"{vector.name}.bin").write_bytes(vector.batch)
        read = vector.records if vector.read == "records" else vector.read
        listed.append(
            {"file": f"{vector.name}.bin", "says": vector.says, "produce": vector.produce, "read": read}
        )
    document = {"now_us": NOW_US, "limits": LIMITS, "vectors": listed}
    (folder / "vectors.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    here = Path(__file__).parent
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else here, here)
