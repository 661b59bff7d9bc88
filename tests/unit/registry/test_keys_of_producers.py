"""The keys and values below `producers/`, whose stored form is tested in tests/contract."""

from __future__ import annotations

import pytest

from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.records import ProducerIdsRecord, RecordUnreadable, decode

KEYS = Keys("prod")


def test_producers_are_not_mirrored() -> None:
    """Keys of producers are not among the mirrored keys."""
    assert KEYS.parse(KEYS.producer_ids) is None
    assert KEYS.producer_name("a").startswith(KEYS.producer_names)
    assert not KEYS.producer_names.startswith(KEYS.meta)


def test_ids_never_fall_below_zero() -> None:
    """A negative producer id is rejected."""
    with pytest.raises(RecordUnreadable):
        decode(KEYS.producer_ids, b'{"v": 1, "next_id": -1}', ProducerIdsRecord)
