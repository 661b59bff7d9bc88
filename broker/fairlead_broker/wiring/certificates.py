"""A broker's certificates: the files for each listener, and the switch to replaced certificates."""

from __future__ import annotations

from pathlib import Path

from fairlead_api.audit_events import AuditEvent
from fairlead_api.identifiers import TimestampUs
from fairlead_api.timestamps import format_timestamp
from fairlead_broker.certificates.files import CA_FILE
from fairlead_broker.certificates.material import Material, Side
from fairlead_broker.certificates.watching import Certificates, Source
from fairlead_broker.clock import Clock
from fairlead_broker.peers.peers import PeerTls, tls_fault
from fairlead_broker.registry.records import CertificateRecord
from fairlead_broker.runtime import Broker
from fairlead_broker.runtime.lifecycle.own_registration import RegisteredCertificates
from fairlead_broker.server.listeners import Listeners
from fairlead_broker.settings import BrokerSettings, Endpoint
from fairlead_broker.telemetry import Telemetry


def load_certificates(settings: BrokerSettings, clock: Clock, telemetry: Telemetry) -> Certificates:
    """Read and check the files of all listeners with TLS. Raises `MaterialRefused`."""
    certificates = Certificates(_sources(settings), clock, telemetry, tls_fault)
    certificates.load()
    return certificates


def _sources(settings: BrokerSettings) -> list[Source]:
    listeners, found = settings.listeners, []
    if settings.tls is not None:
        hosts = _hosts(settings.advertised("https"))
        found.append(Source(Side.DATA, settings.tls, hosts, _client_ca(settings)))
        if listeners.ops.scheme == "https":
            # Prometheus and supervisors call the ops listener by names that the broker does not know.
            found.append(Source(Side.OPS, settings.tls, ()))
    peer_folder = settings.tls if listeners.peer.scheme == "https" else None
    if peer_folder := settings.peer_tls or peer_folder:
        found.append(Source(Side.PEER, peer_folder, _hosts(settings.peer_advertise or settings.peer_listen)))
    return found


def _client_ca(settings: BrokerSettings) -> tuple[Path, ...]:
    """Return the files with the authorities of clients, including the brokers' own authority from `peer_tls`."""
    if settings.client_ca is None:
        return ()
    own = () if settings.peer_tls is None else (settings.peer_tls / CA_FILE,)
    return (settings.client_ca, *own)


def _hosts(address: Endpoint | None) -> tuple[str, ...]:
    """Return the host at which clients reach a listener; empty if there is no address or it is a wildcard address."""
    return () if address is None or address.everywhere else (address.host,)


def registered(certificates: Certificates) -> RegisteredCertificates:
    """Return the certificates in use, in the form in which the broker registers them."""
    return RegisteredCertificates(
        data=_record(certificates.materials.get(Side.DATA)),
        peer=_record(certificates.materials.get(Side.PEER)),
    )


def _record(material: Material | None) -> CertificateRecord | None:
    if material is None:
        return None
    facts = material.facts
    return CertificateRecord(
        certificate_sha256=facts.certificate_sha256,
        not_after_us=TimestampUs(facts.not_after_us),
        ca_sha256=facts.ca_sha256,
    )


def peer_tls(material: Material | None) -> PeerTls | None:
    """Return the TLS material for calls to peers; None if there is no certificate."""
    return None if material is None else PeerTls(material.ca_pem, material.key_pem + material.chain_pem)


def follow(certificates: Certificates, listeners: Listeners, broker: Broker) -> None:
    """Watch the files, and use each replaced certificate in the listeners, calls to peers and the registration."""
    if not certificates.materials:
        return

    async def load(side: Side, material: Material) -> None:
        if side is Side.PEER:
            await broker.peer_side.peers.renew(
                PeerTls(material.ca_pem, material.key_pem + material.chain_pem)
            )
        await listeners.renew(side, material)

    def report(side: Side, material: Material) -> None:
        broker.entry.registration.look_again()
        expiry = format_timestamp(TimestampUs(material.facts.not_after_us))
        broker.audit.happened(AuditEvent.CERTIFICATE_RELOADED, {"listener": side.value, "not_after": expiry})

    certificates.subscribe(load, report)
    broker.supervisor.spawn(certificates.run(), "certificates")
