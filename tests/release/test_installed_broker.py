"""A broker from installed packages: from the wheel, from the sdist, and with the extra installed later."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from install_kit import broker, install, install_hashed, new_environment, run

# The test makes two environments and starts ten processes, on a machine with other load.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def from_wheel(programs: Path, wheel: Path, sdist: Path) -> str:
    """Install the wheel with the extra."""
    del sdist
    return install_hashed(programs, wheel, "broker")


def from_sdist(programs: Path, wheel: Path, sdist: Path) -> str:
    """Install the sdist with the extra."""
    del wheel
    return install_hashed(programs, sdist, "broker")


def extra_later(programs: Path, wheel: Path, sdist: Path) -> str:
    """Install the wheel alone, then run the command that the error about the missing extra suggests."""
    del sdist
    install(programs, wheel)
    told = run(programs / "fairlead", "broker", "start", cwd=programs.parent).stderr
    line = "pip install 'fairlead[broker]'"
    assert line in told
    return install(programs, "fairlead[broker]")


def names(said: str) -> set[str]:
    """Return the names of the packages in the installer's output."""
    return set(re.findall(r"^ \+ ([\w.-]+)==", said, re.MULTILINE))


@pytest.mark.parametrize(
    "way",
    [from_wheel, *(pytest.param(way, marks=pytest.mark.scenario) for way in (from_sdist, extra_later))],
    ids=lambda way: way.__name__,
)
def test_a_record_goes_through_an_installed_broker(
    way: Callable[[Path, Path, Path], str], wheel: Path, sdist: Path, tmp_path: Path
) -> None:
    """A record is stored and read through a broker that was installed with the extra `broker`."""
    programs = new_environment(tmp_path)
    brought = way(programs, wheel, sdist)
    origin = "import fairlead_broker; print(fairlead_broker.__file__)"
    imported = Path(run(programs / "python", "-c", origin, cwd=tmp_path).stdout)

    def fairlead(*words: str, typed: str = "") -> str:
        done = run(programs / "fairlead", *words, "--bootstrap", address, cwd=tmp_path, typed=typed)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with broker(programs, tmp_path) as address:
        fairlead("topic", "create", "orders", "--partitions", "1")
        fairlead("produce", "orders", typed="a book\na lamp\n")
        lines = fairlead("consume", "orders", "--from-beginning", "-e", "-f", r"%o %v\n")

    assert lines == "0 a book\n1 a lamp\n"
    assert imported.is_relative_to(programs.parent)
    assert "granian" in names(brought)
    assert not names(brought) & {"pyspark", "kopf", "pytest"}
