"""`.ci/setup.sh` without permission to install: it lists everything that is missing, and changes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import checkout

# Programs that the script itself runs; Python, Java and all others are missing.
TOOLS = ("bash", "cat", "cut", "dirname", "env", "id", "sha256sum")
# A user other than root, with read access to root's files.
NOT_ROOT = ("/usr/bin/unshare", "--user", "--map-user=65534") if os.geteuid() == 0 else ()


@pytest.fixture
def bare_machine(tmp_path: Path) -> Path:
    """Return a checkout of the files that the set-up reads, and a folder with the only available programs."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found is not None, name
        (programs / name).symlink_to(found)
    (tmp_path / "checkout/.ci").mkdir(parents=True)
    shutil.copy(checkout.ROOT / ".ci/setup.sh", tmp_path / "checkout/.ci")
    shutil.copytree(checkout.ROOT / "constraints", tmp_path / "checkout/constraints")
    shutil.copy(checkout.ROOT / "pyproject.toml", tmp_path / "checkout")
    shutil.copytree(checkout.ROOT / "kafka-records", tmp_path / "checkout/kafka-records")
    return tmp_path


def set_up(machine: Path, part: str) -> subprocess.CompletedProcess[str]:
    """Run the script for a part of the project, with only the programs of the bare machine."""
    return subprocess.run(
        [*NOT_ROOT, str(machine / "bin/bash"), ".ci/setup.sh", part],
        cwd=machine / "checkout",
        env={"PATH": str(machine / "bin")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ("demo", ["Java 17 or newer", "Python 3.11 or newer"]),
        (
            "dev",
            ["Java 17 or newer", "Prometheus", "tmux", "buildah", "Python 3.11 or newer", "a C compiler"],
        ),
        ("bench", ["java", "mvn"]),
    ],
)
def test_what_is_missing_is_listed(bare_machine: Path, part: str, told: list[str]) -> None:
    """All missing parts are listed with their Debian packages; the script exits with 1 and installs nothing."""
    before = sorted((bare_machine / "checkout").rglob("*"))
    done = set_up(bare_machine, part)
    *missing, last = done.stderr.splitlines()

    assert done.returncode == 1
    assert all(line.startswith("Missing: ") and "on Debian: apt-get install " in line for line in missing)
    assert [word for word in told if not any(word in line for line in missing)] == []
    assert last == "Install it, then run the same command again."
    assert not done.stdout
    assert sorted((bare_machine / "checkout").rglob("*")) == before


def test_a_part_that_does_not_exist_is_named(bare_machine: Path) -> None:
    """An unknown part is refused with the names of the parts."""
    done = set_up(bare_machine, "all")

    assert done.returncode == 1
    assert "a part called all (there are demo, dev and bench)" in done.stderr
