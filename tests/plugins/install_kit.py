"""Builds the distribution and installs it as a user does, into new environments. Used by the tests of releases.

What is downloaded comes out of uv's cache, where the set-up of the checkout has put it.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import checkout

UV = str(Path(sys.executable).parent / "uv")
CONSTRAINTS = checkout.ROOT / "constraints/dev.txt"
BACKENDS = checkout.ROOT / "constraints/setup.txt"
FREE = "127.0.0.1:0"
LISTENERS = ("--listen", FREE, "--peer-listen", FREE, "--ops-listen", FREE)
STOP_SECONDS = 20.0
# What would have a program find more than is installed, or another broker.
FOREIGN = ("PYTHON", "VIRTUAL_ENV", "FAIRLEAD_", "COVERAGE_")


def clean_variables() -> dict[str, str]:
    """Return the variables of this process without those that lead a program elsewhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}


def run(*command: str | Path, cwd: Path, typed: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command outside the checkout, so that only what is installed can be imported."""
    words = [str(part) for part in command]
    return subprocess.run(
        words, cwd=cwd, env=clean_variables(), input=typed, capture_output=True, text=True, check=False
    )


def build(*what: str | Path, into: Path) -> None:
    """Build what is asked for, of the checkout or of a folder, by the build backend of the constraints."""
    built = run(UV, "build", *what, "--no-build-isolation", "--python", sys.executable, "--out-dir", into,
                cwd=checkout.ROOT)  # fmt: skip
    assert built.returncode == 0, built.stderr


def new_environment(folder: Path) -> Path:
    """Make an empty environment, and return the folder of its programs."""
    made = run(UV, "venv", "--quiet", "--python", sys.executable, folder / "venv", cwd=folder)
    assert made.returncode == 0, made.stderr
    return folder / "venv/bin"


def install(programs: Path, *what: str | Path) -> str:
    """Install into an environment in the versions of the constraints; return what the installer said."""
    command = (UV, "pip", "install", "--python", programs / "python", "-c", CONSTRAINTS, *what)
    # Where a registry answers that its files have changed, uv would download and build PySpark for each environment.
    done = run(*command, "--offline", cwd=programs.parent)
    if done.returncode != 0:
        done = run(*command, cwd=programs.parent)
    assert done.returncode == 0, done.stderr
    return done.stderr


def install_hashed(programs: Path, archive: Path, extra: str) -> str:
    """Install a wheel or an sdist with an extra: whatever is installed has a hash that was written down before."""
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    wanted = programs.parent / "wanted.txt"
    wanted.write_text(f"fairlead[{extra}] @ {archive.as_uri()} --hash=sha256:{digest}\n")
    if archive.suffix == ".gz":
        # Builds run without isolation, as in the set-up, so that they bring nothing that has no hash.
        install(programs, "--quiet", "--require-hashes", "-r", BACKENDS)
    return install(programs, "--no-build-isolation", "--require-hashes", "-r", wanted)


@contextmanager
def broker(programs: Path, folder: Path) -> Iterator[str]:
    """Start a broker of this environment on free ports; its address. SIGTERM must end it with 0."""
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
