"""Check every byte of batches that another replica stamped, and group the batches by leader epoch.

`partition_log` appends the verified batches unchanged. Every batch is checked before the first byte is written, so that
a follower never stores a batch that it could not serve. The module must not know about Arrow: the leader has validated
the contents of a body.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlead_api.batch.header import (
    STAMP_BYTES,
    BatchHeader,
    check_checksums,
    iterate_headers,
)
from fairlead_api.identifiers import LeaderEpoch, Offset
from fairlead_api.problems import ProblemError
from fairlead_broker.log.errors import BadCopy
from fairlead_broker.log.segments.segment_writer import StampedBatch


@dataclass(frozen=True, slots=True)
class EpochRun:
    """Consecutive batches with the same leader epoch."""

    epoch: LeaderEpoch
    batches: list[StampedBatch]

    @property
    def start_offset(self) -> Offset:
        """Base offset of the first batch, which is the start offset of a new epoch."""
        return self.batches[0].base_offset


def read_copies(
    data: memoryview,
    end_offset: Offset,
    highest: LeaderEpoch | None,
    leader_epoch: LeaderEpoch | None = None,
) -> list[EpochRun]:
    """Check fetched batches that continue a log, and return them grouped by leader epoch.

    Raises `BadCopy` unless both checksums of each batch are correct, each batch begins at the end of the log or of the
    previous batch, and leader epochs never decrease, starting from the log's `highest` epoch. A leader epoch must not
    exceed the sender's `leader_epoch` either: after a change of leadership, the sender may truncate its log and append
    other batches, and the difference could not be detected later.
    """
    runs: list[EpochRun] = []
    epoch = -1 if highest is None else int(highest)
    try:
        for at, header in iterate_headers(data):
            check_checksums(data, at, header)
            if header.base_offset != end_offset:
                raise BadCopy(header.base_offset, f"it does not begin at the end of the log, {end_offset}")
            if header.leader_epoch < epoch:
                raise BadCopy(header.base_offset, f"leader epoch {header.leader_epoch} is older than {epoch}")
            if leader_epoch is not None and header.leader_epoch > leader_epoch:
                raise BadCopy(
                    header.base_offset,
                    f"leader epoch {header.leader_epoch} is above the sender's leader epoch {leader_epoch}",
                )
            if not runs or header.leader_epoch > epoch:
                runs.append(EpochRun(LeaderEpoch(header.leader_epoch), []))
            runs[-1].batches.append(_copy(data, at, header))
            epoch, end_offset = header.leader_epoch, Offset(header.next_offset)
    except ProblemError as problem:
        raise BadCopy(end_offset, problem.detail) from problem
    return runs


def first_offsets(data: memoryview) -> tuple[Offset, Offset]:
    """Return the first and the last offset of the first batch. Raises `BadCopy` if a checksum does not match."""
    try:
        at, header = next(iterate_headers(data))
        check_checksums(data, at, header)
    except ProblemError as problem:
        raise BadCopy(-1, problem.detail) from problem
    return Offset(header.base_offset), Offset(header.last_offset)


def _copy(data: memoryview, at: int, header: BatchHeader) -> StampedBatch:
    return StampedBatch(
        stamp=bytes(data[at : at + STAMP_BYTES]),
        content=data[at + STAMP_BYTES : at + header.total_bytes],
        base_offset=Offset(header.base_offset),
        last_offset=Offset(header.last_offset),
        max_time_us=header.max_time_us,
        nbytes=header.total_bytes,
    )
