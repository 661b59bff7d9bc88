from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta

import pytest
import structlog
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding

import render_kit
from fairlead_operator.certificates.authority import bytes_of, read_certificate, text_of
from fairlead_operator.naming import CONFIG_MAP, SECRET, Manifest, ObjectRef
from fairlead_operator.plan.securing.certificates import Certificates, Report, Reports
from fairlead_operator.reconcile.certificates import CertificatesStep, presented_certificates
from memory_api import MemoryApi

BROKERS = frozenset({0, 1})
CA, LEAF = ObjectRef(SECRET, "shop", "main-ca"), ObjectRef(SECRET, "shop", "main-brokers-tls")


class Crash(Exception):
    """Simulated end of the operator's process after a write."""


class Secrets(MemoryApi):
    """An API server that stores Secrets, and can end the operator after a chosen write."""

    def __init__(self) -> None:
        """Start without objects."""
        super().__init__()
        self.crash_at: int | None = None
        self.applied = 0

    async def apply(self, manifest: Manifest, *, force: bool = True, dry_run: bool = False) -> Manifest:
        """Store an object, and raise `Crash` after the chosen write."""
        ref = ObjectRef(SECRET, "shop", manifest["metadata"]["name"])
        self.objects[ref] = copy.deepcopy(manifest)
        self.applied += 1
        if self.applied == self.crash_at:
            raise Crash
        return manifest


class Time:
    """A clock that the test advances."""

    def __init__(self) -> None:
        """Start the clock at a fixed time."""
        self.at = datetime(2026, 3, 1, tzinfo=UTC)

    def now(self) -> datetime:
        """Return the time."""
        return self.at

    def monotonic(self) -> float:
        """Return the time in seconds, which also serves as the monotonic time."""
        return self.at.timestamp()


def field(api: Secrets, ref: ObjectRef, name: str) -> bytes:
    """Return a field of a Secret."""
    return bytes_of((api.objects.get(ref, {}).get("data") or {}).get(name))


def reports(api: Secrets) -> Reports:
    """Return the reports of brokers that have loaded the certificate and the authorities in the Secret."""
    leaf = read_certificate(field(api, LEAF, "tls.crt"))
    if leaf is None:
        return Reports()
    bundle = x509.load_pem_x509_certificates(field(api, LEAF, "ca.crt"))
    trusted = frozenset(_sha256(each) for each in bundle)
    return Reports(
        known=True, registered=BROKERS, by_broker={each: Report(leaf.sha256, trusted) for each in BROKERS}
    )


def is_trusted(leaf: bytes, bundle: bytes) -> bool:
    """Return whether one of the authorities signed a certificate."""
    certificate = x509.load_pem_x509_certificate(leaf)
    for authority in x509.load_pem_x509_certificates(bundle):
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, InvalidSignature):
            continue
        return True
    return False


@pytest.mark.parametrize("crash_at", [None, *range(5, 17)])
async def test_an_authority_is_replaced_without_a_certificate_that_is_not_trusted(
    crash_at: int | None,
) -> None:
    """Brokers with previous and new files trust each other, even if the operator ends at any write (rules K5, V10)."""
    api, time = Secrets(), Time()
    step = CertificatesStep(api, time, structlog.get_logger())
    cluster = render_kit.cluster_of(security={"tls": {"clientOverlap": "24h"}})
    first = await step.take(cluster, Reports())
    before = (field(api, LEAF, "tls.crt"), field(api, LEAF, "ca.crt"))
    api.crash_at = crash_at
    time.at += timedelta(days=3650 * 0.8)
    seen = set()
    for _ in range(12):
        try:
            done = await step.take(cluster, reports(api))
        except Crash:
            continue
        now = (field(api, LEAF, "tls.crt"), field(api, LEAF, "ca.crt"))
        # A broker with the files of the previous pass and a broker with the current files call each other.
        assert all(is_trusted(leaf, bundle) for leaf in (before[0], now[0]) for bundle in (before[1], now[1]))
        before = now
        seen.add(done.trusted)
        time.at += timedelta(hours=13)

    assert len(done.trusted) == 1
    assert done.trusted.isdisjoint(first.trusted)
    assert len(seen) >= 2
    assert not field(api, CA, "previous.crt")


