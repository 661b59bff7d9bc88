"""Part of `make bench` that measures the cost of TLS and of access rules, and the cost of TLS in Apache Kafka.

Every round measures the same work on the same machine in six ways: Kafka with TLS and in plaintext once, then Fairlead
with TLS, in plaintext, with access rules, and with both TLS and access rules, in many short turns in alternating order.
The four ways of Fairlead use one broker, with a listener of each scheme and changing security modes, and one client,
because no two processes are equally fast. They are compared turn by turn; a comparison with Kafka uses the medians of
the rounds. A separate process opens connections at a fixed rate while another client produces over its own connection.
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
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import ip_address
from itertools import chain
from pathlib import Path
from statistics import median
from typing import TypeAlias, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID
from pairing import Pairs, table
from peers.brokers import (
    HERE,
    FairleadPeer,
    KafkaPeer,
    PeerFailedError,
    PeerProcess,
    alone,
    fetch_kafka,
    free_port,
)
from throughput import VALUE_BYTES, Bench
from turns import TurnsClient
from workloads.security_mode import change

from fairlead import Admin, Producer

ENFORCE_TARGET = 0.97
GUARDED_TARGET = 0.9
COMPARISONS = (
    ("TLS, against plaintext (in the column of the peer)", "encrypted", "plain", (0.85, 0.7)),
    (
        "enforce with a token, against open (in the column of the peer)",
        "enforced",
        "plain",
        (ENFORCE_TARGET, ENFORCE_TARGET),
    ),
    (
        "TLS and enforce with a token, against plaintext and open (in the column of the peer)",
        "guarded",
        "plain",
        (0.75, 0.55),
    ),
    ("TLS, against Kafka with TLS", "encrypted", "kafka encrypted", (2.5, 1.5)),
    (
        "Kafka with TLS, against its plaintext (in the column of the peer)",
        "kafka encrypted",
        "kafka plain",
        (None, None),
    ),
)
"""Comparisons: name, the two setups that are compared, and the target ratios for producing and consuming."""
SMALL_REQUESTS = {
    "JSON, 1 record per request": (),
    "JSON, 100 records per request": ("--records", "100", "--requests", "200"),
    "JSON, a read of 1 record per request": ("--reads",),
    "a heartbeat that changes nothing": ("--heartbeats",),
}
"""Requests that are compared in both modes, with the options of their program."""
REPEATS = 20
"""Turns of each way of using Fairlead in a round, since the ratios of these ways are near to 1."""
TURN_RECORDS = 2_000_000
"""Maximum number of records of a turn: less than half a second, within which the machine's speed rarely changes."""
TURNS = 40
"""Turns of a broker in each security mode, for each round."""
HANDSHAKE_SECONDS = 5.0
HANDSHAKES_AT_ONCE = 8
HANDSHAKES_PER_SECOND = 500
"""Number of handshakes attempted per second."""

PeerT = TypeVar("PeerT", bound=PeerProcess)
Rates: TypeAlias = tuple[float, float]
"""Records per second when producing and when consuming."""
Figures: TypeAlias = dict[str, list[list[Rates]]]
"""Rates of each setup: the measurements of each round."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way of using the broker: the listener, the security mode, and environment variables of the clients."""

    listener: FairleadPeer
    mode: str
    variables: dict[str, str]


class Scene:
    """A broker of each system, each of which is measured alone."""

    def __init__(self, folder: Path, jars: Path, records: int) -> None:
        self.tls = certificates(folder / "tls")
        self._folder, self._jars, self.records = folder, jars, records
        self.peers: list[PeerProcess] = []

    def start(self) -> None:
        """Start both brokers."""
        self.administrator = self._folder / "admin.token"
        self.kafka = self._started(KafkaPeer.start(self._folder, self._jars, self.tls))
        # The setting `security` is the least strict mode of a broker; the cluster's mode is changed between the turns.
        options = (
            "--security",
            "open",
            "--admin-token-file",
            str(self.administrator),
            "--tls",
            str(self.tls),
        )
        listeners = f"http://127.0.0.1:{free_port()},https://127.0.0.1:{free_port()}"
        self.fairlead = self._started(FairleadPeer.start(self._folder, *options, "--listen", listeners))
        plain, secure = listeners.split(",")
        self.token = _user(plain, self.administrator, self._folder / "user.token")
        rights = {"FAIRLEAD_TOKEN_FILE": str(self.token)}
        self.ways = {
            "encrypted": Way(replace(self.fairlead, url=secure), "open", self.trust),
            "plain": Way(replace(self.fairlead, url=plain), "open", {}),
            "enforced": Way(replace(self.fairlead, url=plain), "enforce", rights),
            "guarded": Way(replace(self.fairlead, url=secure), "enforce", {**self.trust, **rights}),
        }

    def _started(self, peer: PeerT) -> PeerT:
        self.peers.append(peer)
        return peer

    def stop(self) -> None:
        """Stop the brokers."""
        for peer in self.peers:
            peer.resume()
            peer.stop()

    def bench(self, way: str) -> Bench:
        """Return a `Bench` for one way of using the broker."""
        return Bench(self.ways[way].listener, self.kafka, self.records, VALUE_BYTES)

    def begin(self, way: str) -> None:
        """Reserve the machine for the broker, in the mode of one way of using it."""
        self.alone(self.fairlead)
        set_mode(self.ways["plain"].listener.url, self.administrator, self.ways[way].mode)

    @property
    def trust(self) -> dict[str, str]:
        """Environment variables that make the SDK trust the certificates."""
        return {"FAIRLEAD_CA_FILE": str(self.tls / "ca.crt")}

    def alone(self, peer: PeerProcess) -> None:
        """Pause all other brokers, so that one broker has the machine to itself."""
        alone(peer, self.peers)


