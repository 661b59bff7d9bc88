"""Disks that keep what was synced and lose, when the power goes, what was not.

A log is a list of cells, one record each; `synced` is the prefix that survives anything but the loss of the disk.
A process that is killed leaves every cell behind; a power cut keeps the synced ones and some of the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from fairlead_api.identifiers import LeaderEpoch, Offset
from fairlead_broker.replication.divergence import EpochEnd, EpochStart, epoch_before, epoch_end


class Cell(NamedTuple):
    """One batch of one record."""

    epoch: int
    """Leader epoch in which it was appended."""
    value: int
    """Unique in the world."""
    producer: int = -1
    sequence: int = -1


@dataclass(slots=True)
class Log:
    """One replica's log of one partition."""

    base: int = 0
    """Offset of the first cell."""
    cells: list[Cell] = field(default_factory=list)
    log_start: int = 0
    synced: int = 0
    epochs: list[EpochStart] = field(default_factory=list)
    high_watermark: int = 0
    """As in the checkpoint."""
    doubtful: int | None = None
    """How far it was synced when a sync failed: what is behind may be gone at the next start."""
    torn_at: int | None = None
    """The first bad batch, with valid ones behind it."""
    cuts: int = 0
    """How often cells were dropped: a sync that began before says nothing about what came after."""

    @property
    def end(self) -> Offset:
        """The next offset."""
        return Offset(self.base + len(self.cells))

    @property
    def last_epoch(self) -> LeaderEpoch | None:
        """The epoch of the last cell, deleted or not; None where there was none."""
        epochs = (start.epoch for start in reversed(self.epochs) if start.start_offset < self.end)
        return next(epochs, None)

    @property
    def highest_epoch(self) -> int:
        """The newest epoch in the list, -1 for none."""
        return self.epochs[-1].epoch if self.epochs else -1

    def cell(self, offset: int) -> Cell:
        """Return the cell at an offset."""
        return self.cells[offset - self.base]

    def read(self, offset: int, most: int) -> list[Cell]:
        """Return some cells from an offset on."""
        start = offset - self.base
        return self.cells[start : start + most]

    def begin_epoch(self, epoch: int) -> None:
        """Note, durably, where an epoch begins."""
        self.epochs.append(EpochStart(LeaderEpoch(epoch), self.end))

    def append(self, cells: list[Cell]) -> None:
        """Append cells; an epoch that is new begins with its first cell."""
        for cell in cells:
            if cell.epoch > self.highest_epoch:
                self.begin_epoch(cell.epoch)
            self.cells.append(cell)

    def epoch_end(self, epoch: int) -> EpochEnd | None:
        """Return where the records of an epoch end."""
        return epoch_end(self.epochs, epoch, self.end)

    def truncate(self, offset: int) -> None:
        """Drop everything from an offset on, durably."""
        if offset < self.end:
            del self.cells[max(0, offset - self.base) :]
            self.epochs = [each for each in self.epochs if each.start_offset < offset]
            self.cuts += 1
        if self.torn_at is not None and offset <= self.torn_at:
            self.torn_at = None
        self.synced = min(self.synced, self.end)
        self.high_watermark = min(self.high_watermark, self.end)

    def restart(self, offset: int, deleted: EpochStart | None = None) -> None:
        """Drop everything and begin anew at an offset, behind records of an epoch."""
        self.cells.clear()
        self.epochs = [] if deleted is None else [deleted]
        self.base = self.log_start = self.synced = self.high_watermark = offset
        self.torn_at = None
        self.cuts += 1

    def forget_high_watermark(self, rng: Random) -> None:
        """Know what the checkpoint says: it may be some seconds old."""
        least = max(self.log_start, self.base)
        if self.high_watermark > least:
            self.high_watermark = rng.randint(least, self.high_watermark)

    def tear(self, rng: Random) -> bool:
        """Lose one unsynced batch and keep what stands behind it, as pages are written in any order."""
        first = max(self.synced, self.log_start)
        if self.end - first < 2:
            return False
        self.torn_at = rng.randrange(first, self.end - 1)
        return True

    def lose_unsynced(self, rng: Random) -> int:
        """Keep what was synced and a part of the rest, as a power cut does; return how many cells are gone."""
        before, deleted = self.end, epoch_before(self.epochs, Offset(self.log_start))
        if self.synced < before:
            self.truncate(rng.randint(self.synced, before))
        if self.end < self.log_start:
            self.restart(
                self.log_start, deleted
            )  # the log start was made durable before what is below it went
        self.synced = self.end
        return before - self.end

    def copy(self) -> Log:
        """Return the log as it is now."""
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
    """What a broker finds at a start."""

    directory: str
    last_broker_epoch: int = 0
    intact_since: int | None = None
    clean_marker: bool = False
    boot: int = 0
    """Boot of the kernel under which it was written."""
    logs: dict[int, Log] = field(default_factory=dict)
    quarantined: set[int] = field(default_factory=set)

    def copy(self) -> Disk:
        """Return the disk as it is now, for somebody to put back later."""
        return Disk(
            self.directory,
            self.last_broker_epoch,
            self.intact_since,
            self.clean_marker,
            self.boot,
            {partition: log.copy() for partition, log in self.logs.items()},
            set(self.quarantined),
        )
