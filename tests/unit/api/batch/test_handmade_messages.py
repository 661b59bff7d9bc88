"""Messages built by hand equal the messages that Arrow writes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.batch.batches import MessageLayout, ProducerStamp, encode, encode_records, record_batch
from fairlead_api.batch.header import Codec
from fairlead_api.problems import ProblemError

TIMES = st.integers(-(2**63), 2**63 - 1)
BYTES = st.one_of(st.none(), st.binary(max_size=40))
RECORDS = st.lists(st.tuples(BYTES, BYTES, TIMES), min_size=1, max_size=40)


@given(RECORDS, st.sampled_from([1, 6]), st.sampled_from(Codec))
def test_the_bytes_are_those_of_arrow(
    few: list[tuple[bytes | None, bytes | None, int]], times_over: int, codec: Codec
) -> None:
    """A batch built by hand has the same bytes as Arrow's batch, with nulls and empty values, few records or many."""
    values, keys, times = (list(column) for column in zip(*few * times_over, strict=True))
    stamp = ProducerStamp(7, 1, 5)

    by_hand = encode_records(values, keys, times, codec, stamp)
    by_arrow = encode(record_batch(values, keys, times, default_timestamp_us=0), codec, stamp)

    assert by_hand.to_bytes() == by_arrow.to_bytes()
    assert replace(by_hand, parts=()) == replace(by_arrow, parts=())


@pytest.mark.parametrize("sizes", [range(1100), [5, 4000, 4096, 4097, 9000, 5]])
def test_single_records_of_any_size_have_the_bytes_of_arrow(sizes: Iterable[int]) -> None:
    """A single record has the same bytes as Arrow's, whether or not a record of its size was encoded before."""
    for size in sizes:
        value, key = bytes([size % 251]) * size, None if size % 2 else b"key"
        by_arrow = encode(record_batch([value], [key], [size], default_timestamp_us=0))

        assert encode_records([value], [key], [size]).to_bytes() == by_arrow.to_bytes(), size


@given(st.lists(st.tuples(BYTES, TIMES), min_size=1, max_size=40), st.sampled_from([1, 6]))
def test_an_array_of_times_and_no_keys_are_what_lists_are(
    few: list[tuple[bytes | None, int]], times_over: int
) -> None:
    """A batch built from an array of times, without keys, has the same bytes as a batch from lists, small or large."""
    values, times = (list(column) for column in zip(*few * times_over, strict=True))

    gathered = encode_records(values, None, np.array(times, np.int64))
    listed = encode_records(values, [None] * len(values), times)

    assert gathered.to_bytes() == listed.to_bytes()


@pytest.mark.parametrize(
    ("values", "keys", "times"),
    [
        (["text\ud800"], [None], [1]),
        ([b""], [5], [1]),
        ([b""], [None], [2**63]),
        ([b""], [None], ["now"]),
        ([b""], [], [1]),
        ([], [], []),
    ],
)
def test_what_columns_cannot_hold_is_refused_as_by_arrow(
    values: list[bytes], keys: list[bytes], times: list[int]
) -> None:
    """Records that a column cannot represent are refused, as in Arrow's encoder, and the problem names the column."""
    with pytest.raises(ProblemError) as by_hand:
        encode_records(values, keys, times)
    with pytest.raises(ProblemError) as by_arrow:
        encode(record_batch(values, keys, times, default_timestamp_us=0))

    assert str(by_hand.value) == str(by_arrow.value)


def test_the_layout_does_not_depend_on_its_template() -> None:
    """The layout does not depend on which message of the schema is used as the template."""
    several = record_batch([b"a", None], [None, b"key"], [1, 2], default_timestamp_us=0).serialize()
    one = record_batch([b""], default_timestamp_us=0).serialize()
    records = ([b"value"], [None], [3])

    assert MessageLayout(memoryview(several)).message(*records) == MessageLayout(memoryview(one)).message(
        *records
    )


@pytest.mark.parametrize("value", [b"", b"v" * 1000])
def test_the_size_of_the_prefix_is_known_before_the_body(value: bytes) -> None:
    """A caller can reserve space before an Arrow body; its size does not depend on the records."""
    layout = MessageLayout(
        memoryview(record_batch([b"v"], [None], [1], [()], default_timestamp_us=0).serialize())
    )
    message = layout.message([value], [None], [1])

    assert layout.prefix_bytes + pa.ipc.read_message(message).body.size == len(message)
