"""How much memory this process uses, and how much it may use; read from Linux at each scrape."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

PROCESS: Final = Path("/proc/self")
GROUPS: Final = Path("/sys/fs/cgroup")
UNLIMITED: Final = "max"


def used_bytes(process: Path = PROCESS) -> int:
    """What the system cannot take back from a process by dropping pages of files; 0 where it does not tell."""
    with suppress(OSError):
        _, resident, of_files, *_ = (process / "statm").read_text(encoding="ascii").split()
        return (int(resident) - int(of_files)) * os.sysconf("SC_PAGE_SIZE")
    return 0


def limit_bytes(process: Path = PROCESS, groups: Path = GROUPS) -> int:
    """The least of the machine's memory and of the limits of all control groups that the process is in."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_limits(process, groups)])


def _limits(process: Path, groups: Path) -> Iterator[int]:
    for folder, name in _folders(process, groups):
        with suppress(OSError):
            text = (folder / name).read_text(encoding="ascii").strip()
            if text != UNLIMITED:
                yield int(text)


def _folders(process: Path, groups: Path) -> Iterator[tuple[Path, str]]:
    """Every group with the name of its limit, from the innermost to the root of what is mounted.

    Inside of a container the paths may be those of the machine, which are not there; the root is, and is its own.
    """
    text = ""
    with suppress(OSError):
        text = (process / "cgroup").read_text(encoding="utf-8")
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, name = groups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = groups / "memory", "memory.limit_in_bytes"
        else:
            continue
        inside = Path(path.lstrip("/"))
        for folder in (inside, *inside.parents):
            yield root / folder, name
