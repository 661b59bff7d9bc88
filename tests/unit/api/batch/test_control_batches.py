"""The bytes of markers, the control batches that end transactions."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.batch.control_batches import (
    MARKER_BYTES,
    EpochBeginning,
    EpochVoter,
    Marker,
    MarkerKind,
    pack_epoch_beginning,
    pack_marker,
    read_marker,
)
from fairlead_api.batch.extension import ExtensionEntry, ExtensionType, pack_extension, read_extension
from fairlead_api.batch.header import check_content_checksum, read_header
from fairlead_api.identifiers import BrokerEpoch, BrokerId, TimestampUs
from fairlead_api.problems import ProblemError

MARKERS = st.builds(
    Marker,
    producer_id=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 2**31 - 1),
    kind=st.sampled_from(MarkerKind),
    first_offset=st.none() | st.integers(0, 2**63 - 1),
    decided_us=st.integers(0, 2**62),
)


@given(marker=MARKERS)
def test_a_marker_is_read_as_written(marker: Marker) -> None:
    """A packed marker has 112 bytes, a valid checksum, the transactional and control bits and no record.

    All fields of the marker are read back unchanged.
    """
    packed = pack_marker(marker)
    header = read_header(packed)
    check_content_checksum(packed, 0, header)

    assert len(packed) == header.total_bytes == MARKER_BYTES
    assert (header.is_control, header.is_transactional, header.record_count) == (True, True, 0)
    assert (header.next_offset, header.base_sequence) == (1, -1)
    assert read_marker(packed[88:], header.producer_id, header.producer_epoch) == marker


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (bytes.fromhex("0200") + bytes(18), ExtensionType.MARKER),
        (bytes.fromhex("01000200") + bytes(16), ExtensionType.MARKER),
        (bytes(8), ExtensionType.HORIZON),
    ],
    ids=["a later version", "another kind", "no marker"],
)
def test_control_batches_of_later_releases_are_no_markers(value: bytes, kind: int) -> None:
    """Control batches of an unknown version or kind are skipped."""
    extension = pack_extension((ExtensionEntry(kind, value),))

    assert read_marker(extension, 1, 2) is None


def test_a_malformed_marker_is_refused() -> None:
    """A marker with a different length is malformed."""
    extension = pack_extension((ExtensionEntry(ExtensionType.MARKER, bytes(19)),))
    with pytest.raises(ProblemError) as caught:
        read_marker(extension, 1, 2)

    assert caught.value.code == "malformed_batch"


def test_the_beginning_of_an_epoch_takes_one_offset_and_is_no_marker() -> None:
    """The batch that begins a leader epoch has no record, no producer and no transaction, and names the voters."""
    voters = tuple(EpochVoter(BrokerId(broker), BrokerEpoch(10 + broker)) for broker in (1, 2, 3))
    beginning = EpochBeginning(BrokerId(1), BrokerEpoch(11), 2, voters)
    packed = pack_epoch_beginning(beginning, TimestampUs(5))
    header = read_header(packed)
    check_content_checksum(packed, 0, header)
    [entry] = read_extension(packed, header)

    assert (header.is_control, header.is_transactional, header.record_count) == (True, False, 0)
    assert (header.next_offset, header.producer_id, header.max_timestamp_us) == (1, -1, 5)
    assert entry.type == ExtensionType.LEADER_EPOCH
    assert msgspec.json.decode(entry.value, type=EpochBeginning) == beginning
    assert read_marker(packed[header.total_bytes - header.extension_bytes :], 1, 2) is None
