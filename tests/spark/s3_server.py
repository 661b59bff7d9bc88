"""A real S3 server on a folder: the Versity gateway, built once from its Go module and kept in the user's cache.

The server supports conditional writes, which make Delta's log safe on an object store. To update the gateway, change
the version in `s3_go/go.mod` and run `go mod tidy` in that folder.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

import etcd_build
from etcd_cluster import free_ports

MODULE = Path(__file__).with_name("s3_go")
PACKAGE = "github.com/versity/versitygw/cmd/versitygw"
BUCKET = "lake"
ACCESS_KEY, SECRET_KEY = "fairlead", "fairlead-secret"
STARTED_SECONDS_MAX = 60.0
PAUSE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class S3Server:
    """A server with one empty bucket."""

    url: str
    folder: Path
    """Folder that contains the objects of the bucket as files."""

    @property
    def options(self) -> dict[str, str]:
        """Return the storage options for deltalake."""
        return {
            "aws_access_key_id": ACCESS_KEY,
            "aws_secret_access_key": SECRET_KEY,
            "aws_region": "us-east-1",
            "aws_endpoint_url": self.url,
            "aws_allow_http": "true",
        }


def gateway() -> Path:
    """Return the program, after building it if it is missing."""
    return etcd_build.built("s3", MODULE, {"versitygw": PACKAGE}) / "versitygw"


@contextmanager
def running_s3(folder: Path) -> Iterator[S3Server]:
    """Run a server on a free port with its objects in a folder."""
    bucket = folder / "objects" / BUCKET
    bucket.mkdir(parents=True)
    # Neither an outgoing connection nor another test takes the port while the program is built and starts.
    port = next(free_ports())
    command = [str(gateway()), "--port", f"127.0.0.1:{port}", "--quiet", "posix", str(bucket.parent)]
    environment = {**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    with (folder / "s3.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            wait_for(process, port)
            yield S3Server(f"http://127.0.0.1:{port}", bucket)
        finally:
            process.terminate()
            process.wait()


def wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    """Wait until the server accepts connections; the server does not report when it listens."""
    for _ in range(int(STARTED_SECONDS_MAX / PAUSE_SECONDS)):
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        with suppress(subprocess.TimeoutExpired):
            pytest.fail(f"the S3 server ended with {process.wait(PAUSE_SECONDS)}")
    pytest.fail(f"the S3 server is not up after {STARTED_SECONDS_MAX} s")
