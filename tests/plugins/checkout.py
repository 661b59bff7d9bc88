"""The files of the checkout for the architecture tests: its root, its files and its Python sources.

The files are the tracked files, and the new files that git does not ignore. Caches and environments are excluded.
"""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Folders whose packages form the distribution.
PACKAGE_FOLDERS = ("api", "broker", "client", "console", "operator")


@cache
def files() -> tuple[Path, ...]:
    """List the files of the checkout, relative to its root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = (Path(name) for name in listing.split("\0") if name)
    return tuple(sorted(path for path in paths if (ROOT / path).is_file()))


def python_files(*folders: str) -> list[Path]:
    """List the Python sources of the checkout, or of some top-level folders."""
    return [path for path in files() if path.suffix == ".py" and (not folders or path.parts[0] in folders)]


def packages() -> list[Path]:
    """List the folders of the packages that contain Python sources, relative to the root."""
    return sorted({path.parent for path in python_files(*PACKAGE_FOLDERS)})
