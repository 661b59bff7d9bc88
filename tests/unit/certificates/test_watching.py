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
    """A listener without free file descriptors keeps the previous certificate, and loads the new one later (rule T7).

    A certificate is in use, and is reported to the cluster, only after the listener has loaded it.
    """
    authority = Authority.make()
    first, second = authority.issue(), authority.issue()
    source = Source(Side.OPS, first.write(tmp_path, authority), ("localhost",))
    certificates = Certificates([source], SystemClock(), Telemetry(), tls_fault)
    certificates.load()
    errors, events = [OSError(errno.EMFILE, os.strerror(errno.EMFILE))], list[tuple[str, str, str]]()

    def note(event: str, material: Material) -> None:
        shown = certificates.materials[Side.OPS].facts.certificate_sha256
        events.append((event, material.facts.certificate_sha256, shown))

    async def load(_: Side, material: Material) -> None:
        if errors:
            raise errors.pop()
        note("loaded", material)

    certificates.subscribe(load, lambda _, material: note("reported", material))
    second.write(tmp_path, authority)
    await certificates._look_at(Side.OPS, source)
    during = certificates.materials[Side.OPS].facts.certificate_sha256
    failed = list(events)
    await certificates._look_at(Side.OPS, source)

    assert (during, failed) == (first.sha256, [])
    # A certificate counts as used only when the listener has loaded it.
    assert events == [
        ("loaded", second.sha256, first.sha256),
        ("reported", second.sha256, second.sha256),
    ]


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
