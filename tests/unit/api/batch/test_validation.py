"""Rules of a leader for produced batches: the order of the checks, and the limits."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.batch.batches import ProducerStamp, encode, record_batch
from fairlead_api.batch.extension import ExtensionEntry, idempotency_extension
from fairlead_api.batch.header import (
    HEADERS_MAX,
    RECORD_HEADERS_MAX,
    RECORDS_MAX,
    Codec,
    checksum,
    make_stamp,
    read_header,
)
from fairlead_api.batch.validation import (
    KEYED_EXTENSIONS,
    UNLIMITED_US,
    ValidationLimits,
    validate_produced,
)
from fairlead_api.problems import ProblemError
from fairlead_api.timestamps import YEAR_1_US, YEAR_10000_US
from refusals import refuses

NOW_US = 1_700_000_000_000_000
HOUR_US = 3_600_000_000
LIMITS = ValidationLimits(
    batch_bytes_max=100_000,
    decompressed_bytes_max=200_000,
    timestamp_before_max_us=UNLIMITED_US,
    timestamp_after_max_us=HOUR_US,
)


def batch(*times: int, codec: Codec = Codec.NONE, producer: ProducerStamp | None = None) -> bytearray:
    """Return a valid batch with records at the given times."""
    columns = record_batch([b"value"] * len(times), None, list(times), default_timestamp_us=0)
    return bytearray(encode(columns, codec, producer).to_bytes())


def resealed(raw: bytearray) -> memoryview:
    """Recompute the content checksum of a changed batch."""
    struct.pack_into("<I", raw, 32, checksum(raw, 36, len(raw)))
    return memoryview(raw)


def problem_of(raw: bytearray | memoryview, limits: ValidationLimits = LIMITS) -> ProblemError:
    """Return the problem of an invalid batch."""
    with pytest.raises(ProblemError) as caught:
        validate_produced(memoryview(raw), limits, NOW_US)
    return caught.value


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize(
    "producer", [None, ProducerStamp(0, 0, 0), ProducerStamp(2**62, 2**31 - 1, 2**31 - 1)]
)
def test_what_the_sdk_encodes_is_accepted(codec: Codec, producer: ProducerStamp | None) -> None:
    """A batch of every codec, with and without a producer, is accepted, and its header is returned."""
    raw = batch(NOW_US, NOW_US - 5, codec=codec, producer=producer)

    assert validate_produced(memoryview(raw), LIMITS, NOW_US) == read_header(raw)


@given(st.binary(min_size=20, max_size=20), st.binary(min_size=8, max_size=8))
def test_the_stamp_of_a_produced_batch_is_ignored(stamp: bytes, base_offset: bytes) -> None:
    """The stamp of a produced batch is ignored: every stamped field except the length may have any value."""
    raw = batch(NOW_US)
    sent = base_offset + bytes(raw[8:12]) + stamp + bytes(raw[32:])
    header = validate_produced(memoryview(sent), LIMITS, NOW_US)

    assert make_stamp(header, 5, 6, 7) == make_stamp(read_header(raw), 5, 6, 7)


def test_limits_count_stored_and_opened_bytes_apart() -> None:
    """The size of a batch as sent and its uncompressed size have separate limits, and the problem names the limit."""
    raw = batch(*[NOW_US] * 2000, codec=Codec.ZSTD)
    opened = read_header(raw).uncompressed_bytes
    assert len(raw) < opened

    validate_produced(
        memoryview(raw), replace(LIMITS, batch_bytes_max=len(raw), decompressed_bytes_max=opened), NOW_US
    )
    stored = problem_of(raw, replace(LIMITS, batch_bytes_max=len(raw) - 1))
    bomb = problem_of(raw, replace(LIMITS, decompressed_bytes_max=opened - 1))
    assert (stored.code, stored.data) == ("batch_too_large", {"limit_bytes": len(raw) - 1})
    assert (bomb.code, bomb.data) == ("batch_too_large", {"limit_bytes": opened - 1})


@pytest.mark.parametrize(
    ("time_us", "limits", "accepted"),
    [
        (NOW_US + HOUR_US, LIMITS, True),
        (NOW_US + HOUR_US + 1, LIMITS, False),
        (2**63 - 1, LIMITS, False),
        (2**63 - 1, replace(LIMITS, timestamp_after_max_us=UNLIMITED_US, create_times_kept=False), True),
        (2**63 - 1, replace(LIMITS, timestamp_after_max_us=UNLIMITED_US), False),
        (YEAR_10000_US, replace(LIMITS, timestamp_after_max_us=UNLIMITED_US), False),
        (YEAR_10000_US - 1, replace(LIMITS, timestamp_after_max_us=UNLIMITED_US), True),
        (YEAR_1_US, LIMITS, True),
        (YEAR_1_US - 1, LIMITS, False),
        (-(2**63), replace(LIMITS, create_times_kept=False), True),
        (NOW_US - HOUR_US, replace(LIMITS, timestamp_before_max_us=HOUR_US), True),
        (NOW_US - HOUR_US - 1, replace(LIMITS, timestamp_before_max_us=HOUR_US), False),
    ],
)
def test_timestamps_keep_the_window(time_us: int, limits: ValidationLimits, accepted: bool) -> None:
    """A timestamp at a limit of the window is accepted; a timestamp beyond it or outside the calendar is refused."""
    for raw in (batch(time_us), batch(NOW_US, time_us, NOW_US)):
        if accepted:
            validate_produced(memoryview(raw), limits, NOW_US)
        else:
            assert problem_of(raw, limits).code == "invalid_record"


@pytest.mark.parametrize(
    ("producer", "accepted"),
    [((5, 2, 0), True), ((5, 2, -1), True), ((-1, -1, -1), False), ((5, 2, -2), False)],
)
def test_a_transactional_batch_has_a_producer(producer: tuple[int, int, int], accepted: bool) -> None:
    """A transactional batch has a producer id and an epoch, and may leave its sequence to the leader."""
    raw = batch(NOW_US, producer=ProducerStamp(5, 2, 0, is_transactional=True))
    struct.pack_into("<qii", raw, 64, *producer)
    sealed = resealed(raw)

    if accepted:
        assert validate_produced(sealed, LIMITS, NOW_US).is_transactional
    else:
        assert problem_of(sealed).code == "malformed_batch"


@pytest.mark.parametrize("producer", [(0, -1, 0), (0, 0, -1), (-1, 0, 0), (-2, -2, -2), (-1, -1, 0)])
def test_a_producer_is_whole_or_absent(producer: tuple[int, int, int]) -> None:
    """Producer id, epoch and sequence of a batch are all at least 0, or all -1."""
    raw = batch(NOW_US)
    struct.pack_into("<qii", raw, 64, *producer)

    assert problem_of(resealed(raw)).code == "malformed_batch"


def test_the_order_of_checks_is_sizes_checksum_header_declared_arrow_rows() -> None:
    """The checks of a batch are made in this order: size, checksum, header, declared size, Arrow message, rows."""
    raw = batch(NOW_US + 2 * HOUR_US, codec=Codec.NONE)
    good = bytes(raw)
    limits = replace(LIMITS, batch_bytes_max=len(raw), decompressed_bytes_max=100)
    struct.pack_into("<q", raw, 56, 1)
    arrow_marker = 88
    raw[arrow_marker] = 0
    raw[36] = 9
    raw[37] = 9

    assert "has 672 bytes" not in problem_of(raw, limits).detail
    assert problem_of(raw, replace(limits, batch_bytes_max=90)).code == "batch_too_large"
    assert problem_of(raw, limits).code == "crc_mismatch"
    assert "format 9" in problem_of(resealed(raw), limits).detail
    raw[36] = 1
    assert "codec 9" in problem_of(resealed(raw), limits).detail
    raw[37] = 0
    assert "before compression" in problem_of(resealed(raw), limits).detail
    limits = LIMITS
    assert "begins with" in problem_of(resealed(raw), limits).detail
    raw[arrow_marker] = good[arrow_marker]
    assert "timestamp" in problem_of(resealed(raw), limits).detail
    raw[56:64] = good[56:64]
    assert "future" in problem_of(resealed(raw), limits).detail


def keyed(*more: ExtensionEntry) -> memoryview:
    """Return a batch as a broker builds it from a request with an idempotency key."""
    columns = record_batch([b"value"], default_timestamp_us=NOW_US)
    extension = (*idempotency_extension(b"order-17", bytes(16)), *more)
    return memoryview(encode(columns, extension=extension).to_bytes())


def test_only_a_broker_writes_idempotency_keys() -> None:
    """A batch with an idempotency key or digest is accepted from the broker itself and refused from a client."""
    columns = record_batch([b"value"], default_timestamp_us=NOW_US)
    digest = encode(columns, extension=idempotency_extension(b"k", bytes(16))[1:]).to_bytes()
    header = validate_produced(keyed(), LIMITS, NOW_US, KEYED_EXTENSIONS)

    assert header.extension_bytes == 32
    assert problem_of(keyed()).code == "malformed_batch"
    assert problem_of(memoryview(digest)).code == "malformed_batch"


def test_a_batch_with_a_horizon_is_refused() -> None:
    """A batch with a horizon extension is refused, even if the broker built the batch from a keyed request."""
    with refuses("malformed_batch", 1):
        validate_produced(keyed(ExtensionEntry(1, bytes(8))), LIMITS, NOW_US, KEYED_EXTENSIONS)


def test_unknown_extensions_below_the_line_are_kept() -> None:
    """A batch with an unknown optional extension is accepted, because a later client may write one."""
    columns = record_batch([b"value"], default_timestamp_us=NOW_US)
    raw = encode(columns, extension=(ExtensionEntry(77, b"later"),)).to_bytes()

    assert validate_produced(memoryview(raw), LIMITS, NOW_US).extension_bytes == 16


WIDE: ValidationLimits = replace(LIMITS, decompressed_bytes_max=64 << 20)


def headed(*counts: int) -> memoryview:
    """Return a compressed batch of records, each with the given number of empty headers."""
    headers = [[("", b"")] * count for count in counts]
    columns = record_batch([b""] * len(counts), headers=headers, default_timestamp_us=NOW_US)
    return memoryview(encode(columns, Codec.ZSTD).to_bytes())


def test_records_of_a_batch_are_counted_before_it_opens() -> None:
    """The records of a batch are counted before decompression: a batch with more records than the limit is refused."""
    at_limit = record_batch([b""] * RECORDS_MAX, default_timestamp_us=NOW_US)
    beyond = record_batch([b""] * (RECORDS_MAX + 1), default_timestamp_us=NOW_US)
    accepted = validate_produced(memoryview(encode(at_limit, Codec.ZSTD).to_bytes()), WIDE, NOW_US)
    refused = problem_of(memoryview(encode(beyond, Codec.ZSTD).to_bytes()), WIDE)

    assert accepted.record_count == RECORDS_MAX
    assert (refused.code, refused.data) == ("batch_too_large", {"limit_records": RECORDS_MAX})


def test_headers_are_counted_by_batch_and_by_record() -> None:
    """The number of headers is limited per batch and per record."""
    in_batch = problem_of(headed(*[RECORD_HEADERS_MAX] * (HEADERS_MAX // RECORD_HEADERS_MAX), 1), WIDE)
    in_record = problem_of(headed(1, 0, RECORD_HEADERS_MAX + 1), WIDE)

    assert (in_batch.code, in_batch.data) == ("batch_too_large", {"limit_headers": HEADERS_MAX})
    assert (in_record.code, in_record.data) == ("invalid_record", {"record": 2, "parameter": "headers"})
    assert (
        validate_produced(headed(RECORD_HEADERS_MAX, 0, RECORD_HEADERS_MAX), WIDE, NOW_US).record_count == 3
    )


def test_a_compacted_topic_needs_a_key_in_every_record() -> None:
    """A batch that contains a record without a key is refused where keys are required, and accepted elsewhere."""
    columns = record_batch([b"1", b"2"], [b"key", None], [NOW_US, NOW_US], default_timestamp_us=0)
    raw = memoryview(bytearray(encode(columns).to_bytes()))
    keyed = record_batch([b"1", None], [b"key", b""], [NOW_US, NOW_US], default_timestamp_us=0)
    compacted = replace(LIMITS, keys_required=True)

    assert problem_of(raw, compacted).code == "invalid_record"
    assert validate_produced(raw, LIMITS, NOW_US).record_count == 2
    assert validate_produced(memoryview(encode(keyed).to_bytes()), compacted, NOW_US).record_count == 2
