"""Starts the JVMs of tests in a third of the time: Spark's classes come from an archive, and stay lightly compiled.

A JVM of a test lives for seconds, and without this spends a dozen of a core to find, check and compile Spark's
classes. The archive is made once for a Java and a Spark, by `quick_java_program.py`, and kept in the user's cache;
a JVM with other classes starts as if there were none. Used by every test that starts Spark, its own or that of a
command.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

PROGRAM: Final = Path(__file__).with_name("quick_java_program.py")
LIGHT: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The optimising compiler and the collector with many threads pay for themselves after minutes only."""
LIGHT_VARIABLES: Final = {"SPARK_SUBMIT_OPTS": LIGHT, "SPARK_LAUNCHER_OPTS": LIGHT}
"""For a Spark of another installation, whose classes are not in the archive."""
MADE_SECONDS_MAX: Final = 600.0
"""Twenty seconds on idle cores."""


def quick_java() -> dict[str, str]:
    """Return the variables for every program that starts a JVM for Spark; the archive is made if it is missing."""
    # What a JVM says of an archive that does not fit it would come among what a command prints.
    options = f"{LIGHT} -Xshare:auto -XX:SharedArchiveFile={class_archive()} -Xlog:disable"
    return LIGHT_VARIABLES | {"SPARK_SUBMIT_OPTS": options}


@cache
def class_archive() -> Path:
    """Return the archive of the classes that Spark loads; one process makes it, others wait for it."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = caches / "fairlead" / "spark" / _digest()
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / "classes.jsa"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _make(archive)
    return archive


def _digest() -> str:
    """Return a digest of Java and Spark: a JVM takes an archive of the very files that it was made of."""
    spec = find_spec("pyspark")
    assert spec is not None, "these tests need the extra spark"
    assert spec.origin is not None, "a package of files"
    java = subprocess.run(["java", "-version"], capture_output=True, check=True).stderr
    jars = sorted((Path(spec.origin).parent / "jars").glob("*.jar"))
    facts = [(str(jar), jar.stat().st_size, jar.stat().st_mtime_ns) for jar in jars]
    return hashlib.sha256(java + repr(facts).encode()).hexdigest()[:16]


def _make(archive: Path) -> None:
    made = archive.with_suffix(f".{os.getpid()}")
    options = f"{LIGHT} -XX:ArchiveClassesAtExit={made} -Xlog:disable"
    done = subprocess.run(
        [sys.executable, str(PROGRAM)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_SUBMIT_OPTS": options},
        check=False,
        capture_output=True,
        text=True,
        timeout=MADE_SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr
    made.rename(archive)
