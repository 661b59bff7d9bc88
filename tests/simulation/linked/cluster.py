"""One cluster with a topic of two partitions, each with a leader and one follower in sync."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from fairlead_api.batch.batches import decode_records, encode, record_batch
from fairlead_api.batch.header import STAMP_BYTES, iterate_headers, make_stamp, read_header
from fairlead_api.identifiers import LeaderEpoch, Offset
from fairlead_api.problems import ProblemError
from fairlead_broker.links.producer_ranges import first_producer_id
from fairlead_broker.links.switching import CopiedTo
from fairlead_broker.registry.records import MirrorState
from fairlead_broker.replication.divergence import EpochStart

PARTITIONS: Final = 2
FIRST_TIME_US: Final = 1_700_000_000_000_000


@dataclass(frozen=True, slots=True)
class Stored:
    """One stored batch with one record."""

    offset: int
    epoch: int
    value: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class Era:
    """A promotion in the topic record."""

    epoch: int
    cluster: str


@dataclass
class Partition:
    """A partition as its leader knows it."""

    log: list[Stored] = field(default_factory=list)
    log_start: int = 0
    end: int = 0
    high_watermark: int = 0
    """Offset below which the follower has every record."""
    epoch: int = 1
    committed: int = 0
    """Offset that the group of this cluster has committed."""
    fault: str | None = None
    trimmed: EpochStart | None = None
    """Leader epoch of the last deleted record, which a log keeps with its start offset."""
    skipped: set[int] = field(default_factory=set)
    skipped_epochs: list[EpochStart] = field(default_factory=list)
    """Leader epochs of skipped records."""

    def append(self, entry: Stored) -> None:
        """Append a batch at its offset."""
        self.log.append(entry)
        self.end = entry.offset + 1

    def cut(self, offset: int) -> list[Stored]:
        """Cut the log at an offset; return the removed batches."""
        removed = [each for each in self.log if each.offset >= offset]
        if self.trimmed is not None and self.trimmed.start_offset >= offset:
            self.trimmed = None
        self.skipped_epochs = [each for each in self.skipped_epochs if each.start_offset < offset]
        self.log = [each for each in self.log if each.offset < offset]
        self.end = min(self.end, max(offset, self.log_start))
        self.high_watermark = min(self.high_watermark, self.end)
        return removed

    def delete_to(self, offset: int) -> list[Stored]:
        """Move the log start; return the removed batches."""
        removed = [each for each in self.log if each.offset < offset]
        below = [each for each in self.epochs() if each.start_offset < offset]
        self.trimmed = below[-1] if below else None
        self.skipped_epochs = [each for each in self.skipped_epochs if each.start_offset >= offset]
        self.log = [each for each in self.log if each.offset >= offset]
        self.log_start = max(self.log_start, offset)
        return removed

    def epochs(self) -> list[EpochStart]:
        """Return the leader epochs of the log with their start offsets."""
        starts = [] if self.trimmed is None else [self.trimmed]
        of_log = [EpochStart(LeaderEpoch(each.epoch), Offset(each.offset)) for each in self.log]
        for each in sorted([*of_log, *self.skipped_epochs], key=lambda start: start.start_offset):
            if not starts or starts[-1].epoch < each.epoch:
                starts.append(each)
        return starts

    def missing(self) -> set[int]:
        """Return the offsets below the end without a record."""
        return set(range(self.end)) - {each.offset for each in self.log}

    def reached(self) -> CopiedTo:
        """Return the end of the committed records."""
        begun = [each.epoch for each in self.epochs() if each.start_offset < self.high_watermark]
        return CopiedTo(Offset(self.high_watermark), begun[-1] if begun else None)

    def last_epoch(self) -> LeaderEpoch | None:
        """Return the leader epoch of the last record, even of a deleted one."""
        begun = [each.epoch for each in self.epochs() if each.start_offset < self.end]
        return begun[-1] if begun else None

    def skip(self, offset: int, deleted: EpochStart | None) -> None:
        """Continue at an offset, before which the source has deleted records of an epoch."""
        if not self.log:
            self.restart(offset)
            self.trimmed = deleted
            return
        last_epoch = self.last_epoch()
        if deleted is not None and (last_epoch is None or deleted.epoch > last_epoch):
            start = Offset(max(deleted.start_offset, self.end))
            self.skipped_epochs.append(EpochStart(deleted.epoch, start))
        self.end = self.high_watermark = offset

    def restart(self, offset: int) -> None:
        """Drop every record and epoch, and continue at an offset."""
        self.log, self.trimmed, self.skipped_epochs = [], None, []
        self.log_start = self.end = self.high_watermark = offset


class Cluster:
    """The topic in one cluster. The topic record survives everything, and the knowledge of the controller nothing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.partitions = [Partition() for _ in range(PARTITIONS)]
        self.mirror: MirrorState | None = None
        self.handed_over = False
        self.eras: tuple[Era, ...] = ()
        self.era: int | None = None
        """First leader epoch of the era that the current promotion begins."""
        self.tail: set[bytes] = set()
        self.is_planned = False
        self.ends: dict[int, CopiedTo] | None = None
        self.groups_copied = False
        self.is_taken_back = False
        """Whether an operator still has to reopen the source."""
        self.producers = 0
        self.told_ends: dict[int, int] = {}
        """Ends of the partitions that this cluster told when it handed the topic over."""

    @property
    def is_copying(self) -> bool:
        """Whether the leaders fetch from the source."""
        return self.mirror in (MirrorState.MIRRORING, MirrorState.HANDING_OVER)

    @property
    def accepts(self) -> bool:
        """Whether the topic record lets leaders accept records."""
        return self.mirror is None and not self.handed_over

    def forget(self) -> None:
        """Lose everything that the controller has learned."""
        self.ends, self.groups_copied = None, False

    def new_producer_id(self) -> int:
        """Return the next producer id of this cluster's range."""
        self.producers += 1
        return first_producer_id(self.name) + self.producers


def stored(offset: int, epoch: int, value: bytes) -> Stored:
    """Return a batch as a leader stamps it."""
    plain = encode(record_batch([value], timestamps_us=[FIRST_TIME_US], default_timestamp_us=0)).to_bytes()
    stamp = make_stamp(read_header(plain), offset, epoch, FIRST_TIME_US, 0)
    return Stored(offset, epoch, value, bytes(stamp) + plain[STAMP_BYTES:])


def unpacked(data: bytes) -> list[Stored]:
    """Return the batches in the bytes of an answer."""
    view = memoryview(data)
    found = []
    for at, header in iterate_headers(view):
        batch = view[at : at + header.total_bytes]
        try:
            (record,) = decode_records(batch)
        except ProblemError:
            # Only a world without the checks of received batches stores a damaged batch.
            value = b"damaged"
        else:
            value = record.value or b""
        found.append(Stored(header.base_offset, header.leader_epoch, value, bytes(batch)))
    return found
