"""An in-memory disk for the log's `Storage` that keeps synced data and may lose all other data.

Every file and folder stores its durable state and every change since. `cut` simulates a loss of power: it keeps any
subset of the changes since the last sync that a file system may keep, and returns the disk as the next start finds it.

Losses that a file system may cause and that a log has to survive:

  - pages of one file are stored in any order and any subset; a page may be torn at a sector, and hold any state
    between the last sync and the cut
  - the size of a file lags behind its pages or runs ahead of them; pages that were not stored read as zeros
  - names created, renamed and removed in a folder are lost one by one, or all changes after some point are,
    whether or not the files themselves were synced; a renamed file may have both names
  - the cut may happen in the middle of any operation

Losses that neither a file system nor this disk causes: bytes that were never written to this file, the loss of synced
data, a renamed file without either of its names, a renamed folder with both.

Each of three switches breaks one promise of the disk. A run with a switch must fail; otherwise the runs without a
switch would prove nothing.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fairlead_broker.log.segments.storage import Buffer, Release

PAGE_BYTES: Final = 4096
SECTOR_BYTES: Final = 512


class PowerCut(BaseException):
    """A power cut in the middle of an operation.

    No handler of the log may treat a power cut as an error of the disk.
    """


@dataclass(frozen=True, slots=True)
class Promises:
    """Promises of the disk, each with a switch that breaks it."""

    file_sync: bool = True
    """A synced file of batches is durable."""
    folder_sync: bool = True
    """The names in a synced folder are durable."""
    rename_order: bool = True
    """A file that was synced before its rename is durable before its new name."""


@dataclass(slots=True)
class Losses:
    """Counts of the losses that cuts caused, without attempts that had no effect."""

    cuts: int = 0
    files_changed: int = 0
    bytes_lost: int = 0
    pages_torn: int = 0
    names_lost: int = 0
    renames_undone: int = 0
    renames_half_done: int = 0


class DiskFile:
    """The bytes of a file: the bytes that reads return, the durable bytes, and the changes in between."""

    __slots__ = ("changes", "content", "durable")

    def __init__(self, durable: bytes = b"") -> None:
        self.durable = durable
        self.content = bytearray(durable)
        self.changes: list[tuple[int, bytes | None]] = []
        """Changes since the last sync: (position, bytes) for a write, (size, None) for a truncation."""

    def write(self, position: int, data: bytes) -> None:
        """Change bytes, which are not durable until the next sync."""
        self.changes.append((position, data))
        _apply(self.content, position, data)

    def truncate(self, size: int) -> None:
        """Change the size, which is not durable until the next sync."""
        if size != len(self.content):
            self.changes.append((size, None))
            _apply(self.content, size, None)

    def sync(self) -> None:
        """Make everything durable."""
        if self.changes:
            self.durable = bytes(self.content)
            self.changes.clear()

    def after_cut(self, rng: random.Random, losses: Losses) -> DiskFile:
        """Return the file as the next start finds it."""
        if not self.changes:
            return DiskFile(self.durable)
        kept = self._mix(rng, losses) if rng.random() < 0.7 else self._whole(rng)
        if kept != self.content:
            losses.files_changed += 1
            losses.bytes_lost += sum(
                len(data)
                for at, data in self.changes
                if data is not None and kept[at : at + len(data)] != data
            )
        return DiskFile(kept)

    def _whole(self, rng: random.Random) -> bytes:
        """Return the file in one state between the sync and the cut."""
        return bytes(self._state(rng.choice((0, len(self.changes), rng.randint(0, len(self.changes))))))

    def _mix(self, rng: random.Random, losses: Losses) -> bytes:
        """Return pages of several states, with a size that no single state has."""
        count = len(self.changes)
        moments = (0, count, rng.randint(0, count))
        states = {moment: self._state(moment) for moment in moments}
        at = rng.randint(0, count)
        size = self._size(rng, at)
        mixed = bytearray(states[0][:size]) + bytearray(max(0, size - len(states[0])))
        first = min(position for position, _ in self.changes)
        for page in range(first // PAGE_BYTES * PAGE_BYTES, size, PAGE_BYTES):
            torn = rng.random() < 0.3
            losses.pages_torn += torn
            moment = rng.choice(moments)
            for sector in range(page, min(page + PAGE_BYTES, size), SECTOR_BYTES):
                stop = min(sector + SECTOR_BYTES, size)
                chosen = max(rng.choice(moments) if torn else moment, self._oldest(at, stop))
                if chosen not in states:
                    states[chosen] = self._state(chosen)
                part = states[chosen][sector:stop]
                mixed[sector:stop] = part + bytes(stop - sector - len(part))
        return bytes(mixed)

    def _size(self, rng: random.Random, at: int) -> int:
        """Return the size that the stored metadata has: the size of a state, or a size between two states."""
        size = len(self._state(at))
        before = len(self._state(at - 1)) if at else size
        return rng.randint(before, size) if before < size and rng.random() < 0.3 else size

    def _oldest(self, at: int, stop: int) -> int:
        """Return the oldest state that these bytes may show: a truncation freed the blocks of all earlier states."""
        for number in range(at, 0, -1):
            size, data = self.changes[number - 1]
            if data is None and size < stop:
                return number
        return 0

    def _state(self, count: int) -> bytearray:
        state = bytearray(self.durable)
        for position, data in self.changes[:count]:
            _apply(state, position, data)
        return state


def _apply(content: bytearray, position: int, data: bytes | None) -> None:
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    if data is None:
        del content[position:]
    else:
        content[position : position + len(data)] = data


@dataclass(frozen=True, slots=True)
class NameChange:
    """A change after which a name points to another file or folder, or to nothing."""

    name: str
    node: DiskFile | DiskFolder | None
    renamed_from: str | None = None


class DiskFolder:
    """The names in a folder: the names that listings show, the durable names, and the changes in between."""

    __slots__ = ("changes", "durable", "names")

    def __init__(self) -> None:
        self.names: dict[str, DiskFile | DiskFolder] = {}
        self.durable: dict[str, DiskFile | DiskFolder] = {}
        self.changes: list[NameChange] = []

    def change(self, *changes: NameChange) -> None:
        """Change names, which are not durable until the next sync. The new name of a rename is applied first."""
        for change in changes:
            self.changes.append(change)
            _point(self.names, change)

    def sync(self) -> None:
        """Make every name durable."""
        self.durable = dict(self.names)
        self.changes.clear()

    def after_cut(self, rng: random.Random, losses: Losses, seen: dict[int, DiskFile]) -> DiskFolder:
        """Return the folder and everything below as the next start finds them."""
        names = dict(self.durable)
        for number in sorted(self._kept(rng)):
            _point(names, self.changes[number])
        self._count(names, losses)
        found = DiskFolder()
        for name, node in names.items():
            if isinstance(node, DiskFolder):
                found.names[name] = node.after_cut(rng, losses, seen)
            else:
                if id(node) not in seen:
                    seen[id(node)] = node.after_cut(rng, losses)
                found.names[name] = seen[id(node)]
        found.durable = dict(found.names)
        return found

    def _kept(self, rng: random.Random) -> set[int]:
        """Choose the stored changes: all up to a point, as with a journal, or up to a point for each name."""
        if rng.random() < 0.4:
            kept = set(range(rng.randint(0, len(self.changes))))
        else:
            kept = set()
            for name in dict.fromkeys(change.name for change in self.changes):
                numbers = [number for number, change in enumerate(self.changes) if change.name == name]
                kept.update(numbers[: rng.randint(0, len(numbers))])
        # A renamed file or folder has at least one of its names: when the old name is missing, the new name exists.
        for number, change in enumerate(self.changes):
            if change.renamed_from is None or change.node is None:
                continue
            whole = isinstance(change.node, DiskFolder)
            if number + 1 in kept or (whole and number in kept):
                kept |= {other for other in range(number + 1) if self.changes[other].name == change.name}
                if whole:
                    kept |= {o for o in range(number + 2) if self.changes[o].name == change.renamed_from}
        return kept

    def _count(self, kept: dict[str, DiskFile | DiskFolder], losses: Losses) -> None:
        losses.names_lost += sum(name not in kept for name in self.names)
        for change in self.changes:
            if change.renamed_from is not None and self.names.get(change.name) is change.node:
                losses.renames_undone += kept.get(change.name) is not change.node
                losses.renames_half_done += (
                    kept.get(change.renamed_from) is change.node is kept.get(change.name)
                )


def _point(names: dict[str, DiskFile | DiskFolder], change: NameChange) -> None:
    if change.node is None:
        names.pop(change.name, None)
    else:
        names[change.name] = change.node


@dataclass(slots=True)
class LyingDisk:
    """The `Storage` of one machine. `cut` returns the disk after the cut, which replaces this object."""

    promises: Promises = field(default_factory=Promises)
    losses: Losses = field(default_factory=Losses)
    root: DiskFolder = field(default_factory=DiskFolder)
    operations: int = 0
    """Number of changes and syncs."""
    cut_at: int | None = None
    """Number of the operation in which the power is cut; None for never."""

    # ------------------------------------------------------------------------------------------ the power

    def cut(self, rng: random.Random) -> LyingDisk:
        """Return the disk as the next start finds it after the cut."""
        self.losses.cuts += 1
        root = self.root.after_cut(rng, self.losses, {})
        return LyingDisk(self.promises, self.losses, root)

    def restart(self) -> LyingDisk:
        """Return the disk as a new process finds it: nothing is lost, and nothing more is durable."""
        return LyingDisk(self.promises, self.losses, self.root)

    def begin(self) -> bool:
        """Count an operation; return whether the power is cut during the operation. Raise `PowerCut` after the cut."""
        self.operations += 1
        if self.cut_at is None or self.operations < self.cut_at:
            return False
        if self.operations > self.cut_at:
            raise PowerCut
        return True

    # ------------------------------------------------------------------------------------------ Storage

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> LyingFile:
        """Open a file; `create` creates a missing file."""
        folder = self._folder(path.parent)
        node = folder.names.get(path.name)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            node = DiskFile()
            self._change(folder, NameChange(path.name, node))
        if isinstance(node, DiskFolder):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return LyingFile(self, node, path)

    def exists(self, path: Path) -> bool:
        """Return whether a name exists."""
        node: DiskFile | DiskFolder | None = self.root
        for part in path.parts[1:]:
            node = node.names.get(part) if isinstance(node, DiskFolder) else None
        return node is not None

    def file_size(self, path: Path) -> int:
        """Return the size of a file in bytes, by its name."""
        return self.open(path).size()

    def allocate(self, path: Path, nbytes: int) -> None:
        """Create a file; the disk never runs full."""
        self.open(path, create=True).truncate(nbytes)

    def free_bytes(self, path: Path) -> int:
        """Return a free space that is larger than any test needs."""
        del path
        return 1 << 50

    def list_files(self, folder: Path) -> list[str]:
        """Return the names of the files in a folder."""
        return [name for name, node in self._folder(folder).names.items() if isinstance(node, DiskFile)]

    def list_folders(self, folder: Path) -> list[str]:
        """Return the names of the folders in a folder."""
        return [name for name, node in self._folder(folder).names.items() if isinstance(node, DiskFolder)]

    def make_folder(self, path: Path) -> None:
        """Create a folder unless it exists."""
        folder = self._folder(path.parent)
        if path.name not in folder.names:
            self._change(folder, NameChange(path.name, DiskFolder()))

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or folder within its folder."""
        assert source.parent == target.parent, "the log renames within a folder"
        folder = self._folder(source.parent)
        node = folder.names.get(source.name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(source))
        self._change(
            folder, NameChange(target.name, node, renamed_from=source.name), NameChange(source.name, None)
        )

    def unlink(self, path: Path) -> None:
        """Delete a file if it exists."""
        folder = self._folder(path.parent)
        if path.name in folder.names:
            self._change(folder, NameChange(path.name, None))

    def remove_folder(self, path: Path) -> None:
        """Delete an empty folder."""
        if self._folder(path).names:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
        self._change(self._folder(path.parent), NameChange(path.name, None))

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable, unless the disk breaks its promise about synced folders."""
        goes = self.begin()
        if self.promises.folder_sync and not goes:
            self._folder(path).sync()
        if goes:
            raise PowerCut

    def open_volume(self, path: Path) -> LyingVolume:
        """Open the whole disk."""
        del path
        return LyingVolume(self)

    def lock(self, path: Path, holder: bytes) -> Release | None:
        """Lock a file; the lock is always granted, because no other process uses this disk."""
        file = self.open(path, create=True)
        file.truncate(0)
        file.write([holder], 0)
        return lambda: None

    # ------------------------------------------------------------------------------------------ internals

    def sync_file(self, file: DiskFile, name: str) -> None:
        """Make a file durable, unless the disk breaks its promise about synced files."""
        if not self.promises.file_sync and name.endswith((".log", ".log.cleaned")):
            return
        if not self.promises.rename_order and name.endswith(".tmp"):
            return
        file.sync()

    def sync_all(self) -> None:
        """Make everything durable, except where the disk breaks a promise."""
        pending = [self.root]
        while pending:
            folder = pending.pop()
            if self.promises.folder_sync:
                folder.sync()
            for name, node in folder.names.items():
                if isinstance(node, DiskFolder):
                    pending.append(node)
                else:
                    self.sync_file(node, name)

    def _change(self, folder: DiskFolder, *changes: NameChange) -> None:
        goes = self.begin()
        folder.change(*changes)
        if goes:
            raise PowerCut

    def _folder(self, path: Path) -> DiskFolder:
        node: DiskFile | DiskFolder | None = self.root
        for part in path.parts[1:]:
            node = node.names.get(part) if isinstance(node, DiskFolder) else None
        if not isinstance(node, DiskFolder):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return node


class LyingFile:
    """An open file."""

    __slots__ = ("_disk", "_file", "_path")

    def __init__(self, disk: LyingDisk, file: DiskFile, path: Path) -> None:
        self._disk = disk
        self._file = file
        self._path = path

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all buffers in order."""
        goes = self._disk.begin()
        self._file.write(position, b"".join(buffers))
        if goes:
            raise PowerCut

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fill the buffer up to the end of the file."""
        data = self._file.content[position : position + len(buffer)]
        buffer[: len(data)] = data
        return len(data)

    def read_into_cached(self, buffer: memoryview, position: int) -> int:
        """Read a file, whose data is always in memory."""
        return self.read_into(buffer, position)

    def size(self) -> int:
        """Return the size of the file in bytes."""
        return len(self._file.content)

    def truncate(self, size: int) -> None:
        """Set the size of the file."""
        goes = self._disk.begin()
        self._file.truncate(size)
        if goes:
            raise PowerCut

    def sync(self) -> None:
        """Make the bytes and the size of the file durable, unless the disk breaks its promise about synced files."""
        goes = self._disk.begin()
        if goes:
            raise PowerCut
        self._disk.sync_file(self._file, self._path.name)

    def keep_open(self) -> None:
        """Do nothing: an open file never depends on its name."""


class LyingVolume:
    """The whole disk, which can be synced at once."""

    __slots__ = ("_disk",)

    def __init__(self, disk: LyingDisk) -> None:
        self._disk = disk

    def sync(self) -> None:
        """Make everything durable, as far as the promises allow."""
        if self._disk.begin():
            raise PowerCut
        self._disk.sync_all()
