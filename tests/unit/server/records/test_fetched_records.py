"""Stored batches opened for JSON and Arrow readers."""

import msgspec
import pyarrow as pa
import pytest

from fairlead_api.batch.batches import encode, record_batch
from fairlead_api.batch.header import STAMP_BYTES, make_stamp, read_header
from fairlead_api.bodies.json_records import Encoding
from fairlead_api.identifiers import LeaderEpoch, Offset, PartitionIndex
from fairlead_api.problems import ProblemError
from fairlead_broker.runtime import FetchResult
from fairlead_broker.server.records.fetched_records import FetchedRecords


def stored(base_offset: int, *values: bytes) -> bytes:
    """A batch as the leader stores it."""
    batch = encode(record_batch(list(values), default_timestamp_us=1_500_000)).to_bytes()
    return make_stamp(read_header(batch), base_offset, 3, 2_000_000) + batch[STAMP_BYTES:]


def records(offset: int, *parts: bytes) -> FetchedRecords:
    """What a fetch from an offset found."""
    result = FetchResult(
        data=[memoryview(part) for part in parts],
        next_offset=Offset(9),
        high_watermark=Offset(9),
        log_start_offset=Offset(0),
        last_stable_offset=Offset(9),
        leader_epoch=LeaderEpoch(3),
    )
    return FetchedRecords(PartitionIndex(2), Offset(offset), result)


@pytest.mark.parametrize("offset", range(8))
def test_both_forms_begin_at_the_offset(offset: int) -> None:
    """Records below the asked offset are left out, wherever it falls in a batch."""
    parts = (stored(0, b"0", b"1", b"2") + stored(3, b"3"), stored(4, b"4", b"5", b"6", b"7"))
    answer = msgspec.json.decode(records(offset, *parts).to_json(Encoding.UTF8))
    table = pa.ipc.open_stream(records(offset, *parts).to_arrow_stream()).read_all()

    assert [(entry["offset"], entry["value"]) for entry in answer["records"]] == [
        (number, str(number)) for number in range(offset, 8)
    ]
    assert table.column("offset").to_pylist() == list(range(offset, 8))
    assert {entry["partition"] for entry in answer["records"]} == {2}


def test_damaged_batch_is_not_the_readers_mistake() -> None:
    """A stored batch that fails its checksum is log_damaged, with the offsets around it."""
    damaged = bytearray(stored(3, b"a" * 100, b"b" * 100))
    damaged[-20] ^= 1
    for write in (lambda r: r.to_json(Encoding.UTF8), lambda r: r.to_arrow_stream()):
        with pytest.raises(ProblemError) as refused:
            write(records(0, stored(0, b"0", b"1", b"2"), bytes(damaged)))

        assert refused.value.code == "log_damaged"
        assert (refused.value.data["first_offset"], refused.value.data["next_good_offset"]) == (3, 5)


@pytest.mark.parametrize(("at", "bit"), [(0, 1), (38, 1)], ids=["older than asked for", "a control batch"])
def test_a_flipped_bit_leaves_no_batch_out(at: int, bit: int) -> None:
    """What a header says of a batch is believed after its checksums: else its records would be passed over."""
    damaged = bytearray(stored(3, b"a"))
    damaged[at] ^= 1 << bit
    for write in (lambda r: r.to_json(Encoding.UTF8), lambda r: r.to_arrow_stream()):
        with pytest.raises(ProblemError) as refused:
            write(records(2, stored(2, b"0"), bytes(damaged), stored(4, b"b")))

        assert refused.value.code == "log_damaged"
