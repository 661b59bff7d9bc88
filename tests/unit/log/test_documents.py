"""Files that are replaced as a whole: their layout, and the refusal of changed files."""

from __future__ import annotations

from pathlib import Path

import pytest
from google_crc32c import value as crc32c

from fairlead_api.identifiers import Offset, PartitionIndex, TopicId
from fairlead_broker.log import DamagedRange, Identity
from fairlead_broker.log.documents import (
    Checkpoint,
    CorruptDocument,
    PartitionCheckpoint,
    decode_document,
    encode_document,
    read_document,
    write_document,
)
from fairlead_broker.log.segments.storage import PosixStorage
from refusals import raises

IDENTITY = Identity(cluster_id="c", broker_id=1, directory_id="d", last_broker_epoch=7)
CHECKPOINT = Checkpoint(
    partitions=(
        PartitionCheckpoint(
            topic_id=TopicId("3f1d6c1e-0b6a-4d3c-9b3e-2f4f5a6b7c8d"),
            partition=PartitionIndex(3),
            log_start=Offset(1),
            high_watermark=Offset(2),
            recovery_point=Offset(3),
            damaged=(DamagedRange(Offset(1), Offset(2)),),
        ),
    )
)


def test_the_layout_is_the_documented_one() -> None:
    """A document has a 16-byte header with a checksum of all other bytes, then JSON, as in docs/reference/files.md."""
    data = encode_document(IDENTITY)
    content = (
        b'{"cluster_id":"c","broker_id":1,"directory_id":"d","last_broker_epoch":7,'
        b'"intact_since":null,"residence":null,"quarantined":[]}\n'
    )
    head = b"FLDC\x01\x00\x01\x00" + len(content).to_bytes(4, "little")

    assert data == head + crc32c(head + content).to_bytes(4, "little") + content


def test_documents_come_back(tmp_path: Path) -> None:
    """A written document is read back, and a missing document reads as None."""
    storage, path = PosixStorage(), tmp_path / "document"

    assert read_document(storage, path, Checkpoint) is None
    write_document(storage, path, CHECKPOINT)
    assert read_document(storage, path, Checkpoint) == CHECKPOINT


def test_no_flipped_bit_is_believed() -> None:
    """A document with any one bit flipped is refused as corrupt."""
    data = encode_document(IDENTITY)
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8

        with pytest.raises(CorruptDocument):
            decode_document(bytes(changed), Identity, Path("identity"))


def test_a_short_document_is_not_believed() -> None:
    """A document that is truncated at any length is refused as corrupt."""
    data = encode_document(IDENTITY)
    for nbytes in range(len(data)):
        with pytest.raises(CorruptDocument):
            decode_document(data[:nbytes], Identity, Path("identity"))


def test_a_document_of_another_kind_or_version_is_refused() -> None:
    """A document of a different kind or of a later version is refused, and the error names the file or the versions."""
    head = b"FLDC\x02\x00\x01\x00" + (3).to_bytes(4, "little")
    later = head + crc32c(head + b"{}\n").to_bytes(4, "little") + b"{}\n"

    with raises(CorruptDocument, "identity"):
        decode_document(encode_document(CHECKPOINT), Identity, Path("identity"))
    with raises(CorruptDocument, 2, 1):
        decode_document(later, Identity, Path("identity"))
