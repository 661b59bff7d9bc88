"""Checks of what arrives from a source; until a batch is checked, it must be treated as hostile (rule L12)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from fairlead_api.batch.batches import decode
from fairlead_api.batch.columns import numbers_of
from fairlead_api.batch.header import RECORD_HEADERS_MAX, RECORDS_MAX, check_checksums, iterate_headers
from fairlead_api.batch.validation import check_header_counts
from fairlead_api.identifiers import LeaderEpoch, Offset
from fairlead_api.problems import ProblemError
from fairlead_api.timestamps import YEAR_1_US, YEAR_10000_US
from fairlead_broker.links.copying import Arrived, Expired, Gone, SourceAnswer, Truncated
from fairlead_broker.replication.divergence import EpochEnd, EpochStart

if TYPE_CHECKING:
    import pyarrow as pa

GONE_CODES: Final = frozenset({"topic_not_found", "topic_recreated", "partition_not_found"})
"""Codes of refusals by a source that no longer has the topic or the partition."""


@dataclass(frozen=True, slots=True)
class CheckedBatches:
    """Batches of one partition whose contents are valid."""

    data: memoryview
    count: int
    first_offset: Offset
    last_epoch: LeaderEpoch

    def arrived(self, log_start: Offset, removed_to: Offset) -> Arrived:
        """Return the answer in the form from which `links.copying` decides the next step."""
        return Arrived(self.first_offset, self.last_epoch, log_start, removed_to)


def check_batches(data: memoryview, decompressed_bytes_max: int) -> CheckedBatches:
    """Check whole batches: their checksums, their sizes, and their records as fully as those of a producer.

    A stored batch that readers cannot decode would stop every consumer of the mirror. The call blocks and runs in a
    pool. Raises the problem of the first invalid batch.
    """
    count, first_offset, last_epoch = 0, Offset(-1), LeaderEpoch(-1)
    for at, header in iterate_headers(data):
        batch = data[at : at + header.total_bytes]
        check_checksums(data, at, header)
        if header.uncompressed_bytes > decompressed_bytes_max:
            detail = f"the body has {header.uncompressed_bytes} bytes; allowed: {decompressed_bytes_max}"
            raise ProblemError("malformed_batch", detail)
        records_max = 0 if header.is_control else RECORDS_MAX
        if header.record_count > records_max:
            detail = f"the batch has {header.record_count} records; allowed: {records_max}"
            raise ProblemError("malformed_batch", detail)
        columns = decode(batch, header, verify_checksum=False)
        if columns.num_rows:
            # Counting is left out for most batches: all their records together have fewer headers than one may have.
            if (
                len(cast("pa.ListArray[pa.StructScalar]", columns.column("headers")).values)
                > RECORD_HEADERS_MAX
            ):
                check_header_counts(columns)
            _check_times(columns)
        if not count:
            first_offset = Offset(header.base_offset)
        count, last_epoch = count + 1, LeaderEpoch(header.leader_epoch)
    return CheckedBatches(data, count, first_offset, last_epoch)


def _check_times(columns: pa.RecordBatch) -> None:
    """Raise `invalid_record` for times that no reader can represent."""
    times = numbers_of(columns.column("timestamp"), np.int64)
    first, last = int(times.min()), int(times.max())
    if first < YEAR_1_US or last >= YEAR_10000_US:
        detail = f"timestamps {first} to {last} (microseconds); allowed: the years 1 to 9999"
        raise ProblemError("invalid_record", detail)


def answer_in(problem: ProblemError) -> SourceAnswer | None:
    """Return what a refusal says about the source's log; None if the refusal says nothing about the log."""
    with suppress(KeyError, TypeError, ValueError):
        if problem.code == "log_truncated":
            return Truncated(
                EpochEnd(
                    LeaderEpoch(int(cast("int", problem.data["epoch"]))),
                    Offset(int(cast("int", problem.data["end_offset"]))),
                )
            )
        if problem.code == "offset_expired":
            return Expired(Offset(int(cast("int", problem.data["log_start_offset"]))), _deleted_in(problem))
    return Gone() if problem.code in GONE_CODES else None


def _deleted_in(problem: ProblemError) -> EpochStart | None:
    """Return the leader epoch of the last record that the source has deleted; None if the source does not name it."""
    with suppress(KeyError, TypeError, ValueError):
        return EpochStart(
            LeaderEpoch(int(cast("int", problem.data["deleted_epoch"]))),
            Offset(int(cast("int", problem.data["deleted_epoch_start"]))),
        )
    return None
