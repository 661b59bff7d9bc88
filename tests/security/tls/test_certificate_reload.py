"""Certificates that change while brokers serve: no request fails, and files that cannot be used change nothing."""

from __future__ import annotations

import asyncio
import base64
import gc
import hashlib
import os
import ssl
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from audit_kit import Lines
from broker_kit import Calls
from certificate_kit import Authority, Issued
from fairlead import Admin, Consumer, Producer, clock
from fairlead_api.audit_events import AuditEvent
from fairlead_broker.certificates.snapshots import MEMORY_FOLDER, PREFIX
from fairlead_broker.settings import BrokerSettings
from fairlead_broker.wiring.start import LocalCluster, RunningBroker, start_local_cluster
from figures import record
from waiting import pause, until

FREE = "127.0.0.1:0"
POOLS = ("asyncio_", "disk-", "opening-", "sync")
"""Beginnings of the names of threads in pools."""
SLOWEST_SECONDS_MAX = 0.25
BASELINE_FACTOR = 1.5
"""Factor for the slowest call, against the slowest call in equally long times without replacements, on a machine on
which even the latter exceeds the limit: brokers and clients share one process and two processors.
"""
BLOCK = 12
"""Number of replacements between two times without replacements."""


async def shown(address: str | None, ca: Path, client: Path | None = None) -> str:
    """Return the SHA-256 of the certificate that a new connection to an address receives."""
    assert address is not None
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=ca)
    if client is not None:
        context.load_cert_chain(client / "tls.crt", client / "tls.key")
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    try:
        found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.transport.abort()
    return hashlib.sha256(found).hexdigest()


@asynccontextmanager
async def cluster(tls: Path, tmp_path: Path) -> AsyncIterator[LocalCluster]:
    """Run three brokers that share one folder with a certificate."""
    settings = [
        BrokerSettings.load(
            {
                "id": number, "data": tmp_path / f"broker-{number}", "tls": tls,
                "listen": FREE, "peer_listen": FREE, "ops_listen": FREE,
            }
        )
        for number in range(3)
    ]  # fmt: skip
    running = await start_local_cluster(settings, tmp_path / "store.sqlite")
    try:
        yield running
    finally:
        await running.stop()


def resources() -> tuple[int, int]:
    """Return the numbers of threads and open files of this process, which runs the brokers and clients.

    The threads of pools are left out, because their number depends on the load. The objects of earlier listeners refer
    to each other, and free their descriptors when they are collected.
    """
    gc.collect()
    threads = [each for each in threading.enumerate() if not each.name.startswith(POOLS)]
    return len(threads), len(list(Path("/proc/self/fd").iterdir()))


def leaves(broker: RunningBroker) -> set[tuple[str, str]]:
    """Return the certificates that all brokers have registered, as this broker knows them."""
    found = broker.broker.metadata.brokers.values()
    return {
        (each.value.tls.certificate_sha256, each.value.peer_tls.certificate_sha256)
        for each in found
        if each.value.tls is not None and each.value.peer_tls is not None
    }


@dataclass
class Traffic:
    """Producers, a tail and a member of a group, which run until `done` is set."""

    bootstrap: str
    bundle: Path
    sent: list[bytes] = field(default_factory=list)
    read: list[bytes] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"quiet": [], "replacing": []})
    """Latencies of sends, by the name of the time in which each send began."""
    now: str = "replacing"
    """Name of the current time."""
    under_way: Counter[str] = field(default_factory=Counter)
    """Number of sends that have begun in a time and have not ended."""
    tailed: int = 0
    """Number of lines that the tail has read."""

    async def produce(self, producer: Producer, number: int) -> None:
        """Send records one by one, at most twenty per second."""
        while not self.done.is_set():
            value, now, begun = b"%d-%d" % (number, len(self.sent)), self.now, clock.monotonic()
            self.under_way[now] += 1
            await producer.send_and_wait("flights", value)
            self.under_way[now] -= 1
            self.seconds.setdefault(now, []).append(clock.monotonic() - begun)
            self.sent.append(value)
            await pause(0.05)

    async def be_quiet(self, seconds: float) -> None:
        """Send without replacements for a time, and then begin the time of replacements."""
        if seconds:
            self.now = "quiet"
            await pause(seconds)
        self.now = "replacing"

    async def end_replacing(self) -> None:
        """End the time of replacements, and wait until its sends have ended.

        `resources` may then stop the process to collect its garbage, without an effect on the judged latencies.
        """
        self.now = "ending"
        await until(lambda: not self.under_way["replacing"], seconds=30)

    def milliseconds(self, now: str) -> dict[str, float]:
        """Return the number, the high percentiles and the maximum of the latencies in one kind of time."""
        taken = sorted(self.seconds[now])
        percentiles = {f"p{share}_ms": taken[int(len(taken) * share / 100)] for share in (50, 99, 99.9)}
        figures = {
            name: round(each * 1000, 1) for name, each in {**percentiles, "slowest_ms": taken[-1]}.items()
        }
        return {"sends": len(taken), **figures}

    def outcome(self) -> dict[str, Any]:
        """Return the counts of records, and the latencies in each kind of time."""
        lost = len(set(self.sent) - set(self.read))
        return {
            "acknowledged": len(self.sent),
            "lost": lost,
            "twice": len(self.read) + lost - len(self.sent),
            "tailed": self.tailed,
            **{now: self.milliseconds(now) for now in ("quiet", "replacing") if self.seconds[now]},
        }

    async def tail(self) -> None:
        """Tail the topic repeatedly for a second."""
        async with Calls(self.bootstrap.removeprefix("https://"), self.bundle.read_bytes()) as calls:
            while not self.done.is_set():
                answer = await calls.call("GET", "/v1/topics/flights/records?max_seconds=1")
                assert answer.status == 200, answer
                self.tailed += len(answer.body.splitlines())

    async def consume(self) -> None:
        """Read the topic in a group, until cancelled."""
        async with Consumer(
            self.bootstrap, group="delays", topics="flights", ca_file=self.bundle
        ) as consumer:
            async for record in consumer.records():
                assert record.value is not None
                self.read.append(record.value)


