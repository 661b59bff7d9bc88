"""Records of one request between its body and its batches: lists for a few records, Arrow columns for all others.

`produced_records` creates the records, and `record_storing` encodes the share of each partition. Converting a few
records to Arrow columns takes three times as long as all other work on them, so they stay lists until they are encoded.
This module must not depend on the format of the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, cast

import msgspec
import numpy as np
import pyarrow as pa

from fairlead_api.batch.batches import EncodedBatch, ProducerStamp, encode, encode_records
from fairlead_api.batch.extension import ExtensionEntry
from fairlead_api.batch.header import Codec
from fairlead_api.batch.partitioning import NO_PARTITION, partitions_for_keys
from fairlead_api.identifiers import PartitionIndex
from fairlead_api.partitioning import partition_for_key

ON_LOOP_BYTES_MAX: Final = 128 << 10
"""Maximum size of the records of a request that are parsed, divided and encoded on the event loop. 1 MiB of JSON would
block the event loop for 10 ms."""
LISTED_MAX: Final = 128
"""Maximum number of records that stay lists. For more records, Arrow is faster."""


class RequestRecords(Protocol):
    """Records of one request, or of one partition, in the order of the request."""

    @property
    def count(self) -> int:
        """Number of records."""
        ...

    @property
    def has_null_keys(self) -> bool:
        """Whether a record has no key."""
        ...

    def may_block(self) -> bool:
        """Return whether dividing and encoding the records would block the event loop for too long."""
        ...

    def shares(self, partition_count: int, place_of_rest: int) -> list[Share]:
        """Return the records by partition; records without a key all go to `place_of_rest`."""
        ...

    def encode(
        self, codec: Codec, producer: ProducerStamp | None, extension: tuple[ExtensionEntry, ...]
    ) -> EncodedBatch:
        """Return the records as one batch without the leader's stamp. Raises `invalid_record`."""
        ...


class Share(msgspec.Struct, frozen=True, gc=False):
    """The records of a request for one partition."""

    partition: PartitionIndex
    rows: Sequence[int]
    """Position of each record in the request."""
    records: RequestRecords


def whole(records: RequestRecords, partition: int) -> list[Share]:
    """Return all records as the share of one partition."""
    return [Share(PartitionIndex(partition), range(records.count), records)]


class ListedRecords(msgspec.Struct, frozen=True, gc=False):
    """At most LISTED_MAX records without headers, with at most ON_LOOP_BYTES_MAX bytes, as lists."""

    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps_us: Sequence[int]

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.values)

    @property
    def has_null_keys(self) -> bool:
        """Whether a record has no key."""
        return None in self.keys

    def may_block(self) -> bool:
        """Return False, because the records are few and small."""
        return False

    def shares(self, partition_count: int, place_of_rest: int) -> list[Share]:
        """Return the records by partition; each key is hashed separately."""
        rows: dict[int, list[int]] = {}
        for row, key in enumerate(self.keys):
            place = place_of_rest if key is None else partition_for_key(key, partition_count)
            rows.setdefault(place, []).append(row)
        if len(rows) == 1:
            return whole(self, *rows)
        return [
            Share(PartitionIndex(place), chosen, self._take(chosen)) for place, chosen in sorted(rows.items())
        ]

    def _take(self, rows: Sequence[int]) -> ListedRecords:
        return ListedRecords(
            [self.keys[row] for row in rows],
            [self.values[row] for row in rows],
            [self.timestamps_us[row] for row in rows],
        )

    def encode(
        self, codec: Codec, producer: ProducerStamp | None, extension: tuple[ExtensionEntry, ...]
    ) -> EncodedBatch:
        """Return the records as one batch without the leader's stamp. Raises `invalid_record`."""
        return encode_records(self.values, self.keys, self.timestamps_us, codec, producer, extension)


@dataclass(frozen=True, slots=True)
class ColumnarRecords:
    """Records as Arrow columns of the schema of record batches."""

    columns: pa.RecordBatch

    @property
    def count(self) -> int:
        """Number of records."""
        return self.columns.num_rows

    @property
    def has_null_keys(self) -> bool:
        """Whether a record has no key."""
        return self.columns.column("key").null_count > 0

    def may_block(self) -> bool:
        """Return whether dividing and encoding the records would block the event loop for too long."""
        return self.columns.nbytes > ON_LOOP_BYTES_MAX

    def shares(self, partition_count: int, place_of_rest: int) -> list[Share]:
        """Return the records by partition; all keys are hashed at once."""
        keys = cast("pa.BinaryArray", self.columns.column("key"))
        places = partitions_for_keys(keys, partition_count)
        places = np.where(places == NO_PARTITION, place_of_rest, places)
        chosen = np.unique(places)
        if len(chosen) == 1:
            return whole(self, int(chosen[0]))
        shares = []
        for partition in chosen:
            rows = np.flatnonzero(places == partition)
            columns = ColumnarRecords(self.columns.take(pa.array(rows, pa.int64())))
            shares.append(Share(PartitionIndex(int(partition)), rows.tolist(), columns))
        return shares

    def encode(
        self, codec: Codec, producer: ProducerStamp | None, extension: tuple[ExtensionEntry, ...]
    ) -> EncodedBatch:
        """Return the records as one batch without the leader's stamp. Raises `invalid_record`."""
        return encode(self.columns, codec, producer, extension)
