"""The start of Python processes of a Spark session: which PySpark they import."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import fairlead_spark

FOLDER = Path(fairlead_spark.__file__).parent / "worker_start"
PROGRAM = "import os, sys; print('|'.join(sys.path)); print(os.environ.get('HIDDEN_MODULE'))"


def started(*path: Path) -> tuple[list[str], str]:
    """Start Python with this PYTHONPATH, and return its `sys.path` and the value from the user's `sitecustomize`."""
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    return told[0].split("|"), told[1]


def test_pyspark_comes_from_its_installation(tmp_path: Path) -> None:
    """Archives of installed packages are removed from `sys.path`, and the user's `sitecustomize` is run.

    Archives of other packages are kept on the path.
    """
    archives = [tmp_path / name for name in ("pyspark.zip", "py4j-0.10-src.zip", "mine.zip")]
    for archive in archives:
        with zipfile.ZipFile(archive, "w") as written:
            written.writestr("empty.py", "")
    hidden, packages = tmp_path / "hidden", tmp_path / "packages"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import os\nos.environ['HIDDEN_MODULE'] = 'ran'\n", encoding="utf-8"
    )
    for package in ("pyspark", "py4j"):
        (packages / package).mkdir(parents=True)
    path, user = started(FOLDER, *archives, hidden, packages)

    assert [entry for entry in path if entry.endswith(".zip") and str(tmp_path) in entry] == [
        str(archives[2])
    ]
    assert user == "ran"
