"""The interface between the log and the disk.

Every file operation of this room goes through a `Storage`, so that tests put a faulty disk (loses unsynced
bytes, runs full, fails a sync) under the whole log without patches. `PosixStorage` is the storage of a real
disk. The module must not know batches, segments or offsets, only names, bytes and positions. Every operation
raises `OSError`, which the callers wrap. One file because the interface and its implementation change together.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import itertools
import os
import resource
import weakref
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import ClassVar, Final, Protocol, TypeAlias

from fairlead_broker.log.errors import NO_DESCRIPTORS

Buffer: TypeAlias = bytes | bytearray | memoryview

BUFFERS_MAX: Final = 1024
"""Maximum number of buffers of one vectored write (IOV_MAX of Linux)."""
FILE_MODE: Final = 0o640
FOLDER_MODE: Final = 0o750
HOLDER_BYTES: Final = 16
"""Size of the name of a lock's holder, padded with spaces."""
FILES_MAX: Final = 65_536
"""Maximum number of log files kept open, however many descriptors the process may have."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY
_USED: Final = attrgetter("used")


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

    def allocate(self, path: Path, nbytes: int) -> None:
        """Create a file with space for its bytes on the disk."""
        ...

    def free_bytes(self, path: Path) -> int:
        """Return the number of bytes that may still be written to the file system of a path."""
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


class _Descriptor:
    """A descriptor of the operating system, closed when its last user drops it."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class PosixFile:
    """A file of the operating system, whose descriptor is closed while the file is idle and descriptors are scarce.

    Only a file without unsynced bytes is closed, because the kernel reports a failed write-back to the
    descriptors that are open at that time.
    """

    __slots__ = (
        "__weakref__",
        "_descriptor",
        "_identity",
        "_path",
        "_storage",
        "_synced",
        "_written",
        "used",
    )

    def __init__(self, storage: PosixStorage, path: Path, descriptor: _Descriptor, *, write: bool) -> None:
        self._storage = storage
        self._path = path
        self._descriptor: _Descriptor | None = descriptor
        self._identity = _identity(descriptor) if write else None
        # Numbers of the last write and of the last sync, from the one counter of the storage.
        self._written = self._synced = 0
        self.used = True
        """Whether the file was used since the last search for idle files."""

    @property
    def is_clean(self) -> bool:
        """Whether every byte that was written is on the disk."""
        return self._written <= max(self._synced, self._storage.volume_synced)

    def close_descriptor(self) -> None:
        """Close the descriptor as soon as no running operation uses it; the next operation opens the file again."""
        self._descriptor = None

    def _use(self) -> _Descriptor:
        self.used = True
        descriptor = self._descriptor
        if descriptor is None:
            descriptor = self._storage.open_again(self, self._path, write=self._identity is not None)
            if self._identity not in (None, _identity(descriptor)):
                raise OSError(errno.ESTALE, f"{self._path} was replaced while it was closed")
            self._descriptor = descriptor
        return descriptor

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write with as few system calls as the kernel allows."""
        # A number before the write keeps the file open, a number after it outlasts a sync that ran beside it.
        self._written = next(self._storage.counter)
        try:
            descriptor = self._use()
            if len(buffers) <= BUFFERS_MAX:
                nbytes = sum(map(len, buffers))
                written = os.pwritev(descriptor.number, buffers, position)
                if written == nbytes:
                    return
                buffers, position = _after(buffers, written), position + written
            self._write_in_parts(descriptor, buffers, position)
        finally:
            self._written = next(self._storage.counter)

    def _write_in_parts(self, descriptor: _Descriptor, buffers: Sequence[Buffer], position: int) -> None:
        while buffers:
            written = os.pwritev(descriptor.number, buffers[:BUFFERS_MAX], position)
            if written == 0:
                # The kernel returns 0 only for reasons that persist; a repeated write would loop for ever.
                raise OSError(errno.EIO, "the disk took no bytes")
            buffers, position = _after(buffers, written), position + written

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fill the buffer from a position, unless the file ends before; return the number of bytes read."""
        done, descriptor = 0, self._use()
        while done < len(buffer):
            count = os.preadv(descriptor.number, [buffer[done:]], position + done)
            if count == 0:
                break
            done += count
        return done

    def read_into_cached(self, buffer: memoryview, position: int) -> int:
        """Read with RWF_NOWAIT; return 0 where the file system refuses the flag."""
        descriptor = self._descriptor
        if descriptor is None or not self._storage.reads_cached:
            return 0
        self.used = True
        try:
            return os.preadv(descriptor.number, [buffer], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            self._storage.reads_cached = False
            return 0

    def size(self) -> int:
        """Return the number of bytes in the file."""
        descriptor = self._use()
        return os.fstat(descriptor.number).st_size

    def truncate(self, size: int) -> None:
        """Set the length of the file."""
        self._written = next(self._storage.counter)
        try:
            descriptor = self._use()
            os.ftruncate(descriptor.number, size)
        finally:
            self._written = next(self._storage.counter)

    def allocate(self, nbytes: int) -> None:
        """Reserve space for the first bytes of the file."""
        descriptor = self._use()
        os.posix_fallocate(descriptor.number, 0, nbytes)

    def sync(self) -> None:
        """Return once bytes and size are on the disk."""
        written = self._written
        descriptor = self._use()
        os.fdatasync(descriptor.number)
        self._synced = max(self._synced, written)


def _identity(descriptor: _Descriptor) -> tuple[int, int]:
    status = os.fstat(descriptor.number)
    return status.st_dev, status.st_ino


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

    __slots__ = ("_descriptor", "_storage")

    _library: Final = ctypes.CDLL(None, use_errno=True)

    def __init__(self, storage: PosixStorage, descriptor: _Descriptor) -> None:
        self._storage = storage
        self._descriptor = descriptor

    def sync(self) -> None:
        """Return once every dirty file of the volume is on the disk."""
        begun = next(self._storage.counter)
        if self._library.syncfs(self._descriptor.number) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._storage.volume_synced = max(self._storage.volume_synced, begun)


class PosixStorage:
    """The file systems of this machine. Each data directory has one object, which remembers what the disk supports.

    The storage keeps the descriptors of at most `files_max` files open. Beyond that number it closes the
    descriptors of clean files, the idle ones first, as PostgreSQL does with its virtual file descriptors
    (`fd.c`). Unsynced files may exceed the number.
    """

    file_type: ClassVar[type[PosixFile]] = PosixFile
    """Class of the files, which a storage with other files replaces."""

    __slots__ = (
        "_open_files",
        "_spare",
        "_spare_lock",
        "counter",
        "files_max",
        "reads_cached",
        "volume_synced",
    )

    def __init__(self, files_max: int | None = None) -> None:
        """`files_max`: maximum number of open descriptors, by default a share of the limit of the process."""
        # tmpfs and some other file systems refuse RWF_NOWAIT. The first refusal is remembered, and reads go
        # to the pool.
        self.reads_cached = True
        self.files_max = files_max or log_files_from_descriptor_limit()
        self.counter = itertools.count(1)
        """Numbers of writes and volume syncs, in their order."""
        self.volume_synced = 0
        """Number of the last successful sync of the volume: earlier writes to any file are on the disk."""
        self._open_files: dict[int, weakref.ref[PosixFile]] = {}
        # A descriptor that is given up when none is left, so that a folder can always be synced: a sync that
        # fails for want of a descriptor would end the writes of the whole directory.
        self._spare: _Descriptor | None = _Descriptor(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        self._spare_lock = Lock()

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> PosixFile:
        """Open a file; `create` makes it if it is missing and opens it for writing."""
        flags = (os.O_RDWR if write or create else os.O_RDONLY) | (os.O_CREAT if create else 0)
        file = self.file_type(self, path, self._open(path, flags), write=write or create)
        self._keep(file)
        return file

    def open_again(self, file: PosixFile, path: Path, *, write: bool) -> _Descriptor:
        """Open the descriptor of a file that was closed while it was idle. Raises `OSError`."""
        descriptor = self._open(path, os.O_RDWR if write else os.O_RDONLY)
        self._keep(file)
        return descriptor

    def _keep(self, file: PosixFile) -> None:
        key = id(file)
        self._open_files[key] = weakref.ref(file, lambda _: self._open_files.pop(key, None))
        if len(self._open_files) > self.files_max:
            self._close_idle(kept=file)

    def _open(self, path: Path, flags: int) -> _Descriptor:
        try:
            return _Descriptor(os.open(path, flags | os.O_CLOEXEC, FILE_MODE))
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS or not self._close_idle():
                raise
        return _Descriptor(os.open(path, flags | os.O_CLOEXEC, FILE_MODE))

    def _close_idle(self, kept: PosixFile | None = None) -> bool:
        """Close descriptors down to seven eighths of the number, idle files first; return whether any was closed.

        A file is idle unless it was used since the last call.
        """
        files = [file for ref in list(self._open_files.values()) if (file := ref()) is not None]
        clean = [file for file in files if file is not kept and file.is_clean]
        clean.sort(key=_USED)
        closed = clean[: max(1, len(files) - self.files_max + self.files_max // 8)]
        for file in files:
            file.used = False
        for file in closed:
            self._open_files.pop(id(file), None)
            file.close_descriptor()
        return bool(closed)

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
        """Sync the names in a folder, with the spare descriptor if no other is left."""
        try:
            folder = self._open(path, _FOLDER)
            os.fsync(folder.number)
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS:
                raise
            with self._spare_lock:
                self._spare = None
                try:
                    folder = _Descriptor(os.open(path, _FOLDER | os.O_CLOEXEC))
                    os.fsync(folder.number)
                    del folder
                finally:
                    with suppress(OSError):
                        self._spare = _Descriptor(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def allocate(self, path: Path, nbytes: int) -> None:
        """Create a file with space for its bytes on the disk."""
        file = self.open(path, create=True)
        file.allocate(nbytes)

    def free_bytes(self, path: Path) -> int:
        """Return the number of bytes that an unprivileged process may still write."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def open_volume(self, path: Path) -> PosixVolume:
        """Open the file system of a folder."""
        return PosixVolume(self, self._open(path, _FOLDER))

    def lock(self, path: Path, holder: bytes) -> PosixFile | None:
        """Lock a file with flock, which ends with the process."""
        # The file is not among those whose descriptors are closed: the lock would end with the descriptor.
        descriptor = self._open(path, os.O_RDWR | os.O_CREAT)
        file = PosixFile(self, path, descriptor, write=True)
        try:
            fcntl.flock(descriptor.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        # The bytes of an earlier holder are overwritten: a full disk has no other block.
        file.write([holder.ljust(HOLDER_BYTES)], 0)
        return file


def log_files_from_descriptor_limit() -> int:
    """Return the number of log files to keep open: most of the quarter of the descriptor limit beside connections.

    The rest of the quarter, at least 32, is for folders, sockets to other brokers and etcd.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return FILES_MAX
    return max(16, min(FILES_MAX, soft // 4 - max(32, soft // 32)))


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
