"""Files of entries that check themselves."""

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
    """Header and entries stand byte for byte as docs/reference/files.md says."""
    head = b"FLEN\x01\x00\x01\x00\x00\x00\x00\x00"
    entry = bytes(8) + b"\x07\x00\x00\x00"

    assert encoded()[:16] == head + crc32c(head).to_bytes(4, "little")
    assert encoded()[16:32] == entry + crc32c(entry).to_bytes(4, "little")
    assert len(encoded()) == LAYOUT.position_of(3) == 64


def test_entries_come_back() -> None:
    """What was encoded is decoded; a header alone is an empty file."""
    decoded = LAYOUT.decode(encoded())
    empty = LAYOUT.decode(LAYOUT.encode_header())

    assert decoded is not None
    assert [(int(row["f0"]), int(row["f1"])) for row in decoded] == ENTRIES
    assert empty is not None
    assert len(empty) == 0


def test_a_flipped_bit_ends_the_file_there() -> None:
    """At every bit: a wrong header says nothing, a wrong entry and all behind it are left out."""
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
    """A torn last entry is left out, a torn header is none."""
    decoded = LAYOUT.decode(encoded()[:nbytes])

    assert (None if decoded is None else len(decoded)) == (None if nbytes < 16 else nbytes // 16 - 1)


def test_a_page_of_zeros_is_no_entry() -> None:
    """Bytes that a file system gave but never wrote have no valid checksum."""
    decoded = LAYOUT.decode(encoded() + bytes(4096))

    assert decoded is not None
    assert len(decoded) == 3


def test_another_kind_is_not_believed() -> None:
    """The header tells files apart."""
    assert EntryLayout(EntryKind.LEADER_EPOCHS, "qi").decode(encoded()) is None
    assert LAYOUT.decode(None) is None
    assert LAYOUT.decode(b"") is None


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**32 - 1)), max_size=40))
def test_the_checksums_of_all_entries_at_once_are_those_of_the_library(
    entries: list[tuple[int, int]],
) -> None:
    """Decoding believes exactly what encoding wrote, entry by entry with the library's CRC32C."""
    decoded = LAYOUT.decode(LAYOUT.encode_header() + LAYOUT.encode(entries))

    assert decoded is not None
    assert [(int(row["f0"]), int(row["f1"])) for row in decoded] == entries
