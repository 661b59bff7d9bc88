"""Write the files of charts and manifests that `.ci/manifests.py` generates and git does not have.

The tests that read these files call this module, so that every test passes in a fresh clone and after each change of a
chart. A file that is current stays unchanged, and each process checks once.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import checkout

PROGRAM = checkout.ROOT / ".ci/manifests.py"


@cache
def make_chart_files() -> None:
    """Write the files that need no Helm: definitions, schema and boards in the charts, and files of rules."""
    subprocess.run([sys.executable, str(PROGRAM), "--without-helm"], check=True)


@cache
def make_manifests() -> None:
    """Write every file, including Helm's output below `manifests/`; build Helm if it is missing."""
    subprocess.run([sys.executable, str(PROGRAM)], check=True)