def secured(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Compare TLS with plaintext and with Kafka's TLS, and access rules with an open broker; measure handshakes."""
    with running(folder, fetch_kafka(options.cache), options.records) as scene:
        with TurnsClient({}) as client:
            figures = measured_in_turn(scene, client, options.pairs)
        turns = options.pairs * TURNS
        of_requests = [*enforced_requests(scene, turns), guarded_requests(scene, turns)]
        scene.begin("encrypted")
        shaken = [asyncio.run(handshakes(scene)) for _ in range(options.pairs)]
    cases = [*cases_of(figures), *of_requests]
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


def measured_in_turn(scene: Scene, client: TurnsClient, pairs: int) -> Figures:
    """Measure each way of producing and consuming in every round; return the records per second of each way."""
    ours: dict[str, Callable[[], Rates]] = {
        way: partial(_fairlead, scene, client, scene.bench("plain"), way) for way in scene.ways
    }
    settings = scene.tls / "client.properties"
    settings.write_text(
        f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={scene.tls / 'ca.crt'}\n"
    )
    kafka = scene.bench("plain")
    theirs: dict[str, Callable[[], Rates]] = {
        "kafka encrypted": partial(_kafka, scene, kafka, settings),
        "kafka plain": partial(_kafka, scene, kafka, None),
    }
    figures: Figures = {name: [] for name in (*ours, *theirs)}
    for number in range(pairs):
        for each in figures.values():
            each.append([])
        in_turn = list(theirs.items())
        for repeat in range(REPEATS):
            in_turn += list(ours.items())[:: -1 if repeat % 2 else 1]
        for name, measure in in_turn:
            produced, consumed = measure()
            figures[name][-1].append((produced, consumed))
            print(
                f"round {number + 1}, {name}: {produced:,.0f} and {consumed:,.0f} records/s",
                file=sys.stderr,
                flush=True,
            )
    return figures


def cases_of(figures: Figures) -> list[Pairs]:
    """Return a case for producing and a case for consuming of each comparison between two ways."""
    found = []
    for what, ours, theirs, targets in COMPARISONS:
        in_rounds = "kafka" in ours + theirs
        for place, verb in enumerate(("produce", "consume")):
            values = (_values(figures[name], place, in_rounds) for name in (ours, theirs))
            found.append(Pairs(f"{verb} {VALUE_BYTES} B: {what}", "records/s", *values, targets[place]))
    return found


def _values(rounds: list[list[Rates]], place: int, in_rounds: bool) -> tuple[float, ...]:
    """Return all measurements, or the median of each round."""
    values = [[rates[place] for rates in each] for each in rounds]
    return tuple(median(each) for each in values) if in_rounds else tuple(chain.from_iterable(values))


def enforced_requests(scene: Scene, turns: int) -> list[Pairs]:
    """Compare small requests with a token to the same requests in `open` mode.

    Of everything that `make bench` measures, a heartbeat and a request with one record do the least work apart from
    authentication and access decisions. One broker is measured in both modes, in many short turns.
    """
    compared = "enforce with a token, against open (in the column of the peer)"
    with _requests(scene) as options:
        return [
            _alternating(f"{case}: {compared}", [*options, *more], turns, ENFORCE_TARGET)
            for case, more in SMALL_REQUESTS.items()
        ]


def guarded_requests(scene: Scene, turns: int) -> Pairs:
    """Compare requests with one JSON record of 1 KiB through TLS, in `enforce`, to such requests in plaintext."""
    case = (
        "JSON, 1 record of 1 KiB per request: TLS and enforce with a token, against plaintext and open "
        "(in the column of the peer)"
    )
    secure = ("--tls-url", scene.ways["guarded"].listener.url, "--ca", str(scene.tls / "ca.crt"))
    with _requests(scene) as options:
        return _alternating(case, [*options, *secure, "--value-bytes", "1024"], turns, GUARDED_TARGET)


@contextmanager
def _requests(scene: Scene) -> Iterator[list[str]]:
    """Yield the options of the program for requests to a new topic in changing modes."""
    scene.begin("plain")
    bench, url = scene.bench("plain"), scene.ways["plain"].listener.url
    topic = bench.fairlead_topic("replicated")
    yield [
        *("--url", url, "--topic", topic, "--token-file", str(scene.token)),
        *("--admin-token-file", str(scene.administrator)),
    ]
    scene.begin("plain")
    bench.delete_fairlead_topic(topic)


def _alternating(case: str, options: list[str], turns: int, target: float) -> Pairs:
    program = str(HERE / "workloads/alternating_requests.py")
    command = [sys.executable, program, *options, "--turns", str(turns)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        msg = f"requests ended with {done.returncode}: {done.stderr[-3000:]}"
        raise PeerFailedError(msg)
    rates = json.loads(done.stdout)
    return Pairs(case, "requests/s", tuple(rates["enforce"]), tuple(rates["open"]), target)


def _kafka(scene: Scene, bench: Bench, tls: Path | None) -> Rates:
    scene.alone(scene.kafka)
    topic = bench.kafka_topic()
    figures = bench.kafka_produce(topic, tls=tls), bench.kafka_consume(topic, tls=tls)
    bench.delete_kafka_topic(topic)
    return figures


def _fairlead(scene: Scene, client: TurnsClient, plain: Bench, way: str) -> Rates:
    scene.begin("plain")
    topic = plain.fairlead_topic("replicated")
    scene.begin(way)
    used, records = scene.ways[way], min(scene.records, TURN_RECORDS)
    produced, consumed = (
        client.run(side, used.listener.url, topic, records, VALUE_BYTES, used.variables)["records_per_second"]
        for side in ("produce", "consume")
    )
    scene.begin("plain")
    plain.delete_fairlead_topic(topic)
    return produced, consumed


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
    """Return handshakes per second, and the p99 of another client's produce latency before and during these."""
    bench, url = scene.bench("encrypted"), scene.ways["encrypted"].listener.url
    with _variables(scene.trust):
        topic = await asyncio.to_thread(bench.fairlead_topic, "replicated")
        async with Producer(url, linger_ms=0, acks="all") as producer:
            before = await _slowest(producer, topic, HANDSHAKE_SECONDS)
            command = [sys.executable, str(HERE / "workloads/handshakes.py"), "--url", url]
            command += ["--ca", str(scene.tls / "ca.crt"), "--seconds", str(HANDSHAKE_SECONDS)]
            command += ["--at-once", str(HANDSHAKES_AT_ONCE), "--per-second", str(HANDSHAKES_PER_SECOND)]
            process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            meanwhile = await _slowest(producer, topic, HANDSHAKE_SECONDS)
            told, _ = await process.communicate()
        await asyncio.to_thread(bench.delete_fairlead_topic, topic)
    if process.returncode != 0:
        msg = f"handshakes ended with {process.returncode}"
        raise PeerFailedError(msg)
    made: dict[str, float] = json.loads(told)
    return {
        "handshakes_per_second": round(made["handshakes_per_second"], 1),
        "p99_before_ms": round(before * 1000, 2),
        "p99_meanwhile_ms": round(meanwhile * 1000, 2),
    }


async def _slowest(producer: Producer, topic: str, seconds: float) -> float:
    """Produce one record after another for a given time; return the 99th percentile of the latency in seconds."""
    taken, end, value = [], time.perf_counter() + seconds, bytes(VALUE_BYTES)
    while time.perf_counter() < end:
        begun = time.perf_counter()
        await producer.send_and_wait(topic, value)
        taken.append(time.perf_counter() - begun)
    return sorted(taken)[len(taken) * 99 // 100]


def set_mode(url: str, administrator: Path, mode: str) -> None:
    """Set the security mode of the broker."""

    async def changed() -> None:
        async with Admin(url, token_file=administrator) as admin:
            await change(admin, mode)

    asyncio.run(changed())


def _user(url: str, administrator: Path, token: Path) -> Path:
    """Create the token of a user with access to every topic, and return the token's file."""
    program = str(Path(sys.executable).with_name("fairlead"))
    environment = {**os.environ, "FAIRLEAD_BOOTSTRAP": url, "FAIRLEAD_TOKEN_FILE": str(administrator)}
    for words in (
        ("token", "create", "user:bench", "--file", str(token)),
        ("acl", "allow", "user:bench", "all", "topic:*"),
        ("acl", "allow", "user:bench", "all", "group:*"),
        ("acl", "allow", "user:bench", "all", "cluster:*"),
    ):
        subprocess.run([program, *words], check=True, env=environment, capture_output=True)
    return token


def certificates(folder: Path) -> Path:
    """Write an authority and a certificate for this machine, in the file formats of Fairlead and of Kafka."""
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
