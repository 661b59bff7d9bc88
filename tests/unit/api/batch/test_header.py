"""The header of a record batch: reading, stamping, walking, checksums."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.batch.header import (
    HEADER_BYTES,
    RESERVED_ATTRIBUTES,
    STAMP_BYTES,
    Attribute,
    BatchHeader,
    batch_span,
    check_checksums,
    check_content_checksum,
    check_sizes,
    check_stamp_checksum,
    check_unread_checksum,
    checksum,
    is_stamped,
    iterate_headers,
    make_stamp,
    pack_header,
    read_header,
)
from refusals import refuses

CHECK_INPUT, CHECK_VALUE = b"123456789", 0xE3069283
"""The standard check value of CRC-32C, as published in catalogues of checksums."""


def header(**fields: int) -> BatchHeader:
    """Return the header of an empty batch without padding, with some fields set."""
    defaults = dict.fromkeys(BatchHeader.__struct_fields__, 0) | {"length": HEADER_BYTES - 12, "format": 1}
    return BatchHeader(**(defaults | fields))


def batch(content: bytes = bytes(16), **fields: int) -> bytes:
    """Return a batch with a body of arbitrary bytes, which the tests never decode."""
    return pack_header(header(length=HEADER_BYTES - 12 + len(content), **fields), [content]) + content


def test_every_field_stands_where_the_table_says() -> None:
    """Every header field is read at the offset that the record batch page gives."""
    raw = bytearray(HEADER_BYTES)
    places = {
        "base_offset": (0, "q", -2),
        "length": (8, "I", 4068),
        "leader_epoch": (12, "i", 5),
        "append_time_us": (16, "q", -6),
        "stamp_flags": (24, "H", 1),
        "stamp_checksum": (28, "I", 0xFFFFFFF7),
        "content_checksum": (32, "I", 0xFFFFFFF8),
        "format": (36, "B", 1),
        "codec": (37, "B", 2),
        "attributes": (38, "H", 0b101000),
        "last_offset_delta": (40, "i", 11),
        "record_count": (44, "i", 12),
        "min_timestamp_us": (48, "q", -13),
        "max_timestamp_us": (56, "q", 14),
        "producer_id": (64, "q", 15),
        "producer_epoch": (72, "i", 16),
        "base_sequence": (76, "i", 17),
        "uncompressed_bytes": (80, "I", 0xFFFFFFEE),
        "schema_id": (84, "H", 0xFFED),
        "extension_bytes": (86, "H", 40),
    }
    for at, kind, number in places.values():
        struct.pack_into("<" + kind, raw, at, number)

    found = read_header(bytes(3) + bytes(raw), 3)
    assert {name: getattr(found, name) for name in places} == {
        name: place[2] for name, place in places.items()
    }
    assert (found.total_bytes, found.last_offset, found.next_offset) == (4080, 9, 10)
    assert (found.body_start, found.body_stop, found.padding_bytes) == (128, 4075, 5)


def test_times_are_the_append_time_under_its_flag() -> None:
    """A batch's maximum time is its append time if stamp flag 0 is set, and otherwise its largest create time."""
    created = header(max_timestamp_us=7, append_time_us=9)
    appended = header(max_timestamp_us=7, append_time_us=9, stamp_flags=1)

    assert (created.max_time_us, created.has_append_time) == (7, False)
    assert (appended.max_time_us, appended.has_append_time) == (9, True)


@pytest.mark.parametrize(
    ("attribute", "name"),
    [
        (Attribute.TRANSACTIONAL, "is_transactional"),
        (Attribute.CONTROL, "is_control"),
        (Attribute.OFFSET_COLUMN, "has_offset_column"),
    ],
)
def test_each_attribute_has_its_bit(attribute: Attribute, name: str) -> None:
    """Each attribute of a batch has its own bit, which is not a reserved bit."""
    assert getattr(header(attributes=int(attribute)), name)
    assert not getattr(header(attributes=0xFFFF & ~int(attribute)), name)
    assert not RESERVED_ATTRIBUTES & attribute


def test_a_producer_is_there_unless_its_id_says_none() -> None:
    """The producer id -1 means that a batch has no producer."""
    assert header(producer_id=0).has_producer
    assert not header(producer_id=-1).has_producer


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", "malformed_batch"),
        (batch()[:36], "malformed_batch"),
        (batch()[:87], "malformed_batch"),
        (batch()[:36] + b"\x02" + bytes(100), "unsupported_version"),
        (pack_header(header(length=77), []), "malformed_batch"),
        (pack_header(header(extension_bytes=4), []), "malformed_batch"),
        (pack_header(header(extension_bytes=8), []), "malformed_batch"),
        (pack_header(header(attributes=1 << 3), []), "malformed_batch"),
        (pack_header(header(length=68), []), "malformed_batch"),
        (pack_header(header(last_offset_delta=-1), []), "malformed_batch"),
        (pack_header(header(record_count=-1), []), "malformed_batch"),
    ],
)
def test_a_header_that_contradicts_itself_is_refuses(raw: bytes, code: str) -> None:
    """A header that is too short, or has an unknown format or an invalid length, is refused with its own code."""
    with refuses(code):
        read_header(raw)


