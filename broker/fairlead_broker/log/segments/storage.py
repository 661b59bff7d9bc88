"""The interface between the log and the disk.

Every file operation of this room goes through a `Storage`, so that tests put a faulty disk (loses unsynced
bytes, runs full, fails a sync) under the whole log without patches. `PosixStorage` is the storage of a real
disk. The module must not know batches, segments or offsets, only names, bytes and positions. Every operation
raises `OSError`, which the callers wrap.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

BUFFERS_MAX: Final = 1024
"""Maximum number of buffers of one vectored write (IOV_MAX of Linux)."""
FILE_MODE: Final = 0o640
FOLDER_MODE: Final = 0o750


class File(Protocol):
    """An open file, which is closed when its last holder releases it.

    Readers hold a reference while they read. An explicit close could close a descriptor that a reader uses,
    and the number might already belong to another file.
    """

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all buffers contiguously at a position. After an error some of the bytes may be written."""
        ...

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fill the buffer from a position and return the number of bytes read, fewer only at the end of the file."""
        ...

    def read_into_cached(self, buffer: memoryview, position: int) -> int:
        """Read bytes in memory without waiting for the disk; return 0 if memory has none or the disk cannot tell."""
        ...

    def size(self) -> int:
        """Return the number of bytes in the file."""
        ...

    def truncate(self, size: int) -> None:
        """Set the length of the file."""
        ...

    def sync(self) -> None:
        """Return once bytes and size are on the disk (fdatasync)."""
        ...


class Storage(Protocol):
    """A file system with the operations that a log needs."""

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        """Open a file; `create` makes it if it is missing and opens it for writing."""
        ...

    def exists(self, path: Path) -> bool:
        """Return whether a name exists."""
        ...

    def file_size(self, path: Path) -> int:
        """Return the number of bytes in a file by its name."""
        ...

    def list_files(self, folder: Path) -> list[str]:
        """Return the names of all entries of a folder except its folders."""
        ...

    def list_folders(self, folder: Path) -> list[str]:
        """Return the names of the folders in a folder."""
        ...

    def make_folder(self, path: Path) -> None:
        """Create a folder if it is missing."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or folder, replacing a file of the new name."""
        ...

    def unlink(self, path: Path) -> None:
        """Remove a file if it exists."""
        ...

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        ...

    def sync_folder(self, path: Path) -> None:
        """Make names created, renamed or removed in a folder durable."""
        ...

    def open_volume(self, path: Path) -> Volume:
        """Open the file system that holds a folder, to sync it as a whole."""
        ...

    def lock(self, path: Path, holder: bytes) -> File | None:
        """Lock a file until the returned lock is closed, and write its holder into it; None if it is locked."""
        ...


class Volume(Protocol):
    """A mounted file system."""

    def sync(self) -> None:
        """Return once every dirty page of the volume is on the disk. Raises failures since the volume was opened."""
        ...


