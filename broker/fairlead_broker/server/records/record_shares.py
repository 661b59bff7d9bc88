"""The records of a request by the partitions that they go to.

Callers: the families that take records rather than batches. Must not know how they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fairlead_api.batch.partitioning import NO_PARTITION, partitions_for_keys
from fairlead_api.identifiers import PartitionIndex


@dataclass(frozen=True, slots=True)
class Share:
    """The records of a request that go to one partition."""

    partition: PartitionIndex
    rows: npt.NDArray[np.int64]
    records: pa.RecordBatch


def shares_of(records: pa.RecordBatch, partition_count: int, place_of_rest: int) -> list[Share]:
    """The records by partition, their order kept; those without a key go together to one place."""
    places = partitions_for_keys(cast("pa.BinaryArray", records.column("key")), partition_count)
    places = np.where(places == NO_PARTITION, place_of_rest, places)
    chosen = np.unique(places)
    if len(chosen) == 1:
        rows = np.arange(records.num_rows, dtype=np.int64)
        return [Share(PartitionIndex(int(chosen[0])), rows, records)]
    shares = []
    for partition in chosen:
        rows = np.flatnonzero(places == partition)
        shares.append(Share(PartitionIndex(int(partition)), rows, records.take(pa.array(rows, pa.int64()))))
    return shares
