"""Builds the distribution and installs it as a user does, into new environments, for tests of releases.

Downloads come from uv's cache, which the set-up of the checkout has filled.
"""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import checkout
from etcd_build import callers_variables

UV = str(Path(sys.executable).parent / "uv")
CONSTRAINTS = checkout.ROOT / "constraints/dev.txt"
BACKENDS = checkout.ROOT / "constraints/setup.txt"
FREE = "127.0.0.1:0"
LISTENERS = ("--listen", FREE, "--peer-listen", FREE, "--ops-listen", FREE)
STOP_SECONDS = 20.0
# Variables that would lead a program to packages that are not installed, or to another broker.
FOREIGN = ("PYTHON", "VIRTUAL_ENV", "FAIRLEAD_", "COVERAGE_")


def clean_variables() -> dict[str, str]:
    """Return the environment of the test run, without variables that would make a program use the wrong packages."""
    return {name: value for name, value in callers_variables().items() if not name.startswith(FOREIGN)}


def run(*command: str | Path, cwd: Path, typed: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command outside the checkout, so that only installed packages can be imported."""
    words = [str(part) for part in command]
    return subprocess.run(
        words, cwd=cwd, env=clean_variables(), input=typed, capture_output=True, text=True, check=False
    )


def build(*what: str | Path, into: Path) -> None:
    """Build distributions of the checkout or of a folder, with the build backend that the constraints pin."""
    built = run(UV, "build", *what, "--no-build-isolation", "--python", sys.executable, "--out-dir", into,
                cwd=checkout.ROOT)  # fmt: skip
    assert built.returncode == 0, built.stderr


def new_environment(folder: Path) -> Path:
    """Make an empty environment, and return the folder of its programs."""
    made = run(UV, "venv", "--quiet", "--python", sys.executable, folder / "venv", cwd=folder)
    assert made.returncode == 0, made.stderr
    return folder / "venv/bin"


def install(programs: Path, *what: str | Path) -> str:
    """Install packages at the versions pinned in the constraints file; return the installer's output."""
    command = (UV, "pip", "install", "--python", programs / "python", "-c", CONSTRAINTS, *what)
    # uv would download and build PySpark for each environment when a registry reports changed files.
    done = run(*command, "--offline", cwd=programs.parent)
    if done.returncode != 0:
        done = run(*command, cwd=programs.parent)
    assert done.returncode == 0, done.stderr
    return done.stderr


def install_hashed(programs: Path, archive: Path, extra: str) -> str:
    """Install a wheel or an sdist with an extra, with only packages whose hashes are in the constraints."""
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    wanted = programs.parent / "wanted.txt"
    wanted.write_text(f"fairlead[{extra}] @ {archive.as_uri()} --hash=sha256:{digest}\n")
    if archive.suffix == ".gz":
        # Builds run without isolation, as in the set-up, so that no package without a hash is used.
        install(programs, "--quiet", "--require-hashes", "-r", BACKENDS)
    return install(programs, "--no-build-isolation", "--require-hashes", "-r", wanted)


@contextmanager
def broker(programs: Path, folder: Path) -> Iterator[str]:
    """Start a broker of this environment on free ports and yield its address; SIGTERM must end it with exit code 0."""
    command = [
        str(programs / "fairlead"),
        "broker",
        "start",
        "--data",
        str(folder / "data"),
        "--output",
        "json",
    ]
    with (folder / "broker.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *LISTENERS], cwd=folder, env=clean_variables(), stdout=subprocess.PIPE, stderr=log
        )
    assert process.stdout is not None, "its standard output is a pipe"
    with process.stdout:
        try:
            ready = process.stdout.readline()
            assert ready, (folder / "broker.log").read_text()
            [found] = json.loads(ready)["brokers"]
            yield found["data"]
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(STOP_SECONDS)
        assert code == 0
