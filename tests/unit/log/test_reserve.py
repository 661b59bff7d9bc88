"""The reserve of disk space stays released once a broker has released it."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread

import pytest

from fairlead_broker.log.errors import DiskFull
from fairlead_broker.log.reserve import RESERVE_BYTES, SpaceReserve
from fairlead_broker.log.segments.storage import PosixStorage


class GatedReserve(SpaceReserve):
    """A reserve that, once armed, returns its attribute `missing` only after the test has opened a gate."""

    __slots__ = ("armed", "gate", "looked", "value")

    @property
    def missing(self) -> bool:  # type: ignore[override]
        """Whether space is missing: the value from before the gate opens, returned after it has opened."""
        value = self.value
        if self.armed:
            self.looked.set()
            self.gate.wait(0.2)
        return value

    @missing.setter
    def missing(self, value: bool) -> None:
        self.value = value


def test_a_release_is_not_undone_by_a_running_check(tmp_path: Path) -> None:
    """A check that runs during a release does not create the reserve file again."""
    path = tmp_path / "reserve"
    reserve = GatedReserve.__new__(GatedReserve)
    reserve.armed, reserve.gate, reserve.looked = False, Event(), Event()
    SpaceReserve.__init__(reserve, PosixStorage(), path)
    reserve.missing, reserve.armed = True, True
    checking = Thread(target=reserve.check)
    checking.start()
    assert reserve.looked.wait(10)
    reserve.release()
    reserve.gate.set()
    checking.join()

    assert not path.exists()
    assert not reserve.held


def test_a_check_reserves_the_space_once_it_is_there(tmp_path: Path) -> None:
    """A check allocates a missing reserve as soon as the disk has space, and raises DiskFull until then."""
    full = tmp_path / "full"
    reserve = SpaceReserve(FullStorage(), full)

    assert not reserve.take()
    with pytest.raises(DiskFull):
        reserve.check()
    FullStorage.free = True
    reserve.check()
    assert full.stat().st_size == RESERVE_BYTES


class FullStorage(PosixStorage):
    """A storage without free space until the test frees it."""

    free = False

    def allocate(self, path: Path, nbytes: int) -> None:
        """Fail with the error for a full disk."""
        if not self.free:
            raise OSError(28, "no space")
        super().allocate(path, nbytes)
