"""Start of each Python process of a Spark session: PySpark is imported from its installation, not from an archive.

Spark puts an archive of PySpark at the start of the path. Modules in an archive have no stored bytecode, so every
process would compile them for more than a second of processor time, and Spark starts several processes for each query.
The folder of this module is in PYTHONPATH (`fairlead_spark.jobs.session`). The module must import nothing large.
"""

from __future__ import annotations

import os
import sys
from typing import Final

ARCHIVES: Final = {"pyspark": "pyspark.zip", "py4j": "py4j-"}
"""Packages, each with the prefix of the name of its archive."""
NAME: Final = "sitecustomize.py"


def installed_first(path: list[str]) -> list[str]:
    """Return a path without the archives of packages that are installed in a folder of the path."""
    needless = tuple(
        start
        for package, start in ARCHIVES.items()
        if any(os.path.isdir(os.path.join(entry, package)) for entry in path)  # noqa: PTH112, PTH118 - a fast start
    )
    return [entry for entry in path if not _is_archive(entry, needless)]


def _is_archive(entry: str, starts: tuple[str, ...]) -> bool:
    return entry.endswith(".zip") and os.path.basename(entry).startswith(starts)  # noqa: PTH119


def _run_next() -> None:
    """Run the module of the same name that this module hides, if there is one."""
    own = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    for entry in sys.path:
        other = os.path.join(entry, NAME)  # noqa: PTH118
        if os.path.abspath(entry) != own and os.path.isfile(other):  # noqa: PTH100, PTH113
            import runpy

            runpy.run_path(other, run_name="sitecustomize")
            return


if __name__ == "sitecustomize":
    sys.path[:] = installed_first(sys.path)
    _run_next()
