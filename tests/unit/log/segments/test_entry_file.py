"""Entry files, in which every entry has a checksum."""

from __future__ import annotations

import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from fairlead_broker.log.segments.entry_file import EntryKind, EntryLayout

LAYOUT = EntryLayout(EntryKind.OFFSET_INDEX, "qI")
ENTRIES = [(0, 7), (2**62, 2**32 - 1), (-1, 0)]


def encoded() -> bytes:
    """Return a file with three entries."""
    return LAYOUT.encode_header() + LAYOUT.encode(ENTRIES)


def test_the_layout_is_the_documented_one() -> None:
    """An entry file has the header and entries that docs/reference/files.md describes, byte for byte."""
    head = b"FLEN\x01\x00\x01\x00\x00\x00\x00\x00"
    entry = bytes(8) + b"\x07\x00\x00\x00"

    assert encoded()[:16] == head + crc32c(head).to_bytes(4, "little")
    assert encoded()[16:32] == entry + crc32c(entry).to_bytes(4, "little")
    assert len(encoded()) == LAYOUT.position_of(3) == 64


def test_entries_come_back() -> None:
    """Encoded entries are decoded unchanged, and a header alone is an entry file without entries."""
    decoded = LAYOUT.decode(encoded())
    empty = LAYOUT.decode(LAYOUT.encode_header())

    assert decoded is not None
    assert [(int(row["f0"]), int(row["f1"])) for row in decoded] == ENTRIES
    assert empty is not None
    assert len(empty) == 0


def test_a_flipped_bit_ends_the_file_there() -> None:
    """An entry file ends before the first entry with a flipped bit; a flipped bit in the header makes it invalid."""
    data = encoded()
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        decoded = LAYOUT.decode(bytes(changed))

        if bit < 8 * 16:
            assert decoded is None
        else:
            assert decoded is not None
            assert len(decoded) == bit // 8 // 16 - 1


@pytest.mark.parametrize("nbytes", range(64))
def test_a_short_file_is_good_up_to_its_last_whole_entry(nbytes: int) -> None:
    """A truncated entry file ends after its last whole entry, and is invalid if its header is incomplete."""
    decoded = LAYOUT.decode(encoded()[:nbytes])

    assert (None if decoded is None else len(decoded)) == (None if nbytes < 16 else nbytes // 16 - 1)


def test_a_page_of_zeros_is_no_entry() -> None:
    """A page of zeros that a file system allocated but never wrote has no valid checksum and adds no entry."""
    decoded = LAYOUT.decode(encoded() + bytes(4096))

    assert decoded is not None
    assert len(decoded) == 3


def test_another_kind_is_not_believed() -> None:
    """An entry file of a different kind, a missing file and an empty file are invalid."""
    assert EntryLayout(EntryKind.LEADER_EPOCHS, "qi").decode(encoded()) is None
    assert LAYOUT.decode(None) is None
    assert LAYOUT.decode(b"") is None


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**32 - 1)), max_size=40))
def test_the_checksums_of_all_entries_at_once_are_those_of_the_library(
    entries: list[tuple[int, int]],
) -> None:
    """Decoding accepts exactly the encoded entries, each with the CRC32C of the library as its checksum."""
    decoded = LAYOUT.decode(LAYOUT.encode_header() + LAYOUT.encode(entries))

    assert decoded is not None
    assert [(int(row["f0"]), int(row["f1"])) for row in decoded] == entries
