"""Mutates record batches and checks the leader's validation: each mutant is valid or refused with a problem.

With `--copied`, the mutants are stamped like batches in the answer of a link's source, and the checks of a mirror's
leader are run instead.

`python batch_mutations.py --mutants 20000 --seed 1` prints a JSON report and exits with 1 when a mutant was neither
refused nor valid. Most mutants have recomputed lengths and checksums, so that they pass those checks. With
`--without-validation`, Arrow's full validation is skipped, to prove that the run notices the invalid batches. Without
this validation, a batch might crash the interpreter, so tests start this file in a separate process.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import sys
import traceback
from collections import Counter
from dataclasses import dataclass

import pyarrow as pa

from fairlead_api.batch import batches
from fairlead_api.batch import validation as batch_validation
from fairlead_api.batch.batches import Record, decode, decode_records, encode, record_batch
from fairlead_api.batch.header import (
    HEADER_BYTES,
    RECORD_HEADERS_MAX,
    RECORDS_MAX,
    Codec,
    check_sizes,
    checksum,
    make_stamp,
    read_header,
)
from fairlead_api.batch.validation import ValidationLimits, validate_produced
from fairlead_api.problems import ProblemError
from fairlead_broker.runtime.linking.arrivals import check_batches

NOW_US = 1_700_000_000_000_000
LIMITS = ValidationLimits(
    batch_bytes_max=1 << 20,
    decompressed_bytes_max=4 << 20,
    timestamp_before_max_us=batch_validation.UNLIMITED_US,
    timestamp_after_max_us=3_600_000_000,
)
UNSEALED_SHARE = 0.05
WRONG_LENGTH_SHARE = 0.02
NUMBERS = (0, 1, 2, 3, 4, 7, 8, 12, 16, 64, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63)
HEADER_FIELDS = {
    36: "B",
    37: "B",
    38: "H",
    40: "I",
    44: "I",
    48: "Q",
    56: "Q",
    64: "Q",
    72: "I",
    76: "I",
    80: "I",
    84: "H",
}
LAST_OFFSET_DELTA_AT = 40
"""Position of the last offset delta, before the number of records."""
CHECKS = {
    "sizes": {"check_sizes"},
    "checksum": {"check_unread_checksum"},
    "header": {"read_header", "check_readable", "_check_header", "_check_extension", "_check_padding"},
    "declared size": {"declared size"},
    "number of records": {"number of records"},
    "opening": {"decompress"},
    "Arrow metadata": {"read_message"},
    "Arrow reading": {"read_body"},
    "Arrow validation": {"validate_columns"},
    "nulls": {"check_nulls"},
    "number of headers": {"check_header_counts"},
    "timestamps": {"validate_produced"},
    "window": {"_check_window"},
}
"""The checks in the order of the protocol, each with the functions that implement it."""


@dataclass
class Mutant:
    """A batch in parts, which are changed, and joined with correct or incorrect lengths."""

    header: bytearray
    message: bytearray
    codec: Codec = Codec.NONE
    extension: bytes = b""
    body: bytearray | None = None
    """The compressed body, when the body itself is changed."""

    @classmethod
    def of(cls, batch: bytes) -> Mutant:
        """Split an uncompressed batch."""
        return cls(bytearray(batch[:HEADER_BYTES]), bytearray(batch[HEADER_BYTES:]))

    def compressed(self) -> bytes:
        """Return the message compressed by the codec."""
        return (
            bytes(pa.compress(bytes(self.message), self.codec.name.lower(), asbytes=True))
            if self.codec
            else bytes(self.message)
        )

    def to_bytes(self, numbers: dict[int, int]) -> bytearray:
        """Join the parts with correct lengths, then set the header fields in `numbers`; compute no checksum."""
        body = self.compressed() if self.body is None else self.body
        padding = -len(body) % 8
        whole = bytearray(self.header + self.extension + body + bytes(padding))
        struct.pack_into("<I", whole, 8, len(whole) - 12)
        struct.pack_into("<BH", whole, 37, self.codec, padding << 3)
        struct.pack_into("<I", whole, 80, len(self.message))
        struct.pack_into("<H", whole, 86, len(self.extension))
        for at, number in numbers.items():
            kind = HEADER_FIELDS[at]
            struct.pack_into("<" + kind, whole, at, number % (1 << 8 * struct.calcsize(kind)))
        return whole


class Mutations:
    """Makes mutants of a few valid batches, all from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.originals = [encode(columns).to_bytes() for columns in originals()]
        self.crowded = [
            encode(
                record_batch([b"v"], headers=[[("h", b"")] * count], default_timestamp_us=NOW_US)
            ).to_bytes()
            for count in (RECORD_HEADERS_MAX, RECORD_HEADERS_MAX + 1)
        ]

    def next(self) -> tuple[bytes, bool]:
        """Return a mutant, and whether its checksum was recomputed."""
        mutant = Mutant.of(self.random.choice(self.originals))
        numbers: dict[int, int] = {}
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            change = self.random.choices(
                (
                    self.change_metadata, self.change_buffers, self.change_body, self.extend, self.resize,
                    self.crowd,
                ),
                (30, 45, 8, 4, 4, 2),
            )[0]  # fmt: skip
            change(mutant)
            if self.random.random() < 0.12:
                at = self.random.choice(tuple(HEADER_FIELDS))
                numbers[at] = self.number(self.random.choice(mutant.header))
        whole = mutant.to_bytes(numbers)
        if self.random.random() < WRONG_LENGTH_SHARE:
            struct.pack_into("<I", whole, 8, self.number(len(whole)) % (1 << 32))
        if self.random.random() < UNSEALED_SHARE:
            whole[self.random.randrange(len(whole))] ^= 1 << self.random.randrange(8)
            return bytes(whole), False
        struct.pack_into("<I", whole, 32, checksum(whole, 36, len(whole)))
        return bytes(whole), True

    def number(self, near: int) -> int:
        """Return a boundary value, or a number next to the current number."""
        pick = self.random.random()
        if pick < 0.4:
            return self.random.choice(NUMBERS)
        if pick < 0.6:
            return -self.random.choice(NUMBERS)
        return near + self.random.choice((-8, -4, -1, 1, 4, 8))

    def put(self, data: bytearray, start: int, stop: int) -> None:
        """Overwrite a number at an aligned position, or flip a bit."""
        kind = self.random.choice("biqx")
        if kind == "x":
            data[self.random.randrange(start, stop)] ^= 1 << self.random.randrange(8)
            return
        size = struct.calcsize("<" + kind)
        at = self.random.randrange(start // size, max(start // size + 1, stop // size)) * size
        if at + size <= len(data):
            old = struct.unpack_from("<" + kind, data, at)[0]
            data[at : at + size] = (self.number(old) % (1 << 8 * size)).to_bytes(size, "little")

    def change_metadata(self, mutant: Mutant) -> None:
        """Change Arrow's metadata, or the bytes around it."""
        self.put(mutant.message, 0, min(len(mutant.message), 480))

    def change_buffers(self, mutant: Mutant) -> None:
        """Change offsets, bitmaps, times or data of the columns."""
        if len(mutant.message) > 488:
            self.put(mutant.message, 480, len(mutant.message))

    def change_body(self, mutant: Mutant) -> None:
        """Compress the body, and sometimes change the compressor's output."""
        mutant.codec = self.random.choice((Codec.LZ4, Codec.ZSTD))
        if self.random.random() < 0.5:
            mutant.body = bytearray(mutant.compressed())
            self.put(mutant.body, 0, len(mutant.body))

    def extend(self, mutant: Mutant) -> None:
        """Insert an extension with one entry, whose type and length may be invalid."""
        kind, size = self.random.choice((1, 2, 3, 9, 0x7FFF, 0x8000)), self.random.randrange(12)
        entry = struct.pack("<HH", kind, self.random.choice((size, size, size + 9))) + bytes([size]) * size
        mutant.extension = entry + bytes(-len(entry) % 8)

    def resize(self, mutant: Mutant) -> None:
        """Truncate the message, or append bytes."""
        if self.random.random() < 0.5:
            del mutant.message[self.random.randrange(len(mutant.message)) :]
        else:
            mutant.message += bytes(self.random.choice((1, 4, 8, 64)))
        if len(mutant.message) < 8:
            mutant.message += bytes(8)

    def crowd(self, mutant: Mutant) -> None:
        """Set the number of records, or of headers of a record, near its limit."""
        if self.random.random() < 0.5:
            count = RECORDS_MAX + self.random.choice((0, 1, 2))
            struct.pack_into("<II", mutant.header, LAST_OFFSET_DELTA_AT, count - 1, count)
            return
        other = Mutant.of(self.random.choice(self.crowded))
        mutant.header, mutant.message = other.header, other.message


def originals() -> list[pa.RecordBatch]:
    """Return batches of several sizes with all features of the batch format."""
    rows = range(40)
    full = record_batch(
        [None if row % 5 == 1 else b"value-%d" % row for row in rows],
        [None if row % 3 == 1 else b"k" * (row % 4) for row in rows],
        [NOW_US + row for row in rows],
        [[("trace", b"1"), ("größe", None)] * (row % 3) for row in rows],
        default_timestamp_us=0,
    )
    plain = record_batch([b"x" * 10] * 9, default_timestamp_us=NOW_US)
    keyed = record_batch(
        [b"v"] * 3, [b"a", b"b", b""], None, [[("h", b"")], [("i", b"j")], None], default_timestamp_us=NOW_US
    )
    return [full, full.slice(0, 1), full.slice(10, 7), plain, plain.slice(0, 1), keyed]


def check_of(problem: ProblemError) -> str:
    """Return the check that refused a mutant, identified by the functions in the traceback."""
    functions = {frame.name for frame in traceback.extract_tb(problem.__traceback__)}
    if "before compression" in problem.detail:
        return "declared size"
    if "_too_many" in functions:
        return "number of records"
    order = [check for check in CHECKS if check != "timestamps"]
    return next((check for check in order if CHECKS[check] & functions), "timestamps")


def check_promise(mutant: bytes) -> None:
    """Check an accepted mutant: its columns are valid, and its records survive another round trip."""
    header = read_header(mutant)
    stored = make_stamp(header, 1000, 1, NOW_US) + mutant[36:]
    columns = decode(stored, validate=False)
    columns.validate(full=True)
    records = decode_records(stored)
    assert len(records) == header.record_count, "every record is read"
    again = encode(columns).to_bytes()
    assert [_without_offset(record) for record in decode_records(again)] == [
        _without_offset(record) for record in records
    ], "the records survive"


def _without_offset(record: Record) -> tuple[object, ...]:
    return record.timestamp_us, record.key, record.value, tuple(record.headers)


def validate_copied(mutant: bytes) -> None:
    """Check a mutant as the leader of a mirror checks the batches of its source."""
    data = memoryview(mutant)
    check_sizes(data, LIMITS.batch_bytes_max)
    stored = make_stamp(read_header(data), 1000, 1, NOW_US) + mutant[36:]
    check_batches(memoryview(stored), LIMITS.decompressed_bytes_max)


def run(mutants: int, seed: int, *, copied: bool = False) -> dict[str, object]:
    """Judge `mutants` mutants; report the counts of outcomes and the first violated guarantee."""
    mutations, refused, sealed_count, broken = Mutations(seed), Counter[str](), 0, None
    for number in range(mutants):
        mutant, sealed = mutations.next()
        sealed_count += sealed
        try:
            if copied:
                validate_copied(mutant)
            else:
                validate_produced(memoryview(mutant), LIMITS, NOW_US)
            refused["accepted"] += 1
            check_promise(mutant)
        except ProblemError as problem:
            refused[check_of(problem)] += 1
        except Exception as error:  # noqa: BLE001 - any other error is a finding
            broken = {"mutant": number, "error": repr(error), "hex": mutant.hex()}
            break
    left = done = sum(refused.values())
    reached = {}
    for check in CHECKS:
        reached[check] = round(left / max(done, 1), 4)
        left -= refused[check]
    return {
        "seed": seed,
        "mutants": done,
        "sealed": round(sealed_count / max(done, 1), 4),
        "reached": reached,
        "refused": dict(refused),
        "broken": broken,
    }


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without-validation", action="store_true")
    parser.add_argument("--copied", action="store_true", help="as the batches of a link's source")
    arguments = parser.parse_args()
    if arguments.without_validation:
        batch_validation.validate_columns = batches.validate_columns = lambda columns: None
    report = run(arguments.mutants, arguments.seed, copied=arguments.copied)
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return 1 if report["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
