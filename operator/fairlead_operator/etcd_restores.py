"""Program of the init containers that run before and after a restore of etcd, on the volume of the first member.

    python -m fairlead_operator.etcd_restores prepare|finish --volume FOLDER

`etcdutl` restores a snapshot into a folder that must not exist yet. `prepare` removes the folder that an interrupted
attempt left. `finish` gives the restored folder its final name, and never replaces a folder that a member has already
used: a recreated pod continues with its data.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

RESTORED: Final = "restored"
"""Name of the folder into which `etcdutl` restores."""
DATA: Final = "data"
"""Name of the folder with the data of a member."""


def main(arguments: Sequence[str]) -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("step", choices=("prepare", "finish"))
    parser.add_argument("--volume", type=Path, required=True, help="folder where the volume is mounted")
    given = parser.parse_args(arguments)
    if given.step == "prepare":
        prepare(given.volume)
    else:
        finish(given.volume)
    return 0


def prepare(volume: Path) -> None:
    """Remove the folder of an interrupted attempt."""
    shutil.rmtree(volume / RESTORED, ignore_errors=True)


def finish(volume: Path) -> None:
    """Give the restored folder its final name and sync the change, unless the volume already has a member's data."""
    if (volume / DATA).exists():
        prepare(volume)
        return
    (volume / RESTORED).rename(volume / DATA)
    folder = os.open(volume, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
