"""Cuts a table into pieces, each of which is one batch of one partition.

`send_batch` calls this module. The module performs no I/O and is vectorised: keys are hashed column by column, and rows
of a partition keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final, cast

import numpy as np
import pyarrow as pa

from fairlead.errors import RecordError
from fairlead.settings import MIB
from fairlead_api.batch.batches import canonical, split
from fairlead_api.batch.partitioning import partitions_for_keys

NO_KEY: Final = -1
"""Marker of a piece without keys, whose partition the producer chooses."""

SLICE_BYTES: Final = 32 * MIB
"""Size of the slices in which a table is cast, hashed and sorted, so that a large table is not in memory twice."""


def table_of(data: object, topic: str) -> pa.Table | pa.RecordBatch:
    """Return `data` if the value is an Arrow table; raise `RecordError` for a data frame, a list or any other value."""
    if isinstance(data, pa.Table | pa.RecordBatch):
        return data
    kind = f"{type(data).__module__}.{type(data).__name__}".removeprefix("builtins.")
    frames = "pa.Table.from_pandas(frame) and Polars' frame.to_arrow() return an Arrow Table"
    raise RecordError(topic, "the table", kind, f"give an Arrow Table or RecordBatch; {frames}")


def slices(data: pa.Table | pa.RecordBatch) -> Iterator[pa.Table | pa.RecordBatch]:
    """Cut a table into consecutive slices of about `SLICE_BYTES`, as record batches where no copy is required."""
    rows = max(1, data.num_rows * SLICE_BYTES // max(data.nbytes, 1))
    if isinstance(data, pa.Table) and all(column.num_chunks == 1 for column in data.columns):
        return iter(data.to_batches(max_chunksize=rows))
    return (data.slice(start, rows) for start in range(0, data.num_rows, rows))


def pieces(
    data: pa.Table | pa.RecordBatch, partition_count: int, bytes_max: int, default_timestamp_us: int
) -> list[tuple[int, pa.RecordBatch]]:
    """Return pairs of partition (or `NO_KEY`) and batch for all rows; only a single larger row exceeds `bytes_max`.

    Raises `ProblemError` (`invalid_record`), which names the column that cannot be sent.
    """
    columns = canonical(data, default_timestamp_us)
    return [
        (partition, piece)
        for partition, part in _by_partition(columns, partition_count)
        for piece in split(part, bytes_max)
    ]


def whole(
    data: pa.Table | pa.RecordBatch, partition: int, bytes_max: int, default_timestamp_us: int
) -> list[tuple[int, pa.RecordBatch]]:
    """Return the pieces of rows that all go to one partition, regardless of their keys."""
    return [(partition, piece) for piece in split(canonical(data, default_timestamp_us), bytes_max)]


def _by_partition(columns: pa.RecordBatch, partition_count: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    keys = columns.column("key")
    if keys.null_count == len(keys):
        yield NO_KEY, columns
        return
    partitions = partitions_for_keys(cast("pa.BinaryArray", keys), partition_count)
    # The sort is stable, so that the records of a partition keep the order of the table. numpy sorts 16-bit numbers by
    # radix, six times faster, and a topic has at most 10,000 partitions.
    order = np.argsort(partitions.astype(np.int16), kind="stable")
    ends = np.cumsum(np.bincount(partitions - NO_KEY, minlength=partition_count - NO_KEY)).tolist()
    for partition, (start, end) in enumerate(pairwise([0, *ends]), start=NO_KEY):
        if end - start == len(order):
            yield partition, columns
        elif end > start:
            yield partition, columns.take(order[start:end])
