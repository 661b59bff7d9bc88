"""Write the files of charts and manifests that are made by `.ci/manifests.py` and are not in git.

Called by the tests that read them, so that every test passes in a fresh clone and after each change of a chart. A file
that is current stays, and each process asks once.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import checkout

PROGRAM = checkout.ROOT / ".ci/manifests.py"


@cache
def make_chart_files() -> None:
    """Write what needs no Helm: definitions, schema and boards in the charts, and files of rules."""
    subprocess.run([sys.executable, str(PROGRAM), "--without-helm"], check=True)


@cache
def make_manifests() -> None:
    """Write every file, also what Helm renders below `manifests/`; builds Helm where it is missing."""
    subprocess.run([sys.executable, str(PROGRAM)], check=True)
