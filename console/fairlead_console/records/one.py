"""Reads one record by its partition and offset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import fairlead
from fairlead import TopicPartition
from fairlead_console.access import Connection
from fairlead_console.records.found import FoundRecord, found_records
from fairlead_console.records.scan import Rows

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN_BYTES: Final = 64 * 1024
"""Number of bytes of a key or value that the page of a record shows."""
WHOLE_BYTES: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class OneRecord:
    """A record and the ends of its partition."""

    first: int
    end: int
    columns: pa.RecordBatch | None
    """One row; None if the partition has no record with the offset."""
    partition: int

    def shown(self) -> FoundRecord | None:
        """Return the record with excerpts."""
        return self._found(SHOWN_BYTES)

    def whole(self) -> FoundRecord | None:
        """Return the record with its whole contents."""
        return self._found(WHOLE_BYTES)

    def _found(self, excerpt_bytes: int) -> FoundRecord | None:
        if self.columns is None:
            return None
        return found_records(Rows(self.partition, self.columns), 1, excerpt_bytes)[0]


async def one_record(connection: Connection, topic: str, partition: int, offset: int) -> OneRecord:
    """Return the record at an offset. Raises the errors of the SDK, for example `PartitionNotFoundError`."""
    place = TopicPartition(topic, partition)
    async with fairlead.Consumer(**connection, request_timeout="10s", retry_timeout="5s") as consumer:
        await consumer.assign([place])
        first, end = consumer.position(place), (await consumer.end_offsets())[place]
        if first <= offset < end:
            await consumer.seek(place, offset)
            async for batch in consumer.batches({place: offset + 1}):
                columns = batch.to_arrow()
                if columns.num_rows and columns.column("offset")[0].as_py() == offset:
                    return OneRecord(first, end, columns.slice(0, 1), partition)
    return OneRecord(first, end, None, partition)
