"""The interface between the log and the disk.

Every file operation of this package goes through a `Storage`, so that tests can run the whole log on a faulty disk
(which loses unsynced bytes, becomes full or fails a sync) without patches. `PosixStorage` is the storage of a real
disk. The module handles names, bytes and positions, and must not know about batches, segments or offsets. Every
operation may raise `OSError`, which the callers wrap. This code is in one file because the interface and its
implementation change together.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import itertools
import os
import resource
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import ClassVar, Final, Protocol, TypeAlias

from fairlead_broker.log.errors import NO_DESCRIPTORS
from fairlead_broker.log.segments.removed_files import PART_BYTES, REMOVED_FILES

Buffer: TypeAlias = bytes | bytearray | memoryview
Release: TypeAlias = Callable[[], None]
"""Function that releases a lock; further calls have no effect."""

BUFFERS_MAX: Final = 1024
"""Maximum number of buffers in one vectored write (IOV_MAX of Linux)."""
FILE_MODE: Final = 0o640
FOLDER_MODE: Final = 0o750
HOLDER_BYTES: Final = 16
"""Size in bytes of the holder's name in a lock file, padded with spaces."""
FILES_MAX: Final = 65_536
"""Maximum number of log files kept open, even if the process could open more."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY
_USED: Final = attrgetter("used")


class File(Protocol):
    """An open file, which is closed when its last holder releases it.

    Readers hold a reference while they read. An explicit close could close a descriptor that a reader uses,
    and the number might already belong to another file.
    """

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all buffers contiguously at a position. After an error, some of the bytes may have been written."""
        ...

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fill the buffer from a position and return the number of bytes read, fewer only at the file's end."""
        ...

    def read_into_cached(self, buffer: memoryview, position: int) -> int:
        """Read bytes in memory without waiting for the disk. Returns 0 if no byte is known to be in memory."""
        ...

    def size(self) -> int:
        """Return the number of bytes in the file."""
        ...

    def truncate(self, size: int) -> None:
        """Set the size of the file in bytes."""
        ...

    def sync(self) -> None:
        """Return once bytes and size are on the disk (fdatasync)."""
        ...

    def keep_open(self) -> None:
        """Keep the file open while it is held, because another file is about to get its name."""
        ...


class Storage(Protocol):
    """A file system with the operations that a log needs."""

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        """Open a file. `create` opens the file for writing, and creates it if it is missing."""
        ...

    def exists(self, path: Path) -> bool:
        """Return whether a file or folder exists at a path."""
        ...

    def file_size(self, path: Path) -> int:
        """Return the size in bytes of the file at a path."""
        ...

    def list_files(self, folder: Path) -> list[str]:
        """Return the names of the files in a folder."""
        ...

    def list_folders(self, folder: Path) -> list[str]:
        """Return the names of the folders in a folder."""
        ...

    def make_folder(self, path: Path) -> None:
        """Create a folder if it is missing."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or folder, replacing an existing file with the new name."""
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
        """Create a file and allocate disk space for its bytes."""
        ...

    def free_bytes(self, path: Path) -> int:
        """Return the number of free bytes in the file system that contains a path."""
        ...

    def open_volume(self, path: Path) -> Volume:
        """Open the file system that contains a folder, to sync it as a whole."""
        ...

    def lock(self, path: Path, holder: bytes) -> Release | None:
        """Lock a file, and write the holder's name into it.

        Returns the function that releases the lock, or None if another process has locked the file.
        """
        ...


class Volume(Protocol):
    """A mounted file system."""

    def sync(self) -> None:
        """Return once every dirty page of the volume is on the disk.

        Raises write errors that occurred since the volume was opened.
        """
        ...


class Descriptor:
    """A descriptor of the operating system, which is closed when its last user releases it.

    The space of a removed file is freed in parts.
    """

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        REMOVED_FILES.close(self.number)


