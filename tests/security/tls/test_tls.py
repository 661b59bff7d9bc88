"""Clients with TLS: the SDK and the command line, changed files, and connections that are refused."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID

from certificate_kit import Authority
from fairlead import Admin, Consumer, Producer, clock
from fairlead.connection.pool import LOOK_SECONDS
from fairlead.errors import DeliveryTimeoutError, UnreachableError
from fairlead_broker.clock import SystemClock
from fairlead_broker.settings import BrokerSettings, Endpoint
from fairlead_broker.stop_preparation import StopPreparation
from fairlead_broker.wiring.start import RunningBroker, start_broker
from refusals import raises

FREE = "127.0.0.1:0"


async def test_records_pass_through_tls(broker: RunningBroker, tls: Path) -> None:
    """A producer and a group's consumer that trust the authority write and read records over TLS."""
    bootstrap, ca = f"https://{broker.addresses.data_tls}", tls / "ca.crt"
    async with Admin(bootstrap, ca_file=ca) as admin:
        await admin.create_topic("flights", partitions=3)
        addresses = [each.address for each in await admin.brokers()]
        certificates = (await admin.security_status()).certificates
    async with Producer(bootstrap, ca_file=ca) as producer:
        for number in range(100):
            await producer.send("flights", b"%d" % number, key=b"%d" % (number % 7))
    read = set()
    async with Consumer(bootstrap, group="delays", topics="flights", ca_file=ca) as consumer:
        async for record in consumer.records():
            read.add(record.value)
            if len(read) == 100:
                break

    assert addresses == [bootstrap]
    authority = x509.load_pem_x509_certificate(ca.read_bytes()).fingerprint(SHA256()).hex()
    assert [(each.listener, each.in_use, each.authorities_sha256) for each in certificates] == [
        ("data", True, [authority]),
        ("peer", True, [authority]),
    ]
    assert broker.addresses.data is None
    assert read == {b"%d" % number for number in range(100)}


@pytest.mark.parametrize(
    ("bootstrap", "ca", "named"),
    [
        ("https", False, "UnknownIssuer"),
        ("http", True, "https"),
    ],
)
async def test_a_wrong_way_to_call_is_explained(
    bootstrap: str, ca: bool, named: str, broker: RunningBroker, tls: Path
) -> None:
    """A client that does not trust the authority, or calls without TLS, gets an error with the reason."""
    address = f"{bootstrap}://{broker.addresses.data_tls}"
    async with Admin(address, ca_file=tls / "ca.crt" if ca else None, retry_timeout="1s") as admin:
        with raises(UnreachableError, named):
            await admin.list_topics()


async def test_a_listener_with_an_authority_of_clients_wants_certificates(
    authority: Authority, tls: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With `client_ca`, a client needs a certificate; the error without a certificate names the setting (rule C5).

    A broker's certificate, which an authority in `peer_tls` has signed, is also accepted; the stop hook uses this
    certificate.
    """
    brokers = Authority.make()
    peer = brokers.issue().write(tmp_path / "peer", brokers)
    given = {"listen": FREE, "peer_listen": FREE, "ops_listen": FREE, "tls": tls, "client_ca": tls / "ca.crt"}
    given |= {"peer_tls": peer}
    broker = await start_broker(BrokerSettings.load({"data": tmp_path / "data", **given}))
    own = authority.issue([], uses=[ExtendedKeyUsageOID.CLIENT_AUTH]).write(tmp_path / "own", authority)
    bootstrap, ca = f"https://{broker.addresses.data_tls}", tls / "ca.crt"
    try:
        for folder in (own, peer):
            files = {"client_cert_file": folder / "tls.crt", "client_key_file": folder / "tls.key"}
            async with Admin(bootstrap, ca_file=ca, **files) as admin:
                assert await admin.list_topics() == []
        async with Admin(bootstrap, ca_file=ca, retry_timeout="1s") as admin:
            with raises(UnreachableError, "client_cert_file"):
                await admin.list_topics()
        listen = Endpoint.parse_listener(bootstrap)
        hook = StopPreparation(0, listen, SystemClock(), float, print, tls, None, peer)
        await asyncio.to_thread(hook.run, 0.0)
        assert "no answer" not in capsys.readouterr().out
    finally:
        await broker.stop()


async def test_a_client_learns_addresses_of_its_own_scheme(tls: Path, tmp_path: Path) -> None:
    """A client gets addresses with its own scheme; calls of each scheme are counted (rules T2, T3)."""
    given = {"listen": f"http://{FREE},https://{FREE}", "peer_listen": FREE, "ops_listen": FREE, "tls": tls}
    broker = await start_broker(BrokerSettings.load({"data": tmp_path / "data", **given}))
    plain, secure = f"http://{broker.addresses.data}", f"https://{broker.addresses.data_tls}"
    try:
        for bootstrap in (plain, secure):
            async with Admin(bootstrap, ca_file=tls / "ca.crt") as admin:
                assert [each.address for each in await admin.brokers()] == [bootstrap]
                assert [each.address for each in (await admin.metadata()).brokers] == [bootstrap]
        requests = {
            scheme: broker.broker.telemetry.registry.get_sample_value(
                "fairlead_requests_total", {"scheme": scheme}
            )
            for scheme in ("http", "https")
        }
        assert min(requests.values()) >= 2
    finally:
        await broker.stop()


@asynccontextmanager
async def proxy_with_tls(address: str, tls: Path) -> AsyncIterator[str]:
    """Run a proxy that terminates TLS in front of a listener without TLS, and yield its address."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tls / "tls.crt", tls / "tls.key")
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy the bytes of one direction."""
        while received := await reader.read(1 << 16):
            writer.write(received)
            await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect a client to the listener."""
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer), return_exceptions=True)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield "https://{}:{}".format(*server.sockets[0].getsockname())
    finally:
        server.close()


