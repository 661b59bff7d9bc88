"""Changed TLS files of a client: files that cannot be used, and files that can be used later (rule C2)."""

from __future__ import annotations

import logging
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest  # noqa: TC002

from certificate_kit import Authority
from fairlead.connection import pool
from fairlead.connection.pool import ConnectionPool
from fairlead.settings import ConnectionSettings
from fairlead.tls_files import TlsFiles


@contextmanager
def no_free_descriptors() -> Iterator[None]:
    """Let the process open no more files during the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_changed_files_are_read_again_until_they_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that cannot read a changed file keeps its connections, warns once, and uses the file at a later check.

    Text that is not a certificate, and a process without free descriptors, are faults of this kind.
    """
    monkeypatch.setattr(pool, "LOOK_SECONDS", 0.0)
    ca = tmp_path / "ca.crt"
    ca.write_bytes(Authority.make().pem)
    settings = ConnectionSettings(bootstrap=("https://127.0.0.1:1",), tls=TlsFiles(ca))
    connections = ConnectionPool(settings)

    def client() -> object:
        with connections.client() as found:
            return found

    with caplog.at_level(logging.WARNING, "fairlead.connection"):
        used = [client()]
        ca.write_bytes(b"not a certificate")
        used += [client(), client()]
        ca.write_bytes(Authority.make("Later").pem)
        with no_free_descriptors():
            used.append(client())
        used += [client(), client()]
    await connections.close()

    assert [each is used[0] for each in used] == [True] * 4 + [False] * 2
    assert used[4] is used[5]
    assert len(caplog.records) == 2
