"""Part of `make bench` that measures the cost of TLS and of access rules, and the cost of TLS in Apache Kafka.

Every case measures the same work on the same machine twice: first with protection, then without protection.
Handshakes are made by a separate process while another client makes requests over its own connection.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID
from pairing import Pairs, table
from peers.brokers import HERE, FairleadPeer, KafkaPeer, PeerFailedError, PeerProcess, alone, fetch_kafka
from throughput import VALUE_BYTES, Bench

from fairlead import Admin

PRODUCE_TARGET = 0.85
CONSUME_TARGET = 0.7
ENFORCE_TARGET = 0.97
HANDSHAKE_SECONDS = 5.0
HANDSHAKES_AT_ONCE = 8

PeerT = TypeVar("PeerT", bound=PeerProcess)
WayT = TypeVar("WayT")


class Scene:
    """Brokers of both systems, each of which is measured alone."""

    def __init__(self, folder: Path, jars: Path, records: int) -> None:
        self.tls = certificates(folder / "tls")
        self._folder, self._jars, self._records = folder, jars, records
        self.peers: list[PeerProcess] = []

    def start(self) -> None:
        """Start a broker of each kind."""
        administrator = self._folder / "admin.token"
        self.kafka = self._started(KafkaPeer.start(self._folder, self._jars, self.tls))
        self.plain = self._started(FairleadPeer.start(self._folder, name="plain"))
        self.encrypted = self._started(
            FairleadPeer.start(self._folder, "--tls", str(self.tls), name="encrypted")
        )
        enforcing = ("--security", "enforce", "--admin-token-file", str(administrator))
        self.enforced = self._started(FairleadPeer.start(self._folder, *enforcing, name="enforced"))
        self.token = _admit(self.enforced.url, administrator, self._folder / "user.token")

    def _started(self, peer: PeerT) -> PeerT:
        self.peers.append(peer)
        return peer

    def stop(self) -> None:
        """Stop the brokers."""
        for peer in self.peers:
            peer.resume()
            peer.stop()

    def bench(self, fairlead: FairleadPeer, **environment: str) -> Bench:
        """Return a `Bench` for one broker, with environment variables for its clients."""
        bench = Bench(fairlead, self.kafka, self._records, VALUE_BYTES)
        bench.environment = environment
        return bench

    @property
    def trust(self) -> dict[str, str]:
        """Environment variables that make the SDK trust the certificates."""
        return {"FAIRLEAD_CA_FILE": str(self.tls / "ca.crt")}

    def alone(self, peer: PeerProcess) -> None:
        """Pause all other brokers, so that one broker has the machine to itself."""
        alone(peer, self.peers)


def secured(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Compare TLS with plaintext, and access rules with an open broker, and measure TLS handshakes."""
    with running(folder, fetch_kafka(options.cache), options.records) as scene:
        pairs: int = options.pairs
        cases = [
            *tls_cases(scene, pairs),
            *enforce_cases(scene, pairs),
            *kafka_cases(scene, pairs),
        ]
        scene.alone(scene.encrypted)
        shaken = [asyncio.run(handshakes(scene)) for _ in range(pairs)]
    print(table(cases))
    return {"records": options.records, "cases": [each.document() for each in cases], "handshakes": shaken}


@contextmanager
def running(folder: Path, jars: Path, records: int) -> Iterator[Scene]:
    """Run the brokers; stop them at the end of the block."""
    scene = Scene(folder, jars, records)
    try:
        scene.start()
        yield scene
    finally:
        scene.stop()


def tls_cases(scene: Scene, pairs: int) -> list[Pairs]:
    """Compare producing and consuming with TLS to plaintext."""
    bench = {each.name: scene.bench(each, **scene.trust) for each in (scene.encrypted, scene.plain)}
    return both_ways(
        pairs,
        lambda peer: _fairlead(scene, bench[peer.name], peer),
        (scene.encrypted, scene.plain),
        ("TLS, against plaintext (in the column of the peer)", PRODUCE_TARGET, CONSUME_TARGET),
    )


def enforce_cases(scene: Scene, pairs: int) -> list[Pairs]:
    """Compare producing and consuming with a token in `enforce` mode to `open` mode."""
    bench = {
        "enforced": scene.bench(scene.enforced, FAIRLEAD_TOKEN_FILE=str(scene.token)),
        "plain": scene.bench(scene.plain),
    }
    return both_ways(
        pairs,
        lambda peer: _fairlead(scene, bench[peer.name], peer),
        (scene.enforced, scene.plain),
        ("enforce with a token, against open (in the column of the peer)", ENFORCE_TARGET, ENFORCE_TARGET),
    )


