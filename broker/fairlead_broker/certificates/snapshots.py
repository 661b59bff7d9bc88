"""Snapshots of checked TLS material, from which HTTP servers read the material.

`server` writes a snapshot for each server that it starts, and removes the snapshot when the server has stopped. A
server never reads the configured files directly, because they may change between the check and the read.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead_broker.certificates.material import Material

MEMORY_FOLDER: Final = Path("/dev/shm")  # noqa: S108 - a new folder inside it is accessible only to this user
"""File system in memory, so that a key is not written to a disk."""
PREFIX: Final = "fairlead-tls-"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Folder with files of checked material, accessible only to this user."""

    folder: Path
    has_client_ca: bool

    @classmethod
    def write(cls, material: Material) -> Snapshot:
        """Write the material into a new folder, and remove the folders of processes that no longer exist."""
        memory = MEMORY_FOLDER if os.access(MEMORY_FOLDER, os.W_OK | os.X_OK) else None
        if memory is not None:
            remove_left_over(memory)
        written = cls(
            Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=memory)),
            material.client_ca_pem is not None,
        )
        contents = {
            written.chain: material.chain_pem,
            written.key: material.key_pem,
            written.client_ca: material.client_ca_pem,
        }
        for file, content in contents.items():
            if file is not None and content is not None:
                file.touch(mode=0o600)
                file.write_bytes(content)
        return written

    @property
    def chain(self) -> Path:
        """File with the certificate and the intermediate certificates."""
        return self.folder / "chain.pem"

    @property
    def key(self) -> Path:
        """File with the key of the certificate."""
        return self.folder / "key.pem"

    @property
    def client_ca(self) -> Path | None:
        """File with the authorities whose clients may connect; None if clients need no certificate."""
        return self.folder / "client-ca.pem" if self.has_client_ca else None

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def remove_left_over(parent: Path) -> None:
    """Remove the snapshots of processes that ended without removing them, for example because they were killed."""
    for folder in parent.glob(f"{PREFIX}*"):
        process = folder.name.removeprefix(PREFIX).partition("-")[0]
        with suppress(PermissionError):
            try:
                os.kill(int(process), 0)
            except ProcessLookupError:
                shutil.rmtree(folder, ignore_errors=True)