class PosixFile:
    """A file of the operating system."""

    __slots__ = ("_descriptor", "_storage")

    def __init__(self, descriptor: int, storage: PosixStorage) -> None:
        self._descriptor = descriptor
        self._storage = storage

    def __del__(self) -> None:
        os.close(self._descriptor)

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write with as few system calls as the kernel allows."""
        if len(buffers) <= BUFFERS_MAX:
            nbytes = sum(map(len, buffers))
            written = os.pwritev(self._descriptor, buffers, position)
            if written == nbytes:
                return
            buffers, position = _after(buffers, written), position + written
        self._write_in_parts(buffers, position)

    def _write_in_parts(self, buffers: Sequence[Buffer], position: int) -> None:
        while buffers:
            written = os.pwritev(self._descriptor, buffers[:BUFFERS_MAX], position)
            if written == 0:
                # The kernel returns 0 only for reasons that persist; a repeated write would loop for ever.
                raise OSError(errno.EIO, "the disk took no bytes")
            buffers, position = _after(buffers, written), position + written

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fill the buffer from a position, unless the file ends before; return the number of bytes read."""
        done = 0
        while done < len(buffer):
            count = os.preadv(self._descriptor, [buffer[done:]], position + done)
            if count == 0:
                break
            done += count
        return done

    def read_into_cached(self, buffer: memoryview, position: int) -> int:
        """Read with RWF_NOWAIT; return 0 where the file system refuses the flag."""
        if not self._storage.reads_cached:
            return 0
        try:
            return os.preadv(self._descriptor, [buffer], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            self._storage.reads_cached = False
            return 0

    def size(self) -> int:
        """Return the number of bytes in the file."""
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        """Set the length of the file."""
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        """Return once bytes and size are on the disk."""
        os.fdatasync(self._descriptor)


def _after(buffers: Sequence[Buffer], nbytes: int) -> list[Buffer]:
    """Return the buffers that remain after their first bytes are written."""
    index = 0
    while index < len(buffers) and nbytes >= len(buffers[index]):
        nbytes -= len(buffers[index])
        index += 1
    rest = list(buffers[index:])
    if nbytes:
        rest[0] = memoryview(rest[0])[nbytes:]
    return rest


class PosixVolume:
    """A file system, synced by `syncfs`: one call for any number of dirty files."""

    __slots__ = ("_descriptor",)

    _library: Final = ctypes.CDLL(None, use_errno=True)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)

    def sync(self) -> None:
        """Return once every dirty file of the volume is on the disk."""
        if self._library.syncfs(self._descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


class PosixStorage:
    """The file systems of this machine. Each data directory has one object, which remembers what the disk supports."""

    __slots__ = ("reads_cached",)

    def __init__(self) -> None:
        # tmpfs and some other file systems refuse RWF_NOWAIT. The first refusal is remembered, and reads go
        # to the pool.
        self.reads_cached = True

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> PosixFile:
        """Open a file; `create` makes it if it is missing and opens it for writing."""
        flags = os.O_CLOEXEC | (os.O_RDWR if write or create else os.O_RDONLY) | (os.O_CREAT if create else 0)
        return PosixFile(os.open(path, flags, FILE_MODE), self)

    def exists(self, path: Path) -> bool:
        """Return whether a name exists."""
        return path.exists()

    def file_size(self, path: Path) -> int:
        """Return the number of bytes in a file by its name."""
        return path.stat().st_size

    def list_files(self, folder: Path) -> list[str]:
        """Return the names of all entries except folders."""
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)]

    def list_folders(self, folder: Path) -> list[str]:
        """Return the names of the folders in a folder."""
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]

    def make_folder(self, path: Path) -> None:
        """Create a folder if it is missing."""
        path.mkdir(mode=FOLDER_MODE, exist_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or folder, replacing a file of the new name."""
        source.rename(target)

    def unlink(self, path: Path) -> None:
        """Remove a file if it exists."""
        path.unlink(missing_ok=True)

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()

    def sync_folder(self, path: Path) -> None:
        """Sync the names in a folder."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def open_volume(self, path: Path) -> PosixVolume:
        """Open the file system of a folder."""
        return PosixVolume(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def lock(self, path: Path, holder: bytes) -> PosixFile | None:
        """Lock a file with flock, which ends with the process."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        file = PosixFile(descriptor, self)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        file.truncate(0)
        file.write([holder], 0)
        return file


def read_whole(storage: Storage, path: Path) -> bytes | None:
    """Return the bytes of a file, or None if the file is missing."""
    try:
        file = storage.open(path)
    except FileNotFoundError:
        return None
    data = bytearray(file.size())
    count = file.read_into(memoryview(data), 0)
    return bytes(data[:count])


def write_atomically(storage: Storage, path: Path, data: bytes) -> None:
    """Replace a file so that after a crash the file has either its whole old content or its whole new content.

    A temporary file is written and synced, renamed over the old one, and the folder is synced.
    """
    temporary = path.with_name(path.name + ".tmp")
    # A rename interrupted by a loss of power may have left both names on the good file, which must not
    # change.
    storage.unlink(temporary)
    file = storage.open(temporary, create=True)
    file.write([data], 0)
    file.sync()
    storage.rename(temporary, path)
    storage.sync_folder(path.parent)
