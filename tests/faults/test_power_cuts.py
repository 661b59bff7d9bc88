"""A short run of `power_cuts.py`, and runs that must fail, over disks that break one promise each."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from lying_disk import LyingDisk, Promises
from power_cuts import run

CYCLES = 300
SEEDS = (1, *(pytest.param(seed, marks=pytest.mark.scenario) for seed in (2, 3)))
"""Seeds of runs over a disk that breaks a promise; each run must lose a batch within `CYCLES` cycles."""


@pytest.mark.slow
def test_no_acknowledged_batch_is_lost_by_power_cuts() -> None:
    """Acknowledged batches are stored once, in order and byte for byte after any loss of unsynced data."""
    report = run(CYCLES, seed=random.SystemRandom().randrange(1 << 32))

    assert report["lost"] is None, report
    losses = report["losses"]
    assert isinstance(losses, dict)
    assert all(losses.values()), f"a kind of loss did not happen: {losses}"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("switch", ["file_sync", "folder_sync", "rename_order"])
def test_a_disk_that_breaks_a_promise_is_noticed(switch: str, seed: int) -> None:
    """Without fsync of segments, of folders, or of a file before its rename, the same run loses a batch."""
    report = run(CYCLES, seed, Promises(**{switch: False}))

    assert report["lost"] is not None


@pytest.mark.scenario
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1552551361])
def test_seeds_that_found_a_fault(seed: int) -> None:
    """A truncation that a kill interrupted is not undone by a later power cut once a start has read the shorter log."""
    assert run(1700, seed)["lost"] is None


def test_two_runs_of_one_seed_are_the_same() -> None:
    """Two runs with the same seed have the same result."""
    assert run(30, seed=5) == run(30, seed=5)


def test_synced_data_survives_every_cut() -> None:
    """The disk itself never loses a synced byte or name, and loses some unsynced data."""
    path = Path("/folder/file")
    found: set[bytes | None] = set()
    for seed in range(300):
        disk = LyingDisk()
        disk.make_folder(path.parent)
        disk.sync_folder(path.parent.parent)
        disk.open(path, create=True).write([b"a" * 1000], 0)
        if seed % 2:
            disk.sync_folder(path.parent)
            disk.open(path).sync()
            disk.open(path).write([b"b" * 1000], 600)
        after = disk.cut(random.Random(seed))
        data = bytearray(2000)
        content = (
            bytes(data[: after.open(path).read_into(memoryview(data), 0)]) if after.exists(path) else None
        )
        if seed % 2:
            assert content is not None
            assert content[:600] == b"a" * 600
        found.add(content)

    assert {None, b"", b"a" * 1000, b"a" * 600 + b"b" * 1000} <= found
    assert len(found) > 20
