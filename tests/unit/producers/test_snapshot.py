"""Snapshots of the producer state as bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.batch.header import checksum
from fairlead_api.identifiers import Offset, ProducerEpoch, ProducerId, TimestampUs
from fairlead_broker.producers import (
    AbortedTransaction,
    ProducerState,
    Snapshot,
    decode_snapshot,
    encode_snapshot,
    stored_batch,
)
from fairlead_broker.producers.snapshot import HEADER_BYTES

times = st.integers(10**15, 10**15 + 10**9) | st.integers(10**14, 10**16)


@st.composite
def states(draw: st.DrawFn) -> ProducerState:
    """Draw a state that a log could have."""
    state = ProducerState()
    for _ in range(draw(st.integers(0, 20))):
        batch = stored_batch(
            draw(st.integers(0, 2**31 - 1)),
            draw(st.integers(0, 100)),
            draw(st.integers(0, 2**62)),
            draw(times),
        )
        producer_id, epoch = ProducerId(draw(st.integers(0, 4))), ProducerEpoch(draw(st.integers(0, 1)))
        if draw(st.booleans()):
            state.replay(producer_id, epoch, batch, draw(st.booleans()))
        else:
            state.replay_marker(producer_id, epoch, batch.base_offset, batch.append_time_us)
    for _ in range(draw(st.integers(0, 5))):
        base = draw(st.integers(0, 2**62))
        state.replay_key(
            draw(st.binary(min_size=1, max_size=64)),
            draw(st.binary(min_size=16, max_size=16)),
            Offset(base),
            Offset(base + 3),
            TimestampUs(draw(times)),
        )
    return state


NUMBERS = st.integers(0, 2**62)
ABORTED = st.builds(AbortedTransaction, NUMBERS, NUMBERS, NUMBERS, st.integers(0, 2**31 - 1))


@given(states(), NUMBERS, st.lists(ABORTED, max_size=3))
def test_a_snapshot_brings_everything_back(
    state: ProducerState, offset: int, aborted: list[AbortedTransaction]
) -> None:
    """A snapshot restores state, order, time and aborted transactions, and equal states have equal bytes."""
    data = encode_snapshot(Snapshot(Offset(offset), state, tuple(aborted)))
    found = decode_snapshot(data)

    assert found is not None
    assert found.aborted == tuple(aborted)
    assert found.offset == offset
    assert list(found.state.producers.items()) == list(state.producers.items())
    assert list(found.state.keys.items()) == list(state.keys.items())
    assert found.state.last_append_time_us == state.last_append_time_us
    assert found.state.partition_time_us == state.partition_time_us
    assert dict(found.state.transactions.first_offsets) == dict(state.transactions.first_offsets)
    assert encode_snapshot(found) == data


@given(states(), st.data())
def test_a_damaged_snapshot_is_never_believed(state: ProducerState, data: st.DataObject) -> None:
    """A snapshot with a changed bit, a missing byte or an extra byte is rejected."""
    good = encode_snapshot(Snapshot(Offset(5), state))
    bit = data.draw(st.integers(0, len(good) * 8 - 1))
    flipped = bytearray(good)
    flipped[bit // 8] ^= 1 << bit % 8
    # The two bytes after the version are zero and unused, but the checksum covers them.
    assert decode_snapshot(bytes(flipped)) is None
    assert decode_snapshot(good[:-1]) is None
    assert decode_snapshot(good + b"\0") is None
    assert decode_snapshot(good[: data.draw(st.integers(0, len(good) - 1))]) is None


@pytest.mark.parametrize("data", [None, b"", b"FLPR", bytes(HEADER_BYTES)])
def test_what_is_no_snapshot_is_none(data: bytes | None) -> None:
    """A missing file, an empty file, a header alone and zeros are not snapshots."""
    assert decode_snapshot(data) is None


def test_a_snapshot_of_a_later_release_is_done_without() -> None:
    """A snapshot of a later release is ignored."""
    good = encode_snapshot(Snapshot(Offset(5), ProducerState()))
    head = good[:4] + struct.pack("<H", 4) + good[6:12]
    body = good[HEADER_BYTES:]
    sealed = head + struct.pack("<I", checksum(body, 0, len(body), checksum(head, 0, len(head)))) + body

    assert decode_snapshot(sealed) is None


def test_a_snapshot_of_an_earlier_release_is_read() -> None:
    """A snapshot without partition times is read, and the ages of its entries follow from their append times."""
    hour = 3600 * 1_000_000
    batches = struct.pack("<iiqq", 0, 4, 100, 20 * hour) + struct.pack("<iiqq", 5, 5, 105, 21 * hour)
    body = (
        struct.pack("<qqII", 200, 30 * hour, 1, 1)
        + struct.pack("<qiI", 7, 3, 2)
        + batches
        + struct.pack("<16sqqqH", b"digest".ljust(16), 150, 151, 10 * hour, 4)
        + b"once"
    )
    head = struct.pack("<4sHHI", b"FLPR", 1, 0, len(body))
    sealed = head + struct.pack("<I", checksum(body, 0, len(body), checksum(head, 0, len(head)))) + body
    found = decode_snapshot(sealed)

    assert found is not None
    assert found.offset == 200
    state = found.state
    assert (state.last_append_time_us, state.partition_time_us) == (30 * hour, 30 * hour)
    producer, key = state.producer(7), state.key(b"once")
    assert producer is not None
    assert (producer.epoch, producer.next_sequence, producer.partition_time_us) == (3, 6, 21 * hour)
    assert key is not None
    assert (key.base_offset, key.last_offset, key.partition_time_us) == (150, 151, 10 * hour)


def test_what_has_expired_is_left_out() -> None:
    """A snapshot leaves out expired entries."""
    state = ProducerState()
    state.replay(ProducerId(7), ProducerEpoch(0), stored_batch(0, 0, 0, 1))
    state.advance(30 * 1_000_000)
    before = len(encode_snapshot(Snapshot(Offset(1), state)))
    for hour in range(1, 26):
        state.advance(hour * 3600 * 1_000_000)

    assert len(encode_snapshot(Snapshot(Offset(1), state))) < before
