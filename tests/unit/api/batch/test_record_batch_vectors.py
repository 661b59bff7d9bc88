"""The decoder and a reader written from the page alone agree with the list of record batch vectors."""

from __future__ import annotations

import base64
import json
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import checkout
from fairlead_api.batch.batches import Record, decode_records
from fairlead_api.batch.validation import ValidationLimits, validate_produced
from fairlead_api.problems import ProblemError

FOLDER = checkout.ROOT / "docs/reference/record-batch-vectors"
DOCUMENT = json.loads((FOLDER / "vectors.json").read_text())
VECTORS = [pytest.param(vector, id=vector["file"]) for vector in DOCUMENT["vectors"]]
READABLE = [param for param in VECTORS if isinstance(param.values[0]["read"], list)]


def in_json(
    offset: int, timestamp_us: int, key: bytes | None, value: bytes | None, headers: Any
) -> dict[str, Any]:
    """Return a record in the format of vectors.json."""

    def text(data: bytes | None) -> str | None:
        return None if data is None else base64.b64encode(data).decode()

    return {
        "offset": offset,
        "timestamp_us": timestamp_us,
        "key": text(key),
        "value": text(value),
        "headers": [[name, text(content)] for name, content in headers],
    }


def read_by_code(batch: bytes) -> str | list[dict[str, Any]]:
    """Decode a vector with the real decoder, and return its records, or the problem code of the refusal."""

    def described(record: Record) -> dict[str, Any]:
        return in_json(record.offset, record.timestamp_us, record.key, record.value, record.headers)

    try:
        return [described(record) for record in decode_records(batch)]
    except ProblemError as problem:
        return problem.code


@pytest.mark.parametrize("vector", VECTORS)
def test_a_leader_judges_each_vector_as_listed(vector: dict[str, Any]) -> None:
    """A leader accepts each vector, or refuses the vector with the listed problem."""
    batch = memoryview((FOLDER / vector["file"]).read_bytes())
    try:
        validate_produced(batch, ValidationLimits(**DOCUMENT["limits"]), DOCUMENT["now_us"])
        judged = "accepted"
    except ProblemError as problem:
        judged = problem.code

    assert judged == vector["produce"]


@pytest.mark.parametrize("vector", VECTORS)
def test_a_reader_reads_each_vector_as_listed(vector: dict[str, Any]) -> None:
    """A reader finds the listed records or the listed problem in every vector."""
    assert read_by_code((FOLDER / vector["file"]).read_bytes()) == vector["read"]


def test_the_vectors_are_what_their_generator_writes(tmp_path: Path) -> None:
    """The generator writes every vector file with the same bytes, and no other file exists."""
    subprocess.run(
        [sys.executable, FOLDER / "generate.py", tmp_path], check=True, env={"PYTHONDONTWRITEBYTECODE": "1"}
    )

    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert written == {
        path.name: path.read_bytes() for path in FOLDER.iterdir() if path.suffix in (".bin", ".json")
    }
    assert {vector["file"] for vector in DOCUMENT["vectors"]} == {
        name for name in written if name.endswith(".bin")
    }


def test_the_example_of_the_page_is_the_vector() -> None:
    """The hex dump on the page equals the file that the page names."""
    page = (FOLDER.parent / "record-batch.md").read_text()
    lines = re.findall(r"^[0-9a-f]{4}  ([0-9a-f ]+)$", page, re.MULTILINE)

    assert bytes.fromhex("".join(lines)) == (FOLDER / "one-record.bin").read_bytes()


# This reader is written from docs/reference/record-batch.md alone, with no library except struct. The reader can open
# valid batches that are uncompressed, or compressed to a frame of one stored block.


def crc32c(data: bytes) -> int:
    """Compute the checksum bit by bit, as docs/reference/record-batch.md describes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


class Table:
    """A flatbuffer table, read as docs/reference/record-batch.md describes."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at
        self.vtable = at - struct.unpack_from("<i", data, at)[0]

    def where(self, number: int) -> int:
        """Return the position of a field, or 0 if the field is absent."""
        size = struct.unpack_from("<H", self.data, self.vtable)[0]
        distance = (
            struct.unpack_from("<H", self.data, self.vtable + 4 + 2 * number)[0]
            if 6 + 2 * number <= size
            else 0
        )
        return self.at + distance if distance else 0

    def follow(self, number: int) -> int:
        """Return the target of the reference in a field."""
        place = self.where(number)
        return int(place + struct.unpack_from("<I", self.data, place)[0])

    def pairs(self, number: int) -> list[tuple[int, int]]:
        """Return a vector of pairs of 64-bit numbers."""
        at = self.follow(number)
        count = struct.unpack_from("<I", self.data, at)[0]
        return [struct.unpack_from("<qq", self.data, at + 4 + 16 * index) for index in range(count)]


