"""NATS JetStream as a peer: a server that is built from Go modules, with one node and file storage.

The cases that measure NATS use this module. An acknowledged message has been written to a file and is in the page
cache, as with Kafka and with Fairlead's `durability=replicated`. The server syncs its files every two minutes, which is
its default.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from peers.brokers import HERE, PeerProcess, free_port, wait_for_port

sys.path.insert(0, str(HERE.parent / "tests" / "etcd"))

from etcd_build import build

MODULE = HERE / "peers/nats_server"
PACKAGE = "github.com/nats-io/nats-server/v2"
SUBJECT_PREFIX = "bench"


def fetch_nats(cache: Path) -> Path:
    """Return the server program; build it into `cache` unless it was already built for the current `go.sum`."""
    number = hashlib.sha256((MODULE / "go.sum").read_bytes()).hexdigest()[:16]
    program = cache / f"nats-server-{number}"
    if not program.exists():
        build(PACKAGE, program, MODULE)
    return program


@dataclass(slots=True)
class NatsPeer(PeerProcess):
    """Process of a `nats-server` with JetStream, whose data is in the folder of the run."""

    url: str = ""

    @classmethod
    def start(cls, folder: Path, program: Path) -> NatsPeer:
        """Start a server with its data under `folder`, and wait until the server listens."""
        data, log, port = folder / "nats", folder / "nats.log", free_port()
        data.mkdir(parents=True)
        settings = folder / "nats.conf"
        settings.write_text(
            f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{data}", sync_interval: "2m" }}\n',
            encoding="ascii",
        )
        began = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen([str(program), "-c", str(settings)], stdout=output, stderr=output)
        wait_for_port(port, process, log)
        taken = time.monotonic() - began
        return cls("nats", data, process, log, url=f"nats://127.0.0.1:{port}", start_seconds=taken)
