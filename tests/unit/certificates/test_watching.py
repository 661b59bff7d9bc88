"""Changed certificates that a listener cannot use immediately."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from certificate_kit import Authority
from fairlead_broker.certificates.material import Material, MaterialRefused, Side
from fairlead_broker.certificates.watching import Certificates, Source, checked
from fairlead_broker.clock import SystemClock
from fairlead_broker.peers.peers import tls_fault
from fairlead_broker.telemetry import Telemetry


async def test_a_certificate_is_tried_again_when_descriptors_are_free(tmp_path: Path) -> None:
    """A listener without free file descriptors keeps the previous certificate, and loads the new one later."""
    authority = Authority.make()
    first, second = authority.issue(), authority.issue()
    source = Source(Side.OPS, first.write(tmp_path, authority), ("localhost",))
    certificates, used = Certificates([source], SystemClock(), Telemetry(), tls_fault), []
    certificates.load()
    errors = [OSError(errno.EMFILE, os.strerror(errno.EMFILE))]

    async def use(_: Side, material: Material) -> None:
        if errors:
            raise errors.pop()
        used.append(material.facts.certificate_sha256)

    certificates.subscribe(use)
    second.write(tmp_path, authority)
    await certificates._look_at(Side.OPS, source)
    during = certificates.materials[Side.OPS].facts.certificate_sha256
    await certificates._look_at(Side.OPS, source)

    assert during == first.sha256
    assert used == [certificates.materials[Side.OPS].facts.certificate_sha256] == [second.sha256]


@pytest.mark.parametrize("file", ["tls.crt", "ca.crt", "clients.crt"])
def test_a_certificate_that_tls_refuses_is_refused_by_name(tmp_path: Path, file: str) -> None:
    """A file that only the TLS library refuses is refused, and the error names the file."""
    authority, other, clients = Authority.make(), Authority.make("Other"), Authority.make("Clients")
    issued = authority.issue()
    (tmp_path / "clients.crt").write_bytes(clients.pem)
    source = Source(
        Side.DATA, issued.write(tmp_path, authority, other), ("localhost",), (tmp_path / "clients.crt",)
    )
    bad = {"tls.crt": issued.pem, "ca.crt": other.pem, "clients.crt": clients.pem}[file]

    def fault(authorities: bytes | None, identity: bytes | None) -> str | None:
        return "wrong" if bad in (authorities or b"") + (identity or b"") else None

    with pytest.raises(MaterialRefused) as refused:
        checked(source, SystemClock().now_us(), fault)

    assert refused.value.file == tmp_path / file