def version_changed(pem: bytes) -> bytes:
    """Return a certificate whose version does not exist."""
    label, *lines, end = pem.strip().split(b"\n")
    der = base64.b64decode(b"".join(lines))
    changed = der.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x07", 1)
    return b"\n".join((label, base64.b64encode(changed), end, b""))


async def replace(running: LocalCluster, issued: Issued, bundle: Path, tls: Path) -> None:
    """Load the written certificate on all brokers, and check that every listener uses it."""
    running.look_at_certificates()
    # A replacement waits until the connections of the replacement before it have ended, which may take 75 seconds.
    await until(lambda: leaves(running.brokers[0]) == {(issued.sha256, issued.sha256)}, seconds=90)
    for broker in running.brokers:
        at = broker.addresses
        assert await shown(at.data_tls, bundle) == issued.sha256
        assert await shown(at.ops, bundle) == issued.sha256
        assert await shown(at.peer, bundle, tls) == issued.sha256


@pytest.mark.slow
@pytest.mark.parametrize(
    ("renewals", "seconds"),
    [(2, 0.0), pytest.param(120, 5.0, marks=[pytest.mark.scenario, pytest.mark.timeout(3000)])],
)
async def test_no_call_fails_while_certificates_are_replaced(
    authority: Authority, tls: Path, tmp_path: Path, renewals: int, seconds: float
) -> None:
    """Producers, a polling group, tails and replication continue while all listeners change certificates.

    The replacements also change the authority, while every broker and client accepts both authorities. The long form
    of the test replaces the certificates every five seconds for ten minutes, and afterwards there are no more threads
    and descriptors than in the middle of the test (rules T8, T9, proof V9). Each minute of replacements follows an
    equally long time without any. The slowest send takes less than 250 ms, or on a machine that is slower by itself,
    not much longer than the slowest send without replacements.
    """
    later = Authority.make("Later authority")
    authority.issue().write(tls, authority, later)
    bundle = tmp_path / "bundle.crt"
    bundle.write_bytes(authority.pem + later.pem)
    async with cluster(tls, tmp_path) as running:
        traffic = Traffic(f"https://{running.brokers[0].addresses.data_tls}", bundle)
        sent = traffic.sent
        async with Admin(traffic.bootstrap, ca_file=bundle) as admin:
            await admin.create_topic("flights", partitions=6, replication_factor=3)
        async with (
            Producer(traffic.bootstrap, ca_file=bundle, linger_ms=0, retries_max=0, acks="all") as producer,
            asyncio.TaskGroup() as tasks,
        ):
            consuming = tasks.create_task(traffic.consume())
            running_calls = [tasks.create_task(traffic.produce(producer, number)) for number in range(5)]
            running_calls.append(tasks.create_task(traffic.tail()))
            held = (0, 0)
            for renewal in range(renewals):
                if renewal % BLOCK == 0:
                    await traffic.be_quiet(BLOCK * seconds)
                before = len(sent)
                issued = (authority if renewal % 2 else later).issue()
                issued.write(tls, authority, later)
                await replace(running, issued, bundle, tls)
                await until(lambda before=before: len(sent) > before + 20, seconds=30)
                if renewal == max(1, (renewals - 1) // 2):
                    await traffic.end_replacing()
                    held = resources()
                    traffic.now = "replacing"
                await pause(seconds)
            await traffic.end_replacing()
            # Connections with previous certificates are closed within a minute.
            await until(
                lambda: all(now <= then for now, then in zip(resources(), held, strict=True)), seconds=90
            )
            traffic.done.set()
            await asyncio.wait(running_calls)
            await until(lambda: len(traffic.read) >= len(sent))
            consuming.cancel()
        figures = {"brokers": len(running.brokers), "renewals": renewals, "seconds_between": seconds}
        record("certificates replaced again and again", figures | traffic.outcome())

        assert sorted(traffic.read) == sorted(sent)
        assert traffic.tailed > 0
        slowest, alone = (max(traffic.seconds[kind], default=0.0) for kind in ("replacing", "quiet"))
        assert not seconds or slowest < max(SLOWEST_SECONDS_MAX, alone * BASELINE_FACTOR), traffic.outcome()
    assert not list(MEMORY_FOLDER.glob(f"{PREFIX}{os.getpid()}-*"))


async def test_material_that_cannot_be_used_changes_nothing(
    broker: RunningBroker, authority: Authority, tls: Path, lines: Lines
) -> None:
    """A broken file leaves the previous certificate in use and is counted; a good file is audited (rules T7, T10)."""
    ca = tls / "ca.crt"
    before = await shown(broker.addresses.data_tls, ca)
    registry = broker.broker.telemetry.registry

    def counted(name: str, listener: str = "data") -> float | None:
        return registry.get_sample_value(name, {"listener": listener})

    unknown = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"")
    key = load_pem_private_key((tls / "tls.key").read_bytes(), None)
    critical = authority.issue(key=key, critical=unknown).pem  # type: ignore[arg-type]
    version = version_changed((tls / "tls.crt").read_bytes())
    wrong = (b"", b"garbage", authority.issue(["broker-1"]).pem, version, critical)
    for number, content in enumerate(wrong, start=1):
        (tls / "tls.crt").write_bytes(content)
        broker.look_at_certificates()
        await until(lambda number=number: counted("fairlead_tls_reload_failures_total") == number)
        assert await shown(broker.addresses.data_tls, ca) == before
    good = authority.issue()
    good.write(tls, authority)
    broker.look_at_certificates()
    for listener in ("data", "ops", "peer"):
        await until(lambda listener=listener: counted("fairlead_tls_reloads_total", listener) == 1)

    assert await shown(broker.addresses.data_tls, ca) == good.sha256
    assert await shown(broker.addresses.ops, ca) == good.sha256
    reloaded = lines.changes(AuditEvent.CERTIFICATE_RELOADED)
    assert sorted(str(each["listener"]) for each in reloaded) == ["data", "ops", "peer"]
    expiry = counted("fairlead_tls_certificate_expiry_timestamp_seconds")
    assert expiry == good.certificate.not_valid_after_utc.timestamp()


