"""The extension between the header and the body of a batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.batch.extension import (
    ExtensionEntry,
    idempotency_extension,
    pack_extension,
    read_extension,
    unpack_extension,
)
from fairlead_api.batch.header import HEADER_BYTES, BatchHeader, pack_header, read_header
from refusals import refuses

ENTRIES = st.lists(st.builds(ExtensionEntry, st.integers(1, 0x7FFF), st.binary(max_size=70)), max_size=5)


def batch(extension: bytes) -> tuple[bytes, BatchHeader]:
    """Return a batch with an extension and no body."""
    fields = dict.fromkeys(BatchHeader.__struct_fields__, 0)
    fields |= {"length": HEADER_BYTES - 12 + len(extension), "format": 1, "extension_bytes": len(extension)}
    whole = pack_header(BatchHeader(**fields), [extension]) + extension
    return whole, read_header(whole)


@given(ENTRIES)
def test_entries_come_back_in_order(entries: list[ExtensionEntry]) -> None:
    """Entries of an extension, even of unknown types, are read back in order.

    The size of an extension is a multiple of 8 bytes.
    """
    packed = pack_extension(tuple(entries))

    assert len(packed) % 8 == 0
    assert read_extension(*batch(packed)) == tuple(entries)


@pytest.mark.parametrize(
    "extension",
    [
        b"\x00\x80\x00\x00" + bytes(4),
        b"\xff\xff\x00\x00" + bytes(4),
        b"\x05\x00\x05\x00" + bytes(4),
        b"\x05\x00\xff\xff" + bytes(4),
        bytes(7) + b"\x01",
        b"\x05\x00\x01\x00\x00" + b"\x00\x00\x01",
        b"\x00\x00\x04\x00" + bytes(4),
    ],
    ids=["refusing", "last", "cut", "far", "padding", "rest", "zero-type-with-length"],
)
def test_an_extension_that_cannot_be_read_is_refused(extension: bytes) -> None:
    """An extension with an unknown type that must not be skipped, a truncated entry or nonzero padding is malformed."""
    with refuses("malformed_batch"):
        read_extension(*batch(extension))


@pytest.mark.parametrize("rest", range(8))
def test_any_length_is_padded(rest: int) -> None:
    """An extension is padded for entries of any length, even if the padding is shorter than an entry's head."""
    entry = ExtensionEntry(9, bytes([7]) * rest)

    assert read_extension(*batch(pack_extension((entry,)))) == (entry,)


def test_an_idempotency_key_stands_beside_its_digest() -> None:
    """The extension of an idempotency key has two entries, the key and its digest, each up to its maximum size."""
    packed = pack_extension(idempotency_extension(b"k" * 64, b"d" * 16))

    assert unpack_extension(packed) == (ExtensionEntry(2, b"k" * 64), ExtensionEntry(4, b"d" * 16))


@pytest.mark.parametrize(("key", "digest"), [(b"", b"d" * 16), (b"k" * 65, b"d" * 16), (b"k", b"d" * 15)])
def test_a_broker_never_writes_another_size(key: bytes, digest: bytes) -> None:
    """An idempotency key or digest of a wrong size fails an assertion, because the server has already refused it."""
    with pytest.raises(AssertionError):
        idempotency_extension(key, digest)
