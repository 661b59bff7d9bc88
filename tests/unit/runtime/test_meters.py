"""Used and available memory of the process, from Linux's process files and both versions of control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead_broker.runtime.meters import limit_bytes, used_bytes

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def written(root: Path, files: dict[str, str]) -> Path:
    """Write files below a folder, and return the folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_memory_that_is_allocated_and_written_is_used() -> None:
    """A written block of 64 MiB counts as used memory of the process."""
    before = used_bytes()
    block = bytearray(os.urandom(64 * 2**20))
    grown = used_bytes() - before

    assert 60 * 2**20 < grown < 200 * 2**20
    assert len(block) == 64 * 2**20


def test_pages_of_files_are_not_used(tmp_path: Path) -> None:
    """Resident pages of files do not count as used memory."""
    process = written(tmp_path, {"statm": "9000 500 200 10 0 400 0\n"})

    assert used_bytes(process) == 300 * os.sysconf("SC_PAGE_SIZE")


def test_this_process_may_use_at_most_the_machine() -> None:
    """The memory limit of this process is above its used memory and at most the machine's memory."""
    assert used_bytes() < limit_bytes() <= MACHINE


@pytest.mark.parametrize(
    ("cgroup", "files", "limit"),
    [
        ("0::/\n", {"memory.max": "268435456\n"}, 268435456),
        ("0::/\n", {"memory.max": "max\n"}, MACHINE),
        ("0::/pods/one\n", {"pods/one/memory.max": "max\n", "pods/memory.max": "1048576\n"}, 1048576),
        (
            "0::/pods/one\n",
            {"pods/one/memory.max": "65536\n", "pods/memory.max": "1048576\n"},
            65536,
        ),
        (
            "5:cpu,cpuacct:/a\n4:memory:/kube/pod\n0::/a\n",
            {"memory/kube/pod/memory.limit_in_bytes": "536870912\n", "cpu/a/memory.limit_in_bytes": "1\n"},
            536870912,
        ),
        # In a container, /proc shows the machine's path, while only the container's own control group is mounted.
        ("4:memory:/kube/pod\n", {"memory/memory.limit_in_bytes": "536870912\n"}, 536870912),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, MACHINE),
    ],
)
def test_the_limit_is_the_least_of_all_groups(
    cgroup: str, files: dict[str, str], limit: int, tmp_path: Path
) -> None:
    """The limit is the lowest of the machine's memory and the limits of all enclosing control groups, v1 or v2."""
    process = written(tmp_path / "self", {"cgroup": cgroup})
    groups = written(tmp_path / "cgroup", files)

    assert limit_bytes(process, groups) == limit


def test_a_system_without_control_groups_limits_nothing(tmp_path: Path) -> None:
    """Without control groups, the limit is the machine's memory; without files of a process, the used memory is 0."""
    assert limit_bytes(tmp_path, tmp_path) == MACHINE
    assert used_bytes(tmp_path) == 0
