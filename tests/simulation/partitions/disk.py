"""Disks that keep synced bytes and may lose unsynced bytes in a power cut.

A log is a list of cells, one record each; `synced` is the prefix that survives everything but the loss of the disk. A
killed process keeps every cell; a power cut keeps the synced cells and some of the unsynced cells.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from fairlead_api.identifiers import LeaderEpoch, Offset
from fairlead_broker.replication.divergence import EpochEnd, EpochStart, epoch_before, epoch_end


class Cell(NamedTuple):
    """A stored batch with one record."""

    epoch: int
    """Leader epoch of the batch."""
    value: int
    """Value of the record, unique in the world."""
    producer: int = -1
    sequence: int = -1
    append_time_us: int = 0


@dataclass(slots=True)
class Log:
    """The log of one partition in one replica."""

    base: int = 0
    """Offset of the first cell."""
    cells: list[Cell] = field(default_factory=list)
    log_start: int = 0
    synced: int = 0
    epochs: list[EpochStart] = field(default_factory=list)
    high_watermark: int = 0
    """High watermark in the checkpoint."""
    doubtful: int | None = None
    """Synced offset at the time of a failed sync, after which cells may be lost at the next start."""
    torn_at: int | None = None
    """Offset of the first bad batch, which is followed by valid ones."""
    cuts: int = 0
    """Number of times cells were dropped; a sync that began earlier does not count for later cells."""

    @property
    def end(self) -> Offset:
        """The next offset."""
        return Offset(self.base + len(self.cells))

    @property
    def last_epoch(self) -> LeaderEpoch | None:
        """The epoch of the last cell, deleted or not, or None if there was no cell."""
        epochs = (start.epoch for start in reversed(self.epochs) if start.start_offset < self.end)
        return next(epochs, None)

    @property
    def highest_epoch(self) -> int:
        """The newest epoch in the list, or -1 if the list is empty."""
        return self.epochs[-1].epoch if self.epochs else -1

    def cell(self, offset: int) -> Cell:
        """Return the cell at an offset."""
        return self.cells[offset - self.base]

    def read(self, offset: int, most: int) -> list[Cell]:
        """Return at most the given number of cells from an offset on."""
        start = offset - self.base
        return self.cells[start : start + most]

    def begin_epoch(self, epoch: int) -> None:
        """Durably store the start of an epoch."""
        self.epochs.append(EpochStart(LeaderEpoch(epoch), self.end))

    def append(self, cells: list[Cell]) -> None:
        """Append cells, and begin a new epoch at its first cell."""
        for cell in cells:
            if cell.epoch > self.highest_epoch:
                self.begin_epoch(cell.epoch)
            self.cells.append(cell)

    def epoch_end(self, epoch: int) -> EpochEnd | None:
        """Return the end offset of an epoch in this log."""
        return epoch_end(self.epochs, epoch, self.end)

    def truncate(self, offset: int) -> None:
        """Durably drop all cells from an offset on."""
        if offset < self.end:
            del self.cells[max(0, offset - self.base) :]
            self.epochs = [each for each in self.epochs if each.start_offset < offset]
            self.cuts += 1
        if self.torn_at is not None and offset <= self.torn_at:
            self.torn_at = None
        self.synced = min(self.synced, self.end)
        self.high_watermark = min(self.high_watermark, self.end)

    def restart(self, offset: int, deleted: EpochStart | None = None) -> None:
        """Drop all cells and restart at an offset; `deleted` is the epoch of the deleted records before it."""
        self.cells.clear()
        self.epochs = [] if deleted is None else [deleted]
        self.base = self.log_start = self.synced = self.high_watermark = offset
        self.torn_at = None
        self.cuts += 1

    def forget_high_watermark(self, rng: Random) -> None:
        """Read the high watermark from the checkpoint, which may be some seconds old."""
        least = max(self.log_start, self.base)
        if self.high_watermark > least:
            self.high_watermark = rng.randint(least, self.high_watermark)

    def tear(self, rng: Random) -> bool:
        """Lose one unsynced batch and keep later ones, because pages are written in any order."""
        first = max(self.synced, self.log_start)
        if self.end - first < 2:
            return False
        self.torn_at = rng.randrange(first, self.end - 1)
        return True

    def lose_unsynced(self, rng: Random) -> int:
        """Keep synced cells and a part of the unsynced cells, as a power cut does; return the number of lost cells."""
        before, deleted = self.end, epoch_before(self.epochs, Offset(self.log_start))
        if self.synced < before:
            self.truncate(rng.randint(self.synced, before))
        if self.end < self.log_start:
            self.restart(
                self.log_start, deleted
            )  # the log start was durable before the cells below it were removed
        self.synced = self.end
        return before - self.end

    def copy(self) -> Log:
        """Return a copy of the log."""
        return Log(
            self.base,
            self.cells[:],
            self.log_start,
            self.synced,
            self.epochs[:],
            self.high_watermark,
            self.doubtful,
            self.torn_at,
        )


@dataclass(slots=True)
class Disk:
    """The state that a broker finds at startup."""

    directory: str
    last_broker_epoch: int = 0
    intact_since: int | None = None
    clean_marker: bool = False
    boot: int = 0
    """Boot number of the kernel that last wrote to the disk."""
    logs: dict[int, Log] = field(default_factory=dict)
    quarantined: set[int] = field(default_factory=set)

    def copy(self) -> Disk:
        """Return a copy of the disk, to be restored later."""
        return Disk(
            self.directory,
            self.last_broker_epoch,
            self.intact_since,
            self.clean_marker,
            self.boot,
            {partition: log.copy() for partition, log in self.logs.items()},
            set(self.quarantined),
        )
