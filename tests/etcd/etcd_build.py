"""Builds of etcd and etcdctl from Go modules, once for each of their releases, and the command of a member.

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
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MODULE = Path(__file__).parent / "go"
PACKAGES = {"etcd": "go.etcd.io/etcd/server/v3", "etcdctl": "go.etcd.io/etcd/etcdctl/v3"}


class EtcdNotBuilt(Exception):
    """etcd is not available; the message names the missing part."""


@dataclass(frozen=True, slots=True)
class EtcdBinaries:
    """Paths of the programs."""

    etcd: Path
    etcdctl: Path


@cache
def etcd_binaries() -> EtcdBinaries:
    """Return the programs, after building missing ones. Raise `EtcdNotBuilt` if that fails."""
    folder = built("etcd", MODULE, PACKAGES)
    return EtcdBinaries(folder / "etcd", folder / "etcdctl")


def built(name: str, module: Path, packages: Mapping[str, str]) -> Path:
    """Return the folder of programs built from a module, in the cache under `name`, after building the missing ones.

    One process builds and others wait for it. Raise `EtcdNotBuilt` if that fails.
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
    """Return the command that runs a member in the foreground, alone unless `initial_cluster` names others.

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
    """Return a folder outside the checkout, so that it outlives the checkout."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairlead" / "etcd"


def build(package: str, target: Path, module: Path) -> None:
    """Compile one program of a Go module's tools, and create its file atomically.

    Raise `EtcdNotBuilt` if that fails.
    """
    made = target.with_suffix(f".{os.getpid()}")
    command = [
        go(),
        "build",
        "-p",
        "1",
        "-trimpath",
        "-buildvcs=false",
        "-ldflags=-s -w",
        "-o",
        str(made),
        package,
    ]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOTOOLCHAIN": "local"}
    done = subprocess.run(command, cwd=module, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"{package} could not be built:\n{done.stderr}"
        raise EtcdNotBuilt(message)
    made.rename(target)


def go() -> str:
    """Find a Go toolchain: the pinned one of the environment, or the machine's own.

    Raise `EtcdNotBuilt` if there is none.
    """
    beside_python = Path(sys.executable).with_name("go")
    found = next((path for path in (beside_python, Path("/usr/local/go/bin/go")) if path.exists()), None)
    program = str(found) if found else shutil.which("go")
    if program is None:
        message = "building from Go modules needs Go; run `make setup`"
        raise EtcdNotBuilt(message)
    return program