def test_a_walk_visits_each_batch_once() -> None:
    """A walk over a buffer yields each batch once, and may start at any batch."""
    stored = batch(bytes(8)) + batch(bytes(24)) + batch()

    assert [at for at, _ in iterate_headers(stored)] == [0, 96, 208]
    assert [at for at, _ in iterate_headers(memoryview(stored), 96)] == [96, 208]
    assert list(iterate_headers(b"")) == []


def test_a_walk_refuses_a_batch_that_is_cut_off() -> None:
    """A walk yields the complete batches, and then refuses the truncated batch."""
    walk = iterate_headers(batch() + batch()[:-8])
    next(walk)

    with refuses("malformed_batch"):
        next(walk)


def test_a_span_has_the_base_offset_and_size_of_a_batch() -> None:
    """The span of a batch is its base offset, size and last offset delta.

    A batch with a length that is too small is refused.
    """
    stamped = make_stamp(read_header(batch(last_offset_delta=4)), 70, 1, 2) + batch(last_offset_delta=4)[36:]

    assert batch_span(bytes(8) + stamped, 8) == (70, 104, 4)
    with refuses("malformed_batch"):
        batch_span(bytes(44))


def test_a_stamp_replaces_the_first_36_bytes_and_nothing_else() -> None:
    """A stamp keeps both checksums valid, and does not change the producer's checksum or any byte after it."""
    produced = batch(last_offset_delta=2, record_count=3)
    stamp = make_stamp(read_header(produced), 1 << 40, 7, -5, 1)
    stamped = stamp + produced[STAMP_BYTES:]
    found = read_header(stamped)

    assert len(stamp) == STAMP_BYTES
    assert stamped[32:] == produced[32:]
    assert (found.base_offset, found.leader_epoch, found.append_time_us, found.stamp_flags) == (
        1 << 40,
        7,
        -5,
        1,
    )
    assert stamped[26:28] == bytes(2)
    check_stamp_checksum(stamped)
    check_content_checksum(stamped, 0, found)


@given(st.integers(0, 27), st.integers(0, 7))
def test_a_flipped_bit_of_the_stamp_is_found(at: int, bit: int) -> None:
    """A flipped bit in bytes 0 to 27 of a batch fails the first checksum."""
    stamped = bytearray(bytes(8) + make_stamp(header(), 5, 6, 7) + bytes(60))
    stamped[8 + at] ^= 1 << bit

    with refuses("crc_mismatch"):
        check_stamp_checksum(stamped, 8)


@pytest.mark.parametrize("content", [bytes(16), bytes(64_000)])
@pytest.mark.parametrize("at", [36, 87, 88, -1])
def test_a_flipped_bit_of_the_content_is_found(content: bytes, at: int) -> None:
    """A flipped bit from byte 36 on fails the second checksum, in short and in long batches."""
    whole = bytearray(batch(content))
    found = read_header(whole)
    check_content_checksum(whole, 0, found)
    check_unread_checksum(memoryview(whole))
    whole[at] ^= 1

    with refuses("crc_mismatch"):
        check_content_checksum(memoryview(whole), 0, found)
    with refuses("crc_mismatch"):
        check_unread_checksum(memoryview(whole))


@pytest.mark.parametrize("at", [0, 27, 36, -1])
def test_both_checksums_of_a_stored_batch_are_checked(at: int) -> None:
    """A flipped bit that either checksum of a stored batch covers is detected, wherever the batch is in the buffer."""
    produced = batch()
    stored = bytearray(bytes(8) + make_stamp(read_header(produced), 5, 6, 7) + produced[STAMP_BYTES:])
    found = read_header(stored, 8)
    check_checksums(stored, 8, found)
    stored[at if at < 0 else 8 + at] ^= 1

    with refuses("crc_mismatch"):
        check_checksums(stored, 8, found)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_the_checksum_is_crc32c(kind: type) -> None:
    """The checksum equals the standard's check value, computed in one step or in two, for long and short ranges."""
    long = CHECK_INPUT * 2000

    assert checksum(kind(CHECK_INPUT), 0, 9) == CHECK_VALUE
    assert checksum(kind(CHECK_INPUT), 4, 9, checksum(kind(CHECK_INPUT), 0, 4)) == CHECK_VALUE
    assert checksum(kind(long), 1, 9001, checksum(kind(long), 0, 1)) == checksum(kind(long), 0, 9001)


def test_sizes_are_checked_before_anything_is_believed() -> None:
    """The check accepts exactly one batch, no larger than the limit, whose size is a multiple of 8 bytes."""
    whole = batch()
    check_sizes(whole, len(whole))

    with refuses("batch_too_large") as caught:
        check_sizes(whole, len(whole) - 1)
    assert caught.value.data == {"limit_bytes": len(whole) - 1}
    for wrong in (whole[:36], whole[:-8], whole + bytes(8)):
        with refuses("malformed_batch"):
            check_sizes(wrong, 1000)
    odd = batch(bytes(4))
    with refuses("malformed_batch"):
        check_sizes(odd, 1000)


def test_an_unstamped_batch_is_known_by_its_zeros() -> None:
    """A batch is unstamped if its first 32 bytes are zero except for its length."""
    produced = batch()

    assert not is_stamped(produced)
    for at in (*range(8), *range(12, 32)):
        assert is_stamped(produced[:at] + b"\x01" + produced[at + 1 :])