class PosixFile:
    """A file of the operating system, whose descriptor is closed while the file is idle and descriptors are scarce.

    Only a file without unsynced bytes is closed, because the kernel reports a failed write-back only to
    descriptors that are open at that time.
    """

    __slots__ = (
        "__weakref__",
        "_descriptor",
        "_identity",
        "_kept",
        "_path",
        "_storage",
        "_synced",
        "_written",
        "used",
    )

    def __init__(self, storage: PosixStorage, path: Path, descriptor: Descriptor, *, write: bool) -> None:
        self._storage = storage
        self._path = path
        self._descriptor: Descriptor | None = descriptor
        self._identity = _identity(descriptor) if write else None
        # Numbers of the last write and of the last sync, both from the counter of the storage.
        self._written = self._synced = 0
        self._kept = False
        self.used = True
        """Whether the file was used since the last search for idle files."""

    @property
    def may_close(self) -> bool:
        """Whether the descriptor may be closed: every byte is on the disk, and the path still names this file."""
        return not self._kept and self._written <= max(self._synced, self._storage.volume_synced)

    def keep_open(self) -> None:
        """Keep the descriptor open while the file is held."""
        self._kept = True
        self._use()

    def close_descriptor(self) -> None:
        """Close the descriptor once no running operation uses it. The next operation on the file opens it again."""
        self._descriptor = None

    def _use(self) -> Descriptor:
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
        # A write number taken before the write marks the file as unsynced, which keeps it open during the write. The
        # number taken after the write is higher than that of any concurrent sync, so the file still counts as unsynced.
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

    def _write_in_parts(self, descriptor: Descriptor, buffers: Sequence[Buffer], position: int) -> None:
        while buffers:
            written = os.pwritev(descriptor.number, buffers[:BUFFERS_MAX], position)
            if written == 0:
                # The kernel returns 0 only for permanent reasons, so a loop that repeats the write would never end.
                raise OSError(errno.EIO, "the disk accepted no bytes")
            buffers, position = _after(buffers, written), position + written

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fill the buffer from a position, up to the end of the file, and return the number of bytes read."""
        done, descriptor = 0, self._use()
        while done < len(buffer):
            count = os.preadv(descriptor.number, [buffer[done:]], position + done)
            if count == 0:
                break
            done += count
        return done

    def read_into_cached(self, buffer: memoryview, position: int) -> int:
        """Read with RWF_NOWAIT. Returns 0 if the file system does not support the flag."""
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
        """Set the size of the file in bytes. A closed file that already has the requested size needs no descriptor.

        The log calls `truncate` to undo a write that failed for lack of a descriptor.
        """
        if self._descriptor is None and self._has_size(size):
            return
        self._written = next(self._storage.counter)
        try:
            descriptor = self._use()
            os.ftruncate(descriptor.number, size)
        finally:
            self._written = next(self._storage.counter)

    def _has_size(self, size: int) -> bool:
        status = self._path.stat()
        return status.st_size == size and (status.st_dev, status.st_ino) == self._identity

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


def _identity(descriptor: Descriptor) -> tuple[int, int]:
    status = os.fstat(descriptor.number)
    return status.st_dev, status.st_ino


def _after(buffers: Sequence[Buffer], nbytes: int) -> list[Buffer]:
    """Return the buffers that remain after the first `nbytes` bytes have been written."""
    index = 0
    while index < len(buffers) and nbytes >= len(buffers[index]):
        nbytes -= len(buffers[index])
        index += 1
    rest = list(buffers[index:])
    if nbytes:
        rest[0] = memoryview(rest[0])[nbytes:]
    return rest


class PosixVolume:
    """A file system that is synced by `syncfs`, with one call for any number of dirty files."""

    __slots__ = ("_descriptor", "_storage")

    _library: Final = ctypes.CDLL(None, use_errno=True)

    def __init__(self, storage: PosixStorage, descriptor: Descriptor) -> None:
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
    """The file systems of this machine.

    Each data directory has its own object, which remembers the features that the disk supports. The storage keeps
    the descriptors of at most `files_max` files open. Beyond this limit, the storage closes the descriptors of
    clean files, idle files first, like PostgreSQL's virtual file descriptors (`fd.c`). Unsynced files stay open
    even beyond the limit.
    """

    file_type: ClassVar[type[PosixFile]] = PosixFile
    """Class of the files, which a subclass of the storage may replace."""

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
        """`files_max`: maximum number of open log files, by default a share of the process's descriptor limit."""
        # tmpfs and some other file systems refuse RWF_NOWAIT. After the first refusal of RWF_NOWAIT, all reads use the
        # disk pool.
        self.reads_cached = True
        self.files_max = files_max or log_files_from_descriptor_limit()
        self.counter = itertools.count(1)
        """Source of ascending numbers for writes and syncs."""
        self.volume_synced = 0
        """Number of the last successful sync of the volume: earlier writes to any file are on the disk."""
        self._open_files: dict[int, weakref.ref[PosixFile]] = {}
        # A spare descriptor, which is released when no other descriptor is left, so that a folder can always be synced:
        # if a sync failed for lack of a descriptor, all writes to the directory would stop.
        self._spare: Descriptor | None = Descriptor(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        self._spare_lock = Lock()
        REMOVED_FILES.start()

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> PosixFile:
        """Open a file. `create` opens the file for writing, and creates it if it is missing."""
        flags = (os.O_RDWR if write or create else os.O_RDONLY) | (os.O_CREAT if create else 0)
        file = self.file_type(self, path, self._open(path, flags), write=write or create)
        self._keep(file)
        return file

    def open_again(self, file: PosixFile, path: Path, *, write: bool) -> Descriptor:
        """Open the descriptor of a file that was closed while it was idle. Raises `OSError`."""
        descriptor = self._open(path, os.O_RDWR if write else os.O_RDONLY)
        self._keep(file)
        return descriptor

    def _keep(self, file: PosixFile) -> None:
        key = id(file)
        self._open_files[key] = weakref.ref(file, lambda _: self._open_files.pop(key, None))
        if len(self._open_files) > self.files_max:
            self._close_idle(kept=file)

    def _open(self, path: Path, flags: int) -> Descriptor:
        try:
            return Descriptor(os.open(path, flags | os.O_CLOEXEC, FILE_MODE))
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS or not self._close_idle():
                raise
        return Descriptor(os.open(path, flags | os.O_CLOEXEC, FILE_MODE))

    def _close_idle(self, kept: PosixFile | None = None) -> bool:
        """Close descriptors down to seven eighths of the limit, idle files first.

        Returns whether any descriptor was closed.

        A file is idle unless it was used since the last call.
        """
        files = [file for ref in list(self._open_files.values()) if (file := ref()) is not None]
        clean = [file for file in files if file is not kept and file.may_close]
        clean.sort(key=_USED)
        closed = clean[: max(1, len(files) - self.files_max + self.files_max // 8)]
        for file in files:
            file.used = False
        for file in closed:
            self._open_files.pop(id(file), None)
            file.close_descriptor()
        return bool(closed)

    def exists(self, path: Path) -> bool:
        """Return whether a file or folder exists at a path."""
        return path.exists()

    def file_size(self, path: Path) -> int:
        """Return the size in bytes of the file at a path."""
        return path.stat().st_size

    def list_files(self, folder: Path) -> list[str]:
        """Return the names of the files in a folder."""
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
        """Rename a file or folder, replacing an existing file with the new name."""
        with self._held(target):
            source.rename(target)

    def unlink(self, path: Path) -> None:
        """Remove a file if it exists."""
        with self._held(path):
            path.unlink(missing_ok=True)

    @contextmanager
    def _held(self, path: Path) -> Iterator[None]:
        """Keep a large file open while its name is removed, so that its space is freed in parts."""
        held = None
        with suppress(OSError):
            if path.stat().st_size > PART_BYTES:
                held = Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        yield
        del held

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()

    def sync_folder(self, path: Path) -> None:
        """Sync the names in a folder, using the spare descriptor if no other descriptor is left."""
        try:
            folder = self._open(path, _FOLDER)
            os.fsync(folder.number)
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS:
                raise
            with self._spare_lock:
                self._spare = None
                try:
                    folder = Descriptor(os.open(path, _FOLDER | os.O_CLOEXEC))
                    os.fsync(folder.number)
                    del folder
                finally:
                    with suppress(OSError):
                        self._spare = Descriptor(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def allocate(self, path: Path, nbytes: int) -> None:
        """Create a file and allocate disk space for its bytes."""
        file = self.open(path, create=True)
        file.allocate(nbytes)

    def free_bytes(self, path: Path) -> int:
        """Return the number of bytes that an unprivileged process may still write."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def open_volume(self, path: Path) -> PosixVolume:
        """Open the file system of a folder."""
        return PosixVolume(self, self._open(path, _FOLDER))

    def lock(self, path: Path, holder: bytes) -> Release | None:
        """Lock a file with flock. The kernel also releases the lock when the process ends."""
        descriptor = self._open(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None

        def release() -> None:
            # The closure keeps the descriptor open, since closing it would release the lock.
            fcntl.flock(descriptor.number, fcntl.LOCK_UN)

        # The name of an earlier holder is overwritten in place, since a full disk has no free block.
        PosixFile(self, path, descriptor, write=True).write([holder.ljust(HOLDER_BYTES)], 0)
        return release


def log_files_from_descriptor_limit() -> int:
    """Return the number of log files to keep open, which is a little less than a quarter of the descriptor limit.

    Client connections may use three quarters of the descriptor limit. Of the remaining quarter of the descriptor limit,
    at least 32 descriptors are kept for folders and for sockets to other brokers and etcd.
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
    """Replace a file atomically: after a crash, the file has either its whole old content or its whole new content.

    A temporary file is written, synced and renamed to the final name, and the folder is synced.
    """
    temporary = path.with_name(path.name + ".tmp")
    # After a power failure during a rename, both names may refer to the intact file, which must not be modified.
    storage.unlink(temporary)
    file = storage.open(temporary, create=True)
    file.write([data], 0)
    file.sync()
    storage.rename(temporary, path)
    storage.sync_folder(path.parent)
