"""What the architecture tests know of the checkout: its root, its files and its Python sources.

Files are those that git tracks, and those that it would track next; caches and environments stay out.
"""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The folders whose packages become the distribution.
PACKAGE_FOLDERS = ("api", "broker", "client", "operator")


@cache
def files() -> tuple[Path, ...]:
    """List the files of the checkout, relative to its root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = (Path(name) for name in listing.split("\0") if name)
    return tuple(sorted(path for path in paths if (ROOT / path).is_file()))


def python_files(*folders: str) -> list[Path]:
    """List the Python sources of the checkout, or those below some top-level folders."""
    return [path for path in files() if path.suffix == ".py" and (not folders or path.parts[0] in folders)]


def rooms() -> list[Path]:
    """List the folders of the packages that hold Python sources, relative to the root."""
    return sorted({path.parent for path in python_files(*PACKAGE_FOLDERS)})
