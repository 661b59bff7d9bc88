"""Program of an EtcdBackup's pod, which stores one snapshot of etcd in a folder and removes the oldest snapshots.

    python -m fairlead_operator.etcd_snapshots --etcd URL,URL --into FOLDER --name NAME --keep NUMBER --result FILE \
        [--tls FOLDER]

A file gets its final name only after all its bytes are synced and its SHA-256 is verified, so no file with the name of
a snapshot is incomplete. The result file contains the snapshot as one JSON object, or the reason for a failure.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import ssl
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Final

from fairlead_operator.clock import SystemClock
from fairlead_operator.etcd_members import EtcdError
from fairlead_operator.etcd_members.snapshots import revision_of, stream_snapshot
from fairlead_operator.etcd_members.tls import context_of

HASH_BYTES: Final = 32
"""Size of the SHA-256 at the end of a snapshot."""


class SnapshotFailed(Exception):
    """No member sent a whole snapshot, or the snapshot cannot be stored. The message contains the reason."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot on the disk."""

    file: str
    """Name of the file in its folder."""
    time: str
    """Start time of the snapshot, in Kubernetes' format."""
    bytes: int
    revision: int
    """Revision of etcd's store before the snapshot; the snapshot has at least the changes up to this revision."""
    sha256: str
    """SHA-256 that ends the snapshot, in hexadecimal."""

    def text(self) -> str:
        """Return the snapshot as one JSON object."""
        return json.dumps(asdict(self))


def main(arguments: Sequence[str]) -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--etcd", required=True, help="client addresses of members, tried in order")
    parser.add_argument("--into", type=Path, required=True, help="existing folder for the snapshots")
    parser.add_argument("--name", required=True, help="prefix of the file names")
    parser.add_argument("--keep", type=int, required=True, help="number of snapshots of this name to keep")
    parser.add_argument("--result", type=Path, required=True, help="file for the result")
    parser.add_argument("--tls", type=Path, help="folder with ca.crt, tls.crt and tls.key for calls to etcd")
    given = parser.parse_args(arguments)
    snapshot = take_snapshot(
        given.etcd.split(","), given.into, given.name, given.keep, SystemClock().now(), given.tls
    )
    try:
        text, code = asyncio.run(snapshot).text(), 0
    except SnapshotFailed as failure:
        text, code = str(failure), 1
    given.result.write_text(text, encoding="utf-8")
    print(text, file=sys.stderr if code else sys.stdout)
    return code


async def take_snapshot(
    urls: Sequence[str], folder: Path, name: str, keep: int, now: datetime, tls: Path | None = None
) -> Snapshot:
    """Store a snapshot from the first member that can send one, and keep the newest `keep` snapshots of this name.

    `tls` is the folder with the certificates for calls to etcd; None for an etcd without TLS.

    Raises `SnapshotFailed`.
    """
    failures = list[str]()
    context = None if tls is None else await asyncio.to_thread(context_of, tls)
    for url in urls:
        try:
            made = await _store(url, folder, name, now, context)
        except EtcdError as error:
            failures.append(str(error))
        except OSError as error:
            said = f"{folder}: {error}"
            raise SnapshotFailed(said) from error
        else:
            await asyncio.to_thread(_prune, folder, name, keep)
            return made
    raise SnapshotFailed("; ".join(failures))


async def _store(url: str, folder: Path, name: str, now: datetime, tls: ssl.SSLContext | None) -> Snapshot:
    revision = await revision_of(url, tls)
    path = folder / f"{name}-{now:%Y%m%dT%H%M%SZ}.db"
    partial = path.with_suffix(".partial")
    digest, tail, size = hashlib.sha256(), b"", 0
    try:
        with partial.open("wb") as file:
            async for part in stream_snapshot(url, tls):
                await asyncio.to_thread(file.write, part)
                size += len(part)
                tail += part
                digest.update(tail[:-HASH_BYTES])
                tail = tail[-HASH_BYTES:]
            await asyncio.to_thread(_sync, file)
        if digest.digest() != tail:
            said = f"the snapshot of {url} does not end with the SHA-256 of its {size} bytes"
            raise SnapshotFailed(said)
        await asyncio.to_thread(_publish, partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return Snapshot(path.name, f"{now:%Y-%m-%dT%H:%M:%SZ}", size, revision, tail.hex())


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _publish(partial: Path, path: Path) -> None:
    """Give a file its final name, so that the name survives a loss of power."""
    partial.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _prune(folder: Path, name: str, keep: int) -> None:
    """Remove the oldest snapshots of a name, and incomplete files of interrupted attempts."""
    # The names sort by time.
    for old in sorted(folder.glob(f"{name}-????????T??????Z.db"))[:-keep]:
        old.unlink(missing_ok=True)
    for left in folder.glob(f"{name}-????????T??????Z.partial"):
        left.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