async def test_a_client_with_tls_calls_no_address_without_tls(tls: Path, tmp_path: Path) -> None:
    """A client that called with TLS sends no record to an address without TLS, even if a broker names it (rule C3)."""
    given = {"listen": FREE, "peer_listen": FREE, "ops_listen": FREE}
    broker = await start_broker(BrokerSettings.load({"data": tmp_path / "data", **given}))
    plain, ca = str(broker.addresses.data), tls / "ca.crt"
    try:
        async with proxy_with_tls(plain, tls) as secure:
            async with Admin(secure, ca_file=ca) as admin:
                await admin.create_topic("flights", partitions=1)
                named = [each.address for each in (await admin.metadata()).brokers]
            async with Producer(secure, ca_file=ca, delivery_timeout="1s") as producer:
                with pytest.raises(DeliveryTimeoutError):
                    await producer.send_and_wait("flights", b"refused")
            async with Producer(secure, ca_file=ca, one_address=True) as producer:
                stored = await producer.send_and_wait("flights", b"stored")
    finally:
        await broker.stop()

    assert named == [f"http://{plain}"]
    assert stored.offset == 0


@pytest.mark.parametrize(("tls_min", "served"), [("1.3", []), ("1.2", ["data", "ops"])])
async def test_only_tls_1_3_is_spoken_unless_a_setting_says_otherwise(
    tls: Path, tmp_path: Path, tls_min: str, served: list[str]
) -> None:
    """A client that offers at most TLS 1.2 is refused by the peer listener, and by default by all (rules T1, T5)."""
    given = {"listen": FREE, "peer_listen": FREE, "ops_listen": FREE, "tls": tls, "tls_min": tls_min}
    broker = await start_broker(BrokerSettings.load({"data": tmp_path / "data", **given}))
    addresses = {
        "data": broker.addresses.data_tls, "ops": broker.addresses.ops, "peer": broker.addresses.peer
    }  # fmt: skip
    context = ssl.create_default_context(cafile=tls / "ca.crt")
    # The peer listener asks for a certificate after the handshake of the server.
    context.load_cert_chain(tls / "tls.crt", tls / "tls.key")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    found = []
    try:
        for name, address in addresses.items():
            host, _, port = str(address).rpartition(":")
            try:
                _, writer = await asyncio.open_connection(host, int(port), ssl=context)
            except (ssl.SSLError, ConnectionError):
                continue
            found.append(name)
            writer.transport.abort()
    finally:
        await broker.stop()

    assert found == served


async def test_a_client_changes_to_new_files_by_itself(
    authority: Authority,
    broker: RunningBroker,
    tls: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client whose files change uses the new files for its next connections, without a restart."""
    ca = tmp_path / "known.crt"
    ca.write_bytes(Authority.make("Stranger").pem)
    monotonic = clock.monotonic
    async with Admin(f"https://{broker.addresses.data_tls}", ca_file=ca, retry_timeout="1ms") as admin:
        with raises(UnreachableError, "UnknownIssuer"):
            await admin.list_topics()
        ca.write_bytes(authority.pem)
        monkeypatch.setattr(clock, "monotonic", lambda: monotonic() + LOOK_SECONDS)

        assert await admin.list_topics() == []