def kafka_cases(scene: Scene, pairs: int) -> list[Pairs]:
    """Compare producing and consuming with TLS to plaintext, in Kafka."""
    settings = scene.tls / "client.properties"
    settings.write_text(
        f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={scene.tls / 'ca.crt'}\n"
    )
    bench = scene.bench(scene.plain)

    def measured(settings: Path | None) -> tuple[float, float]:
        scene.alone(scene.kafka)
        topic = bench.kafka_topic()
        figures = bench.kafka_produce(topic, tls=settings), bench.kafka_consume(topic, tls=settings)
        bench.delete_kafka_topic(topic)
        return figures

    what = "Kafka with TLS, against its plaintext (in the column of the peer)"
    return both_ways(pairs, measured, (settings, None), (what, None, None))


def both_ways(
    pairs: int,
    measured: Callable[[WayT], tuple[float, float]],
    ways: tuple[WayT, WayT],
    case: tuple[str, float | None, float | None],
) -> list[Pairs]:
    """Measure with and without protection in turn; return a case for producing and a case for consuming."""
    figures: tuple[list[tuple[float, float]], ...] = ([], [])
    for _ in range(pairs):
        for place, way in enumerate(ways):
            figures[place].append(measured(way))
    what, *targets = case
    found = []
    for place, (verb, target) in enumerate(zip(("produce", "consume"), targets, strict=True)):
        ours, theirs = (tuple(each[place] for each in side) for side in figures)
        found.append(Pairs(f"{verb} {VALUE_BYTES} B: {what}", "records/s", ours, theirs, target))
        print(f"{found[-1].case}: {found[-1].ratio:.2f}x", file=sys.stderr, flush=True)
    return found


def _fairlead(scene: Scene, bench: Bench, peer: FairleadPeer) -> tuple[float, float]:
    scene.alone(peer)
    with _variables(bench.environment):
        topic = bench.fairlead_topic("replicated")
        figures = bench.fairlead_side("produce", topic), bench.fairlead_side("consume", topic)
        bench.delete_fairlead_topic(topic)
    return figures


@contextmanager
def _variables(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables until the end of the block, for this process and the processes that it starts."""
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]


async def handshakes(scene: Scene) -> dict[str, float]:
    """Return handshakes per second, and the 99th percentile of another client's latency before and during them."""
    with _variables(scene.trust):
        async with Admin(scene.encrypted.url) as client:
            before = await _slowest(client, HANDSHAKE_SECONDS)
            command = [sys.executable, str(HERE / "workloads/handshakes.py"), "--url", scene.encrypted.url]
            command += ["--ca", str(scene.tls / "ca.crt"), "--seconds", str(HANDSHAKE_SECONDS)]
            process = await asyncio.create_subprocess_exec(
                *command, "--at-once", str(HANDSHAKES_AT_ONCE), stdout=asyncio.subprocess.PIPE
            )
            meanwhile = await _slowest(client, HANDSHAKE_SECONDS)
            told, _ = await process.communicate()
    if process.returncode != 0:
        msg = f"handshakes ended with {process.returncode}"
        raise PeerFailedError(msg)
    made: dict[str, float] = json.loads(told)
    return {
        "handshakes_per_second": round(made["handshakes_per_second"], 1),
        "p99_before_ms": round(before * 1000, 2),
        "p99_meanwhile_ms": round(meanwhile * 1000, 2),
    }


async def _slowest(client: Admin, seconds: float) -> float:
    """Send requests for a time, and return the 99th percentile of their latency in seconds."""
    taken, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        begun = time.perf_counter()
        await client.brokers()
        taken.append(time.perf_counter() - begun)
    return sorted(taken)[len(taken) * 99 // 100]


def _admit(url: str, administrator: Path, token: Path) -> Path:
    """Create the token of a user that may use every topic, and return its file."""
    program = str(Path(sys.executable).with_name("fairlead"))
    environment = {**os.environ, "FAIRLEAD_BOOTSTRAP": url, "FAIRLEAD_TOKEN_FILE": str(administrator)}
    for words in (
        ("token", "create", "user:bench", "--file", str(token)),
        ("acl", "allow", "user:bench", "all", "topic:*"),
        ("acl", "allow", "user:bench", "all", "cluster:*"),
    ):
        subprocess.run([program, *words], check=True, env=environment, capture_output=True)
    return token


def certificates(folder: Path) -> Path:
    """Write an authority and a certificate for this machine, in the forms of Fairlead and of Kafka."""
    folder.mkdir(parents=True)
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Benchmark")])
    authority = (
        _builder(name, authority_key.public_key())
        .subject_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(authority_key, SHA256())
    )
    hosts = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")])
    uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    leaf = (
        _builder(name, key.public_key())
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "broker")]))
        .add_extension(hosts, critical=False)
        .add_extension(uses, critical=False)
        .sign(authority_key, SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    contents = {
        "tls.crt": leaf.public_bytes(Encoding.PEM),
        "tls.key": secret,
        "ca.crt": authority.public_bytes(Encoding.PEM),
        "kafka.pem": secret + leaf.public_bytes(Encoding.PEM) + authority.public_bytes(Encoding.PEM),
    }
    for file, content in contents.items():
        (folder / file).write_bytes(content)
    return folder


def _builder(issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=2))
    )
