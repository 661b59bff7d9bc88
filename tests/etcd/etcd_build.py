"""Builds etcd and etcdctl from Go modules, once for each release, and provides the command that runs a member.

The tests (by `etcd_binaries`), `make cluster` and `make bench` use this module. The programs are kept in the user's
cache, in a folder named after the hash of `go/go.sum`, so existing programs have the right release. To update etcd,
change both versions in `go/go.mod` and run `go mod tidy` in that folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MODULE = Path(__file__).parent / "go"
ETCDUTL = Path(__file__).parents[1] / "integration/cli/etcdutl_go"
ETCDUTL_PACKAGE = "go.etcd.io/etcd/etcdutl/v3"
PACKAGES = {"etcd": "go.etcd.io/etcd/server/v3", "etcdctl": "go.etcd.io/etcd/etcdctl/v3"}

REPORT_SECONDS = 15
CALLERS_PREFIX = "CALLERS_"
"""Prefix of the variables that contain the authorities named by the caller of the tests (`tests/conftest.py`)."""
TESTS = str(Path(__file__).parents[1])
"""Folder with the only authority that other tests trust (`tests/conftest.py`), which no registry uses."""


class EtcdNotBuilt(Exception):
    """Raised when etcd is not available; the message names the missing part."""


@dataclass(frozen=True, slots=True)
class EtcdBinaries:
    """Paths of the programs."""

    etcd: Path
    etcdctl: Path


@cache
def etcd_binaries() -> EtcdBinaries:
    """Return the programs, after building missing ones. Raise `EtcdNotBuilt` if a build fails."""
    folder = built("etcd", MODULE, PACKAGES)
    return EtcdBinaries(folder / "etcd", folder / "etcdctl")


@cache
def etcdutl_binary() -> Path:
    """Return the path of etcdutl, which is built if it is missing. Raise `EtcdNotBuilt` if the build fails."""
    return built("etcdutl", ETCDUTL, {"etcdutl": ETCDUTL_PACKAGE}) / "etcdutl"


def built(name: str, module: Path, packages: Mapping[str, str]) -> Path:
    """Return the folder of a module's programs, in the cache under `name`, after building the missing programs.

    One process builds and others wait for it. Raise `EtcdNotBuilt` if a build fails.
    """
    digest = hashlib.sha256((module / "go.sum").read_bytes()).hexdigest()[:16]
    folder = cache_folder().with_name(name) / digest
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for program, package in packages.items():
            if not (folder / program).exists():
                build(package, folder / program, module)
    return folder


def member_command(
    data: Path, client_url: str, peer_url: str, *, name: str = "etcd", initial_cluster: str | None = None
) -> list[str]:
    """Return the command that runs a member in the foreground, alone unless `initial_cluster` names other members.

    Raise `EtcdNotBuilt` if etcd is not available.
    """
    return [
        str(etcd_binaries().etcd),
        f"--name={name}",
        f"--data-dir={data}",
        f"--listen-client-urls={client_url}",
        f"--advertise-client-urls={client_url}",
        f"--listen-peer-urls={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster={initial_cluster or f'{name}={peer_url}'}",
        "--log-level=warn",
    ]


def cache_folder() -> Path:
    """Return a folder outside the checkout, so that the folder outlives the checkout."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairlead" / "etcd"


def build(package: str, target: Path, module: Path) -> None:
    """Compile one program of a Go module's tools, and create its file atomically.

    Raise `EtcdNotBuilt` if the build fails.
    """
    made = target.with_suffix(f".{os.getpid()}")
    command = [
        go(),
        "build",
        "-v",
        "-p",
        "1",
        "-trimpath",
        "-buildvcs=false",
        "-ldflags=-s -w",
        "-o",
        str(made),
        package,
    ]
    compile_program(target.name, command, module)
    made.rename(target)


def compile_program(name: str, command: list[str], module: Path) -> None:
    """Run Go's compiler in a module, and report the progress on stderr; the command has the flag `-v`.

    Raise `EtcdNotBuilt` with the end of the compiler's output if the compilation fails.
    """
    environment = callers_variables() | {"CGO_ENABLED": "0", "GOWORK": "off", "GOTOOLCHAIN": "local"}
    begun = reported = time.monotonic()
    _report(f"build {name} from Go modules")
    last: deque[str] = deque(maxlen=100)
    compiled = 0
    with subprocess.Popen(
        command, cwd=module, env=environment, stderr=subprocess.PIPE, text=True
    ) as building:
        assert building.stderr is not None, "a pipe was asked for"
        # With the flag -v, the compiler prints each package that is compiled.
        for line in building.stderr:
            last.append(line)
            compiled += 1
            if time.monotonic() - reported > REPORT_SECONDS:
                reported = time.monotonic()
                _report(f"build {name}: {compiled} packages compiled after {reported - begun:.0f} s")
    if building.returncode:
        message = f"{name} could not be built:\n{''.join(last)}"
        raise EtcdNotBuilt(message)
    _report(f"built {name} in {time.monotonic() - begun:.0f} s")


def callers_variables() -> dict[str, str]:
    """Return the environment, with the authorities of the caller of the tests instead of the authority of the tests."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(CALLERS_PREFIX) and not value.startswith(TESTS)
    }
    named = {name: value for name, value in os.environ.items() if name.startswith(CALLERS_PREFIX)}
    return kept | {name.removeprefix(CALLERS_PREFIX): value for name, value in named.items()}


def _report(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def go() -> str:
    """Find a Go toolchain: the toolchain pinned in the environment, or else the machine's own.

    Raise `EtcdNotBuilt` if there is no toolchain.
    """
    beside_python = Path(sys.executable).with_name("go")
    found = next((path for path in (beside_python, Path("/usr/local/go/bin/go")) if path.exists()), None)
    program = str(found) if found else shutil.which("go")
    if program is None:
        message = "building from Go modules needs Go; run `make setup`"
        raise EtcdNotBuilt(message)
    return program
