"""Clients with certificates that were changed after they were signed, in real handshakes (proof V5)."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.serialization import Encoding

from certificate_kit import Authority, Issued
from fairlead_broker.settings import BrokerSettings
from fairlead_broker.wiring.start import start_broker
from figures import record

if TYPE_CHECKING:
    import pytest

FREE = "127.0.0.1:0"
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def changed(der: bytes, chance: random.Random) -> bytes:
    """Return a certificate with one to three changed bytes."""
    made = bytearray(der)
    for place in chance.sample(range(len(made)), chance.randint(1, 3)):
        made[place] ^= chance.randrange(1, 256)
    return bytes(made)


def context_of(folder: Path, own: Issued, der: bytes) -> ssl.SSLContext | None:
    """Return the context of a client with a certificate, or None if OpenSSL cannot present the certificate."""
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.check_hostname = False
    file, key = folder / "changed.crt", folder / "changed.key"
    file.write_text(ssl.DER_cert_to_PEM_cert(der))
    key.write_bytes(own.key_pem)
    try:
        context.load_cert_chain(file, key)
    except (ssl.SSLError, ValueError):
        return None
    return context


async def is_answered(port: int, context: ssl.SSLContext) -> bool:
    """Return whether a listener answers a client."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(REQUEST)
        answer = await reader.read(1)
        writer.transport.abort()
    except (OSError, ssl.SSLError):
        return False
    return answer != b""


async def test_no_changed_certificate_is_accepted(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The listeners that require certificates answer the owner of a certificate, and no client with a changed one."""
    wanted = 5_000 if request.config.getoption("--hypothesis-profile") == "prove" else 200
    authority, chance, counts = Authority.make(), random.Random(22), Counter[str]()
    tls, own = authority.issue().write(tmp_path / "tls", authority), authority.issue()
    settings = {"data": tmp_path / "data", "listen": FREE, "peer_listen": FREE, "ops_listen": FREE}
    broker = await start_broker(BrokerSettings.load(settings | {"tls": tls, "client_ca": tls / "ca.crt"}))
    try:
        addresses = (broker.addresses.data_tls, broker.addresses.peer)
        ports = [int(str(each).rpartition(":")[2]) for each in addresses]
        der = own.certificate.public_bytes(Encoding.DER)
        valid = context_of(tls, own, der)
        assert valid is not None
        assert [await is_answered(port, valid) for port in ports] == [True, True]
        while counts["presented"] < wanted:
            context = context_of(tls, own, changed(der, chance))
            if context is None:
                counts["not_presentable"] += 1
                continue
            counts["presented"] += 1
            counts["accepted"] += await is_answered(ports[counts["presented"] % 2], context)
    finally:
        await broker.stop()
    record("changed certificates of clients", dict(counts))

    assert counts["accepted"] == 0