@pytest.mark.parametrize("presented", ["none", "stranger", "cluster"])
async def test_only_brokers_of_the_cluster_reach_the_peer_listener(
    presented: str, broker: RunningBroker, authority: Authority, tls: Path, tmp_path: Path
) -> None:
    """A connection to the peer listener needs a certificate issued by the cluster's authority, before any request."""
    context = ssl.create_default_context(cafile=tls / "ca.crt")
    if presented != "none":
        signer = authority if presented == "cluster" else Authority.make("Stranger")
        own = signer.issue().write(tmp_path / "own", authority)
        context.load_cert_chain(own / "tls.crt", own / "tls.key")
    host, _, port = str(broker.addresses.peer).rpartition(":")
    answer = b""
    try:
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        writer.write(b"GET /v1/metadata HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        answer = await reader.read(12)
        writer.transport.abort()
    except (ssl.SSLError, ConnectionError):
        pass

    assert answer.startswith(b"HTTP/1.1 403") is (presented == "cluster")
    assert bool(answer) is (presented == "cluster")


async def test_no_handshake_is_refused_while_a_certificate_is_replaced(
    broker: RunningBroker, authority: Authority, tls: Path
) -> None:
    """Connections that are opened at any moment of a replacement are served, even with slow handshakes."""
    ca = tls / "ca.crt"
    host, _, port = str(broker.addresses.data_tls).rpartition(":")
    slow = [await asyncio.open_connection(host, int(port)) for _ in range(5)]
    done = asyncio.Event()
    seen: set[str] = set()

    async def connect() -> None:
        while not done.is_set():
            seen.add(await shown(broker.addresses.data_tls, ca))

    async with asyncio.TaskGroup() as tasks:
        connecting = [tasks.create_task(connect()) for _ in range(4)]
        await until(lambda: seen)
        issued = authority.issue()
        issued.write(tls, authority)
        broker.look_at_certificates()
        await until(lambda: issued.sha256 in seen)
        done.set()
        await asyncio.wait(connecting)
    for _, writer in slow:
        await writer.start_tls(ssl.create_default_context(cafile=ca), server_hostname=host)
        writer.transport.abort()

    assert len(seen) == 2
    assert await shown(broker.addresses.data_tls, ca) == issued.sha256
