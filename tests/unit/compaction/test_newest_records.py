"""The newest records of a partly cleaned log, compared with a dictionary."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_api.batch.batches import encode, record_batch
from fairlead_api.batch.header import STAMP_BYTES, make_stamp, read_header
from fairlead_broker.compaction.key_hashes import KeyHashes
from fairlead_broker.compaction.key_map import BUFFER_BYTES_MIN, KeyMap
from fairlead_broker.compaction.newest_records import NewestRecords
from fairlead_broker.compaction.windows import WindowBuilder

HASHES = KeyHashes(bytes(range(32)))
KEYS = st.none() | st.sampled_from([b"a", b"b", b"c", b"d"])
BATCHES = st.lists(st.lists(KEYS, min_size=1, max_size=4), min_size=1, max_size=6)


def stored(keys: list[bytes | None], base_offset: int) -> memoryview:
    """Return a stamped batch with the given keys."""
    columns = record_batch([b"value"] * len(keys), keys, default_timestamp_us=0)
    data = encode(columns).to_bytes()
    return memoryview(make_stamp(read_header(data), base_offset, 1, 0) + data[STAMP_BYTES:])


@given(BATCHES, BATCHES)
@settings(deadline=None, max_examples=100)
def test_the_newest_records_are_those_of_a_dictionary(
    cleaned: list[list[bytes | None]], dirty: list[list[bytes | None]]
) -> None:
    """A record in the map's range stays if no later record has its key; a record below it, if its key is not mapped."""
    bases = [0]
    for keys in (*cleaned, *dirty):
        bases.append(bases[-1] + len(keys))
    map_from, key_map, newest = bases[len(cleaned)], KeyMap(BUFFER_BYTES_MIN), {}
    for base, keys in zip(bases[len(cleaned) :], dirty, strict=False):
        keyed = [(base + row, key) for row, key in enumerate(keys) if key is not None]
        newest.update({key: offset for offset, key in keyed})
        upper, lower = HASHES.of(pa.array([key for _, key in keyed], pa.binary()))
        assert key_map.put(upper, lower, pa.array([offset for offset, _ in keyed], pa.int64()).to_numpy())
    records, builder = NewestRecords(key_map, HASHES, map_from), WindowBuilder(lambda _: True)
    expected, without = [], 0
    for number, keys in enumerate((*cleaned, *dirty)):
        data = stored(keys, bases[number])
        builder.add(read_header(data), data)
        stays = [
            key is not None
            and (key not in newest if number < len(cleaned) else newest[key] == bases[number] + row)
            for row, key in enumerate(keys)
        ]
        expected += stays
        may_be = records.may_be_in(read_header(data))
        assert may_be == (number < len(cleaned) or any(stays))
        without += not may_be

    assert records.of(builder.take()).tolist() == expected
    assert without == sum(
        not any(expected[bases[number] : bases[number + 1]]) for number in range(len(cleaned), len(bases) - 1)
    )
