"""Changed certificates that a listener cannot use immediately."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from certificate_kit import Authority
from fairlead_broker.certificates.material import Material, Side
from fairlead_broker.certificates.watching import Certificates, Source
from fairlead_broker.clock import SystemClock
from fairlead_broker.peers.peers import tls_fault
from fairlead_broker.telemetry import Telemetry


async def test_a_certificate_is_tried_again_when_descriptors_are_free(tmp_path: Path) -> None:
    """A listener that lacks descriptors for a new certificate keeps the previous one, and loads the new one later."""
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
