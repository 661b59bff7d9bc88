"""Variables that reduce the start time of the tests' JVMs to a third.

Spark's classes come from an archive and are compiled only lightly. A JVM of a test runs for seconds, and without the
archive spends a dozen seconds of one core on finding, checking and compiling Spark's classes. The program
`quick_java_program.py` creates the archive once for each Java and Spark, in the user's cache. A JVM with other classes
starts as if it had no archive. Every test that starts Spark, directly or by a command, uses these variables.
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
LIGHT: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m"
"""JVM options that turn off the optimising compiler and the collector with many threads, which save time only after
minutes, and that reserve memory for all classes at the start, since each extension would begin with a collection.
"""
LIGHT_FILES: Final = (
    "-Dspark.sql.streaming.checkpointFileManagerClass="
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""Spark setting with which checkpoint files are written without other programs. By default, Spark starts a program for
each checkpoint file to set the permissions of the file.
"""
LIGHT_VARIABLES: Final = {"SPARK_SUBMIT_OPTS": LIGHT, "SPARK_LAUNCHER_OPTS": LIGHT}
"""Environment variables for any other Spark installation, whose classes are not in the archive."""
MADE_SECONDS_MAX: Final = 600.0
"""Time limit for the creation of the archive, which takes twenty seconds on idle cores."""


def quick_java() -> dict[str, str]:
    """Return the environment variables for a program that starts a JVM for Spark, after creating a missing archive."""
    # JVM messages about an unsuitable archive would appear in the output of a command.
    options = f"{LIGHT} {LIGHT_FILES} -Xshare:auto -XX:SharedArchiveFile={class_archive()} -Xlog:disable"
    return LIGHT_VARIABLES | {"SPARK_SUBMIT_OPTS": options}


@cache
def class_archive() -> Path:
    """Return the archive of the classes that Spark loads; one process creates the archive and others wait for it."""
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
    """Return a digest of Java and Spark: a JVM refuses an archive that was created from other files."""
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
