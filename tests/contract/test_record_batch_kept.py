"""The record batch and its frames, as producers and consumers in any language send and receive them.

The vectors of `docs/reference/record-batch-vectors` are the golden data. The golden file of this test has only the
checksums of the vectors, so that vectors and generator cannot change together unnoticed. The unit test of the record
batch checks that the code accepts or refuses, and decodes, each vector as listed.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import checkout
import golden
from fairlead_api.batch.header import Codec, pack_header, read_header
from fairlead_api.bodies.frames import encode_frame, iterate_frames
from fairlead_api.partitioning import partition_for_key

_VECTORS = checkout.ROOT / "docs/reference/record-batch-vectors"
_KEYS = (b"", b"a", b"abc", b"UA1545", b"foobar", bytes(range(40)))
_HEADER_BYTES = 88


def record_batch() -> Any:
    """Describe the vectors (by checksum) and their expected results, a body of frames, and the partitions of keys."""
    listed = json.loads((_VECTORS / "vectors.json").read_text(encoding="utf-8"))
    return {
        "limits": listed["limits"],
        "vectors": {
            each["file"]: {
                "sha256": hashlib.sha256((_VECTORS / each["file"]).read_bytes()).hexdigest(),
                "produce": each["produce"],
            }
            for each in listed["vectors"]
        },
        "read": hashlib.sha256(json.dumps([each["read"] for each in listed["vectors"]]).encode()).hexdigest(),
        "codecs": {codec.name: codec.value for codec in Codec},
        "frames": _frames().hex(),
        "partitions": {
            key.hex(): [partition_for_key(key, count) for count in (1, 3, 12, 1000)] for key in _KEYS
        },
    }


def _frames() -> bytes:
    parts = [*encode_frame(b'{"topic":"a","partition":0}', [bytes(range(16))]), *encode_frame(b'{"b":1}')]
    return b"".join(bytes(part) for part in parts)


def test_the_record_batch_is_unchanged() -> None:
    """The record batch keeps its vectors, frames, codecs and partitions of keys."""
    golden.assert_unchanged("record_batch", record_batch())


def test_a_header_is_written_as_it_was_read() -> None:
    """The header of each accepted vector without a leader's stamp is reproduced byte for byte."""
    names = [
        name for name, each in golden.read("record_batch")["vectors"].items() if each["produce"] == "accepted"
    ]
    found = {name: (_VECTORS / name).read_bytes() for name in names if "stamp" not in name}
    written = {
        name: pack_header(read_header(data), [data[_HEADER_BYTES:]]) + data[_HEADER_BYTES:]
        for name, data in found.items()
    }

    assert len(found) >= 10
    assert written == found


def test_the_golden_frames_are_read() -> None:
    """Frames of a body that an earlier release wrote are split as that release split them."""
    body = bytes.fromhex(golden.read("record_batch")["frames"])

    assert [(frame.meta.rstrip(), bytes(frame.data)) for frame in iterate_frames(body)] == [
        (b'{"topic":"a","partition":0}', bytes(range(16))),
        (b'{"b":1}', b""),
    ]
