"""Checks of the software that a job needs, PySpark and Java, and installed versions, without importing PySpark."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from fairlead_spark.jobs import RequirementMissing

PYSPARK_OLDEST: Final = (4, 2)
JAVA_OLDEST: Final = 17
JAVA_SECONDS_MAX: Final = 30.0
FORMATS: Final = {"fairlead": "pyspark_fairlead", "fairlead-delta": "pyspark_fairlead_delta"}
"""Spark formats of this package, and the modules in which Spark discovers them."""
_JAVA_VERSION: Final = re.compile(r'version "(?P<version>[^"]+)"')


def installed(distribution: str) -> str | None:
    """Return the version of a Python distribution; None if it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def java() -> tuple[str | None, str | None]:
    """Return the path and the version of the Java that Spark would start; a missing or unreadable value is None."""
    home = os.environ.get("JAVA_HOME")
    path = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if path is None:
        return None, None
    try:
        printed = subprocess.run(
            [path, "-version"], check=False, capture_output=True, text=True, timeout=JAVA_SECONDS_MAX
        )
    except (OSError, subprocess.TimeoutExpired):
        return path, None
    found = _JAVA_VERSION.search(printed.stderr + printed.stdout)
    return path, found["version"] if found else None


def java_release(text: str) -> int:
    """Return the major release of a Java version: 17 for `17.0.15`, 8 for `1.8.0_392`."""
    parts = [int(part) for part in re.findall(r"\d+", text)]
    return parts[1] if parts[0] == 1 and len(parts) > 1 else parts[0]


def format_reasons() -> dict[str, str | None]:
    """Return for each format of this package the reason why Spark cannot use the format; None if Spark can use it."""
    return {name: import_module(module).reason for name, module in FORMATS.items()}


def check_requirements() -> None:
    """Check that jobs can run on this machine.

    Raises: RequirementMissing: PySpark or Java is missing or too old, or the source cannot be loaded.
    """
    release = installed("pyspark")
    oldest = ".".join(map(str, PYSPARK_OLDEST))
    if release is None:
        message = "jobs need PySpark, which comes with: pip install 'fairlead[spark]'"
        raise RequirementMissing(message)
    if tuple(int(part) for part in release.split(".")[:2]) < PYSPARK_OLDEST:
        message = (
            f"PySpark {release} is too old for jobs: they need {oldest} or newer (pip install -U pyspark)"
        )
        raise RequirementMissing(message)
    _check_java()
    reason = format_reasons()["fairlead"]
    if reason is not None:
        message = f"Spark would not find the format fairlead: {reason}"
        raise RequirementMissing(message)


def versions() -> dict[str, str | None]:
    """Return the versions to include in a problem report; None for missing software."""
    path, release = java()
    return {
        "fairlead": installed("fairlead"),
        "python": platform.python_version(),
        "pyspark": installed("pyspark"),
        "java": release,
        "java_path": path,
        "pyarrow": installed("pyarrow"),
        "deltalake": installed("deltalake"),
    }


def _check_java() -> None:
    path, release = java()
    wanted = f"Spark needs Java {JAVA_OLDEST} or newer"
    if path is None:
        message = f"{wanted}, and there is no java in PATH; install it or set JAVA_HOME"
        raise RequirementMissing(message)
    if release is None:
        message = f"{wanted}, and {path} does not run; set JAVA_HOME or PATH to a Java that runs"
        raise RequirementMissing(message)
    if java_release(release) < JAVA_OLDEST:
        message = f"{wanted}, and {path} is {release}; set JAVA_HOME to a newer Java"
        raise RequirementMissing(message)
