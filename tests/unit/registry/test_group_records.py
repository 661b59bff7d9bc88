"""Records of groups are restored from the store, with the fields of a later release."""

from __future__ import annotations

import msgspec
import pytest

from fairlead_api.identifiers import BrokerEpoch, BrokerId, LeaderEpoch, Offset, TimestampUs, TopicId
from fairlead_broker.registry.group_records import (
    ClassicGroupRecord,
    ClassicMemberRecord,
    CoordinatorRecord,
    GroupRecord,
    MemberRecord,
    OffsetEntry,
    OffsetsRecord,
    TargetRecord,
)
from fairlead_broker.registry.records import Record, RecordUnreadable, decode, encode
from refusals import raises

T = TopicId("1b4e28ba-2fa1-4d3b-a3f5-ef19b5a7633b")
RECORDS: list[Record] = [
    CoordinatorRecord(broker=BrokerId(2), broker_epoch=BrokerEpoch(40)),
    GroupRecord(epoch=3, target_epoch=2, assignor="uniform", created_us=TimestampUs(5)),
    TargetRecord(epoch=3, members={"m": (0, 2)}),
    ClassicGroupRecord(generation=3, protocol_type="consumer", protocol="range", leader="m"),
    ClassicMemberRecord(
        instance_id="i",
        client_id="c",
        client_host="/h",
        session_timeout_ms=45_000,
        rebalance_timeout_ms=300_000,
        subscription=b"\x00\x01",
        assignment=b"\xff",
    ),
    MemberRecord(
        instance_id="i",
        rack="r",
        topics=("a", "b"),
        topic_pattern="x.*",
        session_timeout_ms=45_000,
        rebalance_timeout_ms=300_000,
        epoch=3,
        previous_epoch=2,
        assigned={T: (0, 1)},
        revoking={T: (2,)},
        principal="user:ann",
    ),
    OffsetsRecord(
        entries=(
            OffsetEntry(
                partition=65,
                offset=Offset(7),
                leader_epoch=LeaderEpoch(1),
                metadata="é",
                committed_us=TimestampUs(9),
            ),
        )
    ),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_as_it_was_written(record: Record) -> None:
    """A record is restored as it was written, with the fields of a later release."""
    later = msgspec.structs.replace(record, unknown={"later": [1]})

    assert decode("k", encode(record), type(record)) == record
    assert decode("k", encode(later), type(record)) == later


def test_an_offset_keeps_what_a_later_release_has_added_to_it() -> None:
    """A commit keeps fields that a later release has added to offsets of other partitions in the same record."""
    written = b'{"v":1,"entries":[{"partition":1,"offset":5,"committed_us":3,"later":true}]}'

    record = decode("k", written, OffsetsRecord)

    assert record.entries[0].unknown == {"later": True}
    assert msgspec.json.decode(encode(record))["entries"][0]["later"] is True


def test_a_value_that_is_no_such_record_is_named() -> None:
    """A value that is not a group record is refused, and the refusal names its key."""
    with raises(RecordUnreadable, "groups/etl/state"):
        decode("groups/etl/state", b'{"v":1,"epoch":-1}', GroupRecord)
