"""The space of removed files is freed in parts, unless a reader still uses the file."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead_broker.log.segments.storage import PosixStorage
from waiting import until

SIZE = 64 << 20
ATTEMPTS_MAX = 5


def removed_sizes(path: Path) -> dict[int, int]:
    """Return the sizes of the removed file with this path, by descriptor of this process."""
    sizes = {}
    for link in Path("/proc/self/fd").iterdir():
        try:
            if str(link.readlink()) == f"{path} (deleted)":
                sizes[int(link.name)] = link.stat().st_size
        except FileNotFoundError:
            continue
    return sizes


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Return a file of 64 MiB, with blocks on the disk."""
    return allocated(tmp_path / "00000000000000000000.log")


def allocated(path: Path) -> Path:
    """Create a file of 64 MiB, with blocks on the disk."""
    PosixStorage().allocate(path, SIZE)
    return path


def replace(storage: PosixStorage, path: Path) -> None:
    """Replace a file by renaming another file."""
    other = path.with_suffix(".swap")
    storage.allocate(other, 4096)
    storage.rename(other, path)


async def steps_of(large: Path, remove: Callable[[PosixStorage, Path], None]) -> set[int]:
    """Remove a file that a reader closes last; return the sizes that were seen while it shrank."""
    storage = PosixStorage()
    file = storage.open(large)
    remove(storage, large)
    kept = removed_sizes(large)
    del file
    seen: set[int] = set()

    def is_gone() -> bool:
        sizes = removed_sizes(large)
        seen.update(sizes.values())
        return not sizes

    await until(is_gone)
    assert set(kept.values()) == {SIZE}
    return {size for size in seen if 0 < size < SIZE}


@pytest.mark.parametrize("remove", [PosixStorage.unlink, replace])
async def test_a_removed_file_shrinks_step_by_step(
    tmp_path: Path, remove: Callable[[PosixStorage, Path], None]
) -> None:
    """The size of a removed file falls in steps, even if a reader has closed the file last.

    A program that another thread starts holds the file for a moment, and the space is then freed at once.
    """
    for number in range(ATTEMPTS_MAX):
        if len(await steps_of(allocated(tmp_path / f"{number:020}.log"), remove)) > 2:
            return
    pytest.fail(f"none of {ATTEMPTS_MAX} files shrank step by step")


async def test_a_reader_of_a_removed_file_reads_all_bytes(large: Path) -> None:
    """A removed file keeps its size while another descriptor, such as that of another process, is open."""
    reader = os.open(large, os.O_RDONLY)
    storage = PosixStorage()
    storage.unlink(large)
    await until(lambda: set(removed_sizes(large)) == {reader})
    size = os.fstat(reader).st_size
    os.close(reader)

    assert size == SIZE
