"""The storage layer between the log and the disk."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from fairlead_broker.log.segments.storage import PosixStorage, _after, read_whole, write_atomically
from refusals import raises


def test_a_write_of_many_buffers_arrives_in_order(tmp_path: Path) -> None:
    """A write with more buffers than one call accepts, some of them empty, is stored in order."""
    buffers = [str(number).encode() * (number % 3) for number in range(3000)]
    file = PosixStorage().open(tmp_path / "file", create=True)
    file.write([b"head"], 0)
    file.write(buffers, 4)

    assert (tmp_path / "file").read_bytes() == b"head" + b"".join(buffers)


@pytest.mark.parametrize("written", range(10))
def test_a_short_write_goes_on_where_it_ended(written: int) -> None:
    """A short write continues with exactly the bytes that have not been written."""
    buffers = [b"abc", b"", b"defg", b"hi"]

    assert b"".join(_after(buffers, written)) == b"abcdefghi"[written:]


def holders(path: Path) -> int:
    """Count the descriptors of this process that are open on a file, while other descriptors may open and close."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            count += descriptor.readlink() == path
    return count


def test_a_file_closes_with_its_last_holder(tmp_path: Path) -> None:
    """A file's descriptor stays open as long as the file has a holder, and is closed by the last holder."""
    storage = PosixStorage()
    path = tmp_path.resolve() / "file"
    file = storage.open(path, create=True)
    other = file
    del file
    open_then = holders(path)
    other.write([b"x"], 0)
    del other

    assert (open_then, holders(path)) == (1, 0)


def open_descriptors(folder: Path) -> int:
    """Count the descriptors of this process that are open on files of a folder."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            count += descriptor.readlink().parent == folder
    return count


def test_idle_clean_files_are_closed_and_opened_again(tmp_path: Path) -> None:
    """A storage above its limit of open files closes only clean files, and every file still reads and writes."""
    folder = tmp_path.resolve()
    storage = PosixStorage(files_max=16)
    files = [storage.open(folder / f"{number}", create=True) for number in range(100)]
    empty = open_descriptors(folder)
    for number, file in enumerate(files):
        file.write([str(number).encode()], 0)
    dirty = open_descriptors(folder)
    storage.open_volume(folder).sync()
    files[0].sync()
    files.append(storage.open(folder / "last", create=True))
    files[-1].write([b"100"], 0)
    buffers = [memoryview(bytearray(3)) for _ in files]
    counts = [file.read_into(buffer, 0) for file, buffer in zip(files, buffers, strict=True)]
    clean = open_descriptors(folder)

    assert [bytes(buffer[:count]) for buffer, count in zip(buffers, counts, strict=True)] == [
        str(number).encode() for number in range(101)
    ]
    assert empty <= 17
    assert dirty == 100
    assert clean <= 17


def test_a_closed_file_that_was_replaced_is_refused(tmp_path: Path) -> None:
    """An idle file that the storage closed is refused if another file has replaced it under the same name."""
    storage = PosixStorage(files_max=1)
    file = storage.open(tmp_path / "file", create=True)
    others = [storage.open(tmp_path / f"{number}", create=True) for number in range(3)]
    kept = tmp_path / "kept"
    (tmp_path / "file").rename(kept)
    (tmp_path / "file").write_bytes(b"other")

    with raises(OSError, "replaced"):
        file.size()
    assert len(others) == 3


def test_a_folder_is_synced_without_a_free_descriptor(tmp_path: Path) -> None:
    """A process at its limit of open files syncs a folder with the spare descriptor, and opens files afterwards."""
    program = """
import errno, os, resource, sys
from pathlib import Path
from fairlead_broker.log.segments.storage import PosixStorage
folder = Path(sys.argv[1])
storage = PosixStorage(files_max=1000)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.open(os.devnull, os.O_RDONLY))
except OSError as error:
    assert error.errno == errno.EMFILE
storage.sync_folder(folder)
try:
    storage.open(folder / "file", create=True)
except OSError as error:
    assert error.errno == errno.EMFILE
else:
    raise AssertionError
os.close(taken.pop())
clean = storage.open(folder / "clean", create=True)
storage.open(folder / "other", create=True)
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)


def test_cached_reads_return_what_is_in_memory(tmp_path: Path) -> None:
    """A cached read returns recently written bytes without waiting, and returns no bytes at the end of the file."""
    storage = PosixStorage()
    file = storage.open(tmp_path / "file", create=True)
    file.write([b"x" * 10_000], 0)
    buffer = memoryview(bytearray(10_000))
    if file.read_into_cached(buffer, 0) == 0:
        pytest.skip(f"the file system of {tmp_path} refuses RWF_NOWAIT")

    assert bytes(buffer) == b"x" * 10_000
    assert file.read_into_cached(buffer, 10_000) == 0
    assert storage.reads_cached


@pytest.mark.skipif(not Path("/dev/shm").is_dir() or sys.platform != "linux", reason="needs a tmpfs")
def test_a_file_system_without_cached_reads_is_asked_once(tmp_path: Path) -> None:
    """A storage whose file system refuses RWF_NOWAIT, as tmpfs does, stops trying cached reads."""
    storage = PosixStorage()
    path = Path("/dev/shm") / f"fairlead-{os.getpid()}-{tmp_path.name}"
    file = storage.open(path, create=True)
    try:
        file.write([b"x" * 100], 0)
        buffer = memoryview(bytearray(100))

        assert file.read_into_cached(buffer, 0) == 0
        assert not storage.reads_cached
        assert file.read_into(buffer, 0) == 100
    finally:
        path.unlink()


def test_an_atomic_write_replaces_the_whole_file(tmp_path: Path) -> None:
    """An atomic write replaces a file by longer or shorter content, and leaves no temporary file."""
    storage = PosixStorage()
    path = tmp_path / "file"
    (tmp_path / "file.tmp").write_bytes(b"left by a crash, and longer")
    for data in (b"long content", b"short", b""):
        write_atomically(storage, path, data)

        assert read_whole(storage, path) == data
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file"]
    assert read_whole(storage, tmp_path / "other") is None


def test_a_volume_syncs(tmp_path: Path) -> None:
    """A volume sync with the C library's `syncfs` returns without an error on a real file system."""
    PosixStorage().open(tmp_path / "file", create=True).write([b"x"], 0)

    assert PosixStorage().open_volume(tmp_path).sync() is None
