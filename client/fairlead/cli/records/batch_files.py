"""Records in a file of batches, which a broker writes before it cuts records that only it has from a mirror.

The name of the file is `<partition>-<offset>.batches`. The file has stored batches one after the other.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from pathlib import Path

from fairlead.cli.records.record_format import PrintedRecord
from fairlead_api.batch.batches import decode_records
from fairlead_api.batch.header import iterate_headers

_NAME = re.compile(r"(\d+)-\d+\.batches")


class NotBatchesError(Exception):
    """The name of a file is not that of a file of batches."""


def batches_of(path: Path, topic: str) -> Iterator[list[PrintedRecord]]:
    """Yield the records of each batch.

    Raises `NotBatchesError`, `OSError`, and `ProblemError` for a damaged batch.
    """
    name = _NAME.fullmatch(path.name)
    if name is None:
        msg = f"{path.name} is not called PARTITION-OFFSET.batches"
        raise NotBatchesError(msg)
    partition = int(name[1])
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        memoryview(data) as view,
    ):
        for at, header in iterate_headers(view):
            yield [
                PrintedRecord(
                    topic,
                    partition,
                    record.offset,
                    record.timestamp_us,
                    record.key,
                    record.value,
                    tuple(record.headers),
                )
                for record in decode_records(data[at : at + header.total_bytes])
            ]
