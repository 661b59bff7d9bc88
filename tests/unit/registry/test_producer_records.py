"""The values of `producers/...` as they lie in stores."""

from __future__ import annotations

import json

import pytest

from fairlead_api.identifiers import ProducerEpoch, ProducerId, TimestampUs
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.producer_records import ProducerIdsRecord, ProducerNameRecord
from fairlead_broker.registry.records import Record, RecordUnreadable, decode, encode

KEYS = Keys("prod")
NAME = ProducerNameRecord(producer_id=ProducerId(7), producer_epoch=ProducerEpoch(3), used_us=TimestampUs(5))


@pytest.mark.parametrize(
    ("key", "written", "record", "document"),
    [
        (
            KEYS.producer_ids,
            "/fairlead/prod/producers/next-id",
            ProducerIdsRecord(next_id=2000),
            {"v": 1, "next_id": 2000},
        ),
        (
            KEYS.producer_name("spark-1"),
            "/fairlead/prod/producers/names/spark-1",
            NAME,
            {"v": 1, "producer_id": 7, "producer_epoch": 3, "used_us": 5},
        ),
    ],
)
def test_records_are_as_they_lie_in_stores(
    key: str, written: str, record: Record, document: dict[str, object]
) -> None:
    """Key and value both, and they come back."""
    assert key == written
    assert json.loads(encode(record)) == document
    assert decode(key, encode(record), type(record)) == record


def test_producers_are_not_mirrored() -> None:
    """Their keys are outside of what every broker follows."""
    assert KEYS.parse(KEYS.producer_ids) is None
    assert KEYS.producer_name("a").startswith(KEYS.producer_names)
    assert not KEYS.producer_names.startswith(KEYS.meta)


def test_ids_never_fall_below_zero() -> None:
    """A value that says so is not believed."""
    with pytest.raises(RecordUnreadable):
        decode(KEYS.producer_ids, b'{"v": 1, "next_id": -1}', ProducerIdsRecord)
