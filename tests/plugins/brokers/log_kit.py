"""Helpers for tests of the log: stamped batches, a data directory that tests stop and kill, and a failing disk.

The failing disk injects faults in front of the real file system, and writes to real files.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairlead_api.batch.batches import encode, record_batch
from fairlead_api.batch.header import STAMP_BYTES, make_stamp, read_header
from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import LeaderEpoch, Offset, PartitionIndex, TimestampUs, TopicId
from fairlead_broker.log import LogDirectory, PartitionLog, StampedBatch
from fairlead_broker.log.segments.storage import Buffer, Descriptor, PosixFile, PosixStorage, PosixVolume

TOPIC = TopicId("3f1d6c1e-0b6a-4d3c-9b3e-2f4f5a6b7c8d")
OTHER_TOPIC = TopicId("77b2cf52-43ea-4f84-8bd5-2d0f0f4a7c11")
PARTITION = PartitionIndex(0)
CLUSTER = "0c2f3a52-55f2-4c53-a6c7-0c9a6f4c1d11"
DIRECTORY = "9d3c8a3e-93de-4b6e-8d3f-51f1f0a3c001"
FIRST_TIME_US = 1_700_000_000_000_000


@dataclass(slots=True)
class SteppingClock:
    """Clock that moves only when a test moves it."""

    time_us: int = FIRST_TIME_US

    def now_us(self) -> TimestampUs:
        """Return the time that the test has set."""
        return TimestampUs(self.time_us)

    def monotonic(self) -> float:
        """Return the time that the test has set, in seconds."""
        return self.time_us / 1e6


@dataclass(slots=True)
class BatchMaker:
    """Makes stamped batches like a leader."""

    leader_epoch: int = 1
    append_time_us: int = FIRST_TIME_US
    stamp_flags: int = 0
    made: dict[tuple[object, ...], bytes] = field(default_factory=dict)

    def content(self, times_us: Sequence[int], value_bytes: int) -> bytes:
        """Return an unstamped batch with one record for each time."""
        key = (*times_us, value_bytes)
        if key not in self.made:
            values = [bytes([65 + index % 26]) * value_bytes for index in range(len(times_us))]
            columns = record_batch(values, timestamps_us=list(times_us), default_timestamp_us=0)
            self.made[key] = encode(columns).to_bytes()
        return self.made[key]

    def at_times(self, base_offset: int, times_us: Sequence[int], value_bytes: int = 10) -> StampedBatch:
        """Return a batch with one record for each time."""
        data = self.content(times_us, value_bytes)
        header = read_header(data)
        stamp = make_stamp(header, base_offset, self.leader_epoch, self.append_time_us, self.stamp_flags)
        newest = self.append_time_us if self.stamp_flags else header.max_timestamp_us
        content = memoryview(data)[STAMP_BYTES:]
        last_offset = Offset(base_offset + len(times_us) - 1)
        return StampedBatch(stamp, content, Offset(base_offset), last_offset, newest, len(data))

    def __call__(self, base_offset: int, records: int = 1, value_bytes: int = 10) -> StampedBatch:
        """Return a batch with records one microsecond apart."""
        times = [FIRST_TIME_US + base_offset + index for index in range(records)]
        return self.at_times(base_offset, times, value_bytes)

    def fill(
        self, log: PartitionLog, count: int, records: int = 2, value_bytes: int = 10
    ) -> list[StampedBatch]:
        """Append batches one by one and return them."""
        batches = []
        for _ in range(count):
            batches.append(self(log.end_offset, records, value_bytes))
            log.append(batches[-1:])
        return batches


def stored(*batches: StampedBatch) -> bytes:
    """Return batches as they are stored in a file."""
    return b"".join(batch.stamp + bytes(batch.content) for batch in batches)


def read_all(log: PartitionLog, bytes_max: int = 1 << 20, offset: int | None = None) -> bytes:
    """Read a log from an offset to its end with consecutive reads."""
    at, data = log.log_start_offset if offset is None else Offset(offset), bytearray()
    while at < log.end_offset:
        part = log.read(at, bytes_max, log.end_offset)
        assert part.next_offset > at, f"a read at {at} of {log.end_offset} made no progress"
        data += part.data
        at = part.next_offset
    return bytes(data)


@dataclass(slots=True)
class LogBox:
    """A data directory with one partition, which tests stop, kill and start again."""

    path: Path
    config: TopicConfig = field(default_factory=TopicConfig)
    storage: PosixStorage | None = None
    clock: SteppingClock = field(default_factory=SteppingClock)
    directory: LogDirectory | None = None

    @property
    def folder(self) -> Path:
        """Folder of the partition."""
        return self.path / TOPIC / str(PARTITION)

    @property
    def opened(self) -> LogDirectory:
        """The open directory."""
        assert self.directory is not None
        return self.directory

    def open_directory(self) -> LogDirectory:
        """Open the directory without the partition."""
        self.directory = LogDirectory.open(
            self.path,
            cluster_id=CLUSTER,
            broker_id=1,
            clock=self.clock,
            new_directory_id=DIRECTORY,
            storage=self.storage,
        )
        return self.directory

    def open(self, config: TopicConfig | None = None) -> PartitionLog:
        """Open the directory and its partition."""
        self.config = config or self.config
        return self.open_directory().open_partition(TOPIC, PARTITION, self.config)

    def kill(self) -> None:
        """Drop everything in memory without a write, as when the process is killed."""
        if self.directory is not None:
            self.directory._unlock()
        self.directory = None

    def stop(self) -> None:
        """Stop gracefully."""
        self.opened.close(True)
        self.directory = None

    def log_files(self) -> list[Path]:
        """Return the batch files in order."""
        return sorted(self.folder.glob("*.log"))


def begin(log: PartitionLog, epoch: int = 1) -> None:
    """Begin a leader epoch."""
    log.begin_epoch(LeaderEpoch(epoch))


class FaultyFile(PosixFile):
    """A file on a `FaultyStorage`."""

    __slots__ = ()

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self._path

    @property
    def _faults(self) -> FaultyStorage:
        assert isinstance(self._storage, FaultyStorage)
        return self._storage

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write the bytes, or only some of the first bytes if the disk is full or broken."""
        data = b"".join(buffers)
        room = self._faults.take_room(self.path, len(data))
        super().write([data[:room]], position)
        if room < len(data):
            raise OSError(self._faults.write_error, os.strerror(self._faults.write_error))

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Read the bytes, or raise the error that the test has set."""
        self._faults.check_read(self.path)
        return super().read_into(buffer, position)

    def read_into_cached(self, buffer: memoryview, position: int) -> int:
        """Read the bytes, or raise the error that the test has set."""
        self._faults.check_read(self.path)
        return super().read_into_cached(buffer, position)

    def sync(self) -> None:
        """Sync the file, or raise the error that the test has set."""
        self._faults.syncs.append(self.path)
        if self._faults.sync_error:
            raise OSError(self._faults.sync_error, os.strerror(self._faults.sync_error))
        super().sync()


class FaultyVolume(PosixVolume):
    """A volume on a `FaultyStorage`."""

    __slots__ = ("_faults",)

    def __init__(self, path: Path, faults: FaultyStorage) -> None:
        super().__init__(faults, faults._open(path, os.O_RDONLY | os.O_DIRECTORY))
        self._faults = faults

    def sync(self) -> None:
        """Sync the file, or raise the error that the test has set."""
        self._faults.volume_syncs += 1
        if self._faults.sync_error:
            raise OSError(self._faults.sync_error, os.strerror(self._faults.sync_error))
        super().sync()


class FaultyStorage(PosixStorage):
    """The real file system with faults and a log of operations."""

    __slots__ = (
        "full_suffixes",
        "open_error",
        "opened",
        "read_error",
        "read_suffixes",
        "room_bytes",
        "sync_error",
        "syncs",
        "volume_syncs",
        "write_error",
    )
    file_type = FaultyFile

    def __init__(self) -> None:
        # The limit of open files is so low that the storage closes idle files and opens them again in most tests.
        super().__init__(files_max=2)
        self.room_bytes: int | None = None
        """Bytes that may still be written to files with these suffixes; None for no limit."""
        self.full_suffixes = {".log"}
        self.write_error = errno.ENOSPC
        self.sync_error = 0
        self.read_error = 0
        """Error number that every read of a file with one of these suffixes raises; 0 for none."""
        self.read_suffixes = {".log"}
        self.open_error = 0
        """Error number that every opening of a file or folder raises; 0 for none."""
        self.opened: list[Path] = []
        self.syncs: list[Path] = []
        self.volume_syncs = 0

    def take_room(self, path: Path, nbytes: int) -> int:
        """Return how many of the bytes may be written."""
        if self.room_bytes is None or path.suffix not in self.full_suffixes:
            return nbytes
        room = min(nbytes, self.room_bytes)
        self.room_bytes -= room
        return room

    def check_read(self, path: Path) -> None:
        """Raise the error that the test has set for a file with an unreadable suffix."""
        if self.read_error and path.suffix in self.read_suffixes:
            raise OSError(self.read_error, os.strerror(self.read_error))

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> PosixFile:
        """Open a file and record its name."""
        self.opened.append(path)
        return super().open(path, write=write, create=create)

    def _open(self, path: Path, flags: int) -> Descriptor:
        if self.open_error:
            raise OSError(self.open_error, os.strerror(self.open_error))
        return super()._open(path, flags)

    def open_volume(self, path: Path) -> PosixVolume:
        """Open the volume."""
        return FaultyVolume(path, self)


class TightStorage(FaultyStorage):
    """A disk that can be filled, with no space for a checkpoint until an index is deleted."""

    def fill(self) -> None:
        """Fill the disk, so that it has no free space."""
        self.full_suffixes, self.room_bytes = {"", ".tmp"}, 0

    def unlink(self, path: Path) -> None:
        """Delete a file, which frees space if it is an index."""
        existed = path.exists()
        super().unlink(path)
        if existed and path.suffix == ".index":
            self.room_bytes = None
