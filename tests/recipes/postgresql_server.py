"""A PostgreSQL server for one test: in a temporary folder, on a Unix socket, stopped by its process id."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psycopg

DEBIAN_PROGRAMS: Final = Path("/usr/lib/postgresql")
USER: Final = "fairlead"
DATABASE: Final = "shop"


@contextmanager
def postgresql_server() -> Iterator[dict[str, str]]:
    """Run a server with one empty database; yield the environment for libpq."""
    folder = Path(tempfile.mkdtemp(prefix="fairlead-postgresql-"))
    try:
        _give_away(folder)
        data = str(folder / "data")
        # The server does not sync, because tests of its clients do not crash the machine.
        _run(folder, "initdb", "-D", data, "-A", "trust", "-U", USER, "-E", "UTF8", "--locale=C", "--no-sync")
        options = f"-k {folder} -c listen_addresses= -c fsync=off"
        _run(folder, "pg_ctl", "start", "-w", "-D", data, "-l", str(folder / "log"), "-o", options)
        try:
            with psycopg.connect(f"host={folder} user={USER} dbname=postgres", autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {DATABASE}")
            yield {"PGHOST": str(folder), "PGUSER": USER}
        finally:
            _run(folder, "pg_ctl", "stop", "-w", "-D", data, "-m", "immediate")
    finally:
        shutil.rmtree(folder)


def _run(folder: Path, program: str, *arguments: str) -> None:
    done = subprocess.run(
        [_program(program), *arguments],
        cwd=folder,
        user=_server_user(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        message = f"{program} ended with {done.returncode}: {done.stderr}"
        raise RuntimeError(message)


def _program(name: str) -> str:
    """Return the path of a program, which Debian keeps in a folder for each version, outside PATH."""
    versions = sorted(DEBIAN_PROGRAMS.glob("*/bin"), key=lambda each: float(each.parent.name))
    for folder in reversed(versions):
        if (folder / name).exists():
            return str(folder / name)
    found = shutil.which(name)
    if found is None:
        message = f"{name} of PostgreSQL is missing; `make setup` installs it"
        raise FileNotFoundError(message)
    return found


def _server_user() -> str | None:
    """Return the user of the server, because PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _give_away(folder: Path) -> None:
    user = _server_user()
    if user is not None:
        shutil.chown(folder, user)
