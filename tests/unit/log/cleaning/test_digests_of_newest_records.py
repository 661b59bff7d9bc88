"""The digest of the newest records of a log: cleaning leaves it unchanged, and every other change changes it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cleaning_kit import SEED, KeyedBatches, clean_log, random_history, roll
from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import Offset
from fairlead_broker.log import newest_digest
from fairlead_broker.log.newest_digest import TooManyKeys, digest_newest
from log_kit import FIRST_TIME_US, LogBox, begin

LATER_US = FIRST_TIME_US + 10**12


@pytest.fixture
def batches(tmp_path: Path) -> KeyedBatches:
    """Return the appender of an empty compacted partition."""
    log = LogBox(
        tmp_path / "data", config=TopicConfig(cleanup_policy="compact", segment_bytes=1 << 20)
    ).open()
    begin(log)
    return KeyedBatches(log)


def test_cleaning_leaves_the_digest_unchanged(batches: KeyedBatches) -> None:
    """A log has the same digest before and after rounds that drop records and tombstones, for any seed."""
    log = batches.log
    random_history(batches, random.Random(3), 80, keys=12)
    roll(log)
    found = [digest_newest(log, Offset(0), log.end_offset, seed) for seed in (SEED, bytes(32))]
    clean_log(log, FIRST_TIME_US)
    found.append(digest_newest(log, Offset(0), log.end_offset, SEED))
    clean_log(log, LATER_US, removal_limit=log.end_offset)
    found.append(digest_newest(log, Offset(0), log.end_offset, SEED))

    assert log.cleaning.removed > 0
    assert found == [found[0]] * 4
    assert found[0].damaged_offset is None
    assert int(found[0].digest, 16)


def test_every_part_of_a_record_counts(batches: KeyedBatches) -> None:
    """A different key, value, header, time or offset changes the digest; a deleted key does not count."""
    log, found = batches.log, []
    for rows, headers in (
        ([(b"a", b"1"), (b"b", b"1")], False),
        ([(b"a", b"2"), (b"b", b"1")], False),
        ([(b"c", b"2"), (b"b", b"1")], False),
        ([(b"c", b"2"), (b"b", b"1")], True),
        ([(b"a", None), (b"b", None), (b"c", None)], False),
    ):
        batches.append(rows, headers=headers)
        found.append(digest_newest(log, Offset(0), log.end_offset, SEED).digest)

    assert len(set(found)) == len(found)
    assert int(found[-1], 16) == 0


def test_damage_and_too_many_keys_are_reported(
    batches: KeyedBatches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed bit is reported with its offset, and the digest ends with an error if the keys exceed the memory."""
    log = batches.log
    for number in range(4):
        batches.append([(b"k%d" % number, b"x" * 100)])
    roll(log)
    path = log.segments[0].path
    data = bytearray(path.read_bytes())
    data[-60] ^= 1
    path.write_bytes(data)
    found = digest_newest(log, Offset(0), log.end_offset, SEED)
    monkeypatch.setattr(newest_digest, "MAP_BYTES_MAX", 24)
    monkeypatch.setattr("fairlead_broker.compaction.windows.ROWS_MAX", 1)
    monkeypatch.setattr(newest_digest, "_READ_BYTES", 1)

    assert found.damaged_offset == 3
    with pytest.raises(TooManyKeys):
        digest_newest(log, Offset(0), Offset(3), SEED)