async def test_what_is_there_is_kept_and_foreign_secrets_are_not_touched() -> None:
    """A second pass writes nothing, and a Secret that another program owns stops all writes (rule K6)."""
    api, time = Secrets(), Time()
    step = CertificatesStep(api, time, structlog.get_logger())
    cluster = render_kit.cluster_of(security={})
    first = await step.take(cluster, Reports())
    again = await step.take(cluster, Reports())
    applied = api.applied
    api.objects[LEAF]["metadata"]["labels"] = {}
    foreign = await step.take(cluster, Reports())

    assert first == again
    assert applied == api.applied == 4
    assert foreign.foreign == "Secret main-brokers-tls"
    assert foreign.authorities == ""


@pytest.mark.parametrize("certificate", [{"secretName": "mine"}, {"issuerRef": {"name": "corp"}}])
async def test_clients_trust_the_authority_of_another_certificate(certificate: dict[str, object]) -> None:
    """Clients also trust the authority in another program's Secret, and brokers trust only the operator's (rule K2)."""
    api, time = Secrets(), Time()
    step = CertificatesStep(api, time, structlog.get_logger())
    cluster = render_kit.cluster_of(security={"tls": {"mode": "Required", "certificate": certificate}})
    waits = await step.take(cluster, Reports())
    name = "mine" if "secretName" in certificate else "main-clients-tls"
    api.objects[ObjectRef(SECRET, "shop", name)] = {
        "metadata": {"name": name},
        "data": {"ca.crt": text_of(b"CORP")},
    }
    done = await step.take(cluster, Reports())

    assert waits.missing == f"Secret {name}"
    assert done.missing == ""
    assert done.client_authorities == f"{done.authorities}CORP\n"
    assert field(api, LEAF, "ca.crt").decode() == done.authorities


async def test_clients_trust_both_authorities_until_the_last_broker_presents_the_other_certificate() -> None:
    """The authority of a Secret that a Cluster no longer names stays in the bundle while a pod mounts the Secret."""
    api, time = Secrets(), Time()
    step = CertificatesStep(api, time, structlog.get_logger())
    for name, authority in (("old", b"OLD"), ("mine", b"CORP")):
        api.objects[ObjectRef(SECRET, "shop", name)] = {
            "metadata": {"name": name},
            "data": {"ca.crt": text_of(authority)},
        }
    cluster = render_kit.cluster_of(
        security={"tls": {"mode": "Required", "certificate": {"secretName": "mine"}}}
    )
    pods = [
        {"spec": {"volumes": [{"name": "tls", "secret": {"secretName": name}}]}} for name in ("old", "mine")
    ]
    during = await step.take(cluster, Reports(), presented_certificates(pods))
    done = await step.take(cluster, Reports(), presented_certificates(pods[1:]))
    back = await step.take(render_kit.cluster_of(security={}), Reports(), presented_certificates(pods[1:]))

    assert during.client_authorities == f"{during.authorities}CORP\nOLD\n"
    assert done.client_authorities == back.client_authorities == f"{done.authorities}CORP\n"
    assert during.missing == done.missing == back.missing == ""


async def test_another_certificate_waits_until_clients_had_time_to_load_its_authority() -> None:
    """Brokers present another certificate 150 s after its authority is published, or at once without an overlap.

    A new Cluster, and a broker that presents the certificate already, wait for nothing.
    """
    api, time = Secrets(), Time()
    step = CertificatesStep(api, time, structlog.get_logger())
    api.objects[ObjectRef(SECRET, "shop", "mine")] = {
        "metadata": {"name": "mine"},
        "data": {"ca.crt": text_of(b"CORP")},
    }
    security = {"tls": {"mode": "Required", "certificate": {"secretName": "mine"}}}
    cluster = render_kit.cluster_of(security=security)
    own = frozenset({"main-brokers-tls"})

    async def take(presented: frozenset[str] = own) -> Certificates:
        """Take a step, and publish the authorities as the Cluster's pass does."""
        done = await step.take(cluster, Reports(), presented)
        api.objects[ObjectRef(CONFIG_MAP, "shop", "main-ca")] = {
            "metadata": {"annotations": {"fairlead.dev/authorities-since": done.client_authorities_since}},
            "data": {"ca.crt": done.client_authorities},
        }
        return done

    new = await step.take(cluster, Reports())
    first = await take()
    time.at += timedelta(seconds=149)
    second = await take()
    started = await take(own | {"mine"})
    time.at += timedelta(seconds=1)
    third = await take()

    assert first.held.endswith("2026-03-01T00:02:30Z")
    assert second.held == first.held
    assert (new.held, started.held, third.held) == ("", "", "")
    assert first.requeue_seconds == 10


def _sha256(certificate: x509.Certificate) -> str:
    found = read_certificate(certificate.public_bytes(Encoding.PEM))
    assert found is not None
    return found.sha256