class Columns:
    """The nodes and buffers of a message, which are read one after another."""

    def __init__(self, message: bytes) -> None:
        marker, size = struct.unpack_from("<II", message)
        assert marker == 0xFFFFFFFF
        metadata, self.body = message[8 : 8 + size], message[8 + size :]
        root = Table(metadata, struct.unpack_from("<I", metadata)[0])
        assert struct.unpack_from("<hB", metadata, root.where(0))[0] == 4
        assert metadata[root.where(1)] == 3
        batch = Table(metadata, root.follow(2))
        self.rows = struct.unpack_from("<q", metadata, batch.where(0))[0]
        self.nodes, self.buffers = iter(batch.pairs(1)), iter(batch.pairs(2))

    def buffer(self) -> bytes:
        """Read the next buffer."""
        start, size = next(self.buffers)
        return self.body[start : start + size]

    def present(self) -> list[bool]:
        """Read the next node and its bitmap."""
        rows, nulls = next(self.nodes)
        bits = self.buffer()
        return [not nulls or bool(bits[row // 8] >> row % 8 & 1) for row in range(rows)]

    def binary(self) -> list[bytes | None]:
        """Read a binary or string column."""
        present = self.present()
        stops, data = struct.unpack(f"<{len(present) + 1}i", self.buffer()), self.buffer()
        return [data[stops[row] : stops[row + 1]] if there else None for row, there in enumerate(present)]

    def numbers(self, kind: str) -> list[int]:
        """Read a column of numbers."""
        count = len(self.present())
        return list(struct.unpack(f"<{count}{kind}", self.buffer()))

    def headers(self) -> list[list[tuple[str, bytes | None]]]:
        """Read the column of headers."""
        present = self.present()
        stops = struct.unpack(f"<{len(present) + 1}i", self.buffer())
        self.present()
        names, contents = self.binary(), self.binary()
        pairs = [((name or b"").decode(), content) for name, content in zip(names, contents, strict=True)]
        return [pairs[stops[row] : stops[row + 1]] if there else [] for row, there in enumerate(present)]


def stored_block(codec: int, body: bytes) -> bytes:
    """Return the content of a frame that has one stored block and nothing after it."""
    if codec == 1:
        return body[11:-4]
    return body[10:]


def read_by_page(batch: bytes) -> list[dict[str, Any]]:
    """Read one valid batch according to the rules of the page."""
    base, length, _, append_us, flags, stamp_crc, content_crc = struct.unpack_from("<qIiqH2xII", batch)
    assert 12 + length == len(batch)
    assert crc32c(batch[36:]) == content_crc
    if batch[:8] != bytes(8) or batch[12:32] != bytes(20):
        assert crc32c(batch[:28]) == stamp_crc
    version, codec, attributes, _, count = struct.unpack_from("<BBHii", batch, 36)
    uncompressed, schema, extension = struct.unpack_from("<IHH", batch, 80)
    assert (version, schema) == (1, 0)
    if attributes & 2 or not count:
        return []
    body = batch[88 + extension : len(batch) - (attributes >> 3 & 7)]
    message = stored_block(codec, body) if codec else body
    assert len(message) == uncompressed
    columns = Columns(message)
    keys, values, times, headers = columns.binary(), columns.binary(), columns.numbers("q"), columns.headers()
    deltas = columns.numbers("i") if attributes & 4 else list(range(count))
    if flags & 1:
        times = [append_us] * count
    rows = zip([base + delta for delta in deltas], times, keys, values, headers, strict=True)
    return [in_json(*row) for row in rows]


@pytest.mark.parametrize("vector", READABLE)
def test_the_page_is_enough_to_read_a_batch(vector: dict[str, Any]) -> None:
    """A reader written from the page alone finds the listed records in every valid vector that it can open."""
    if vector["file"] in ("captured-lz4.bin", "captured-zstd.bin"):
        batch = (FOLDER / vector["file"]).read_bytes()

        assert batch[37] in (1, 2), "needs a real decompressor, which the page leaves to the reader"
        assert crc32c(batch[36:]) == struct.unpack_from("<I", batch, 32)[0]
    else:
        assert read_by_page((FOLDER / vector["file"]).read_bytes()) == vector["read"]
