"""Addresses of an etcd cluster, credentials and timeouts.

The broker's wiring makes the options from its settings, and all modules of this room read them. The module has no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

DEFAULT_PORT: Final = 2379


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """PEM files. Every new connection reads the files again, so that renewed certificates are used."""

    ca: Path | None = None
    """Authority of the members' certificates, or None for the authorities that gRPC ships."""
    certificate: Path | None = None
    """Our own certificate, if the members require one."""
    key: Path | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` for a certificate without its key, or a key without its certificate."""
        if (self.certificate is None) != (self.key is None):
            msg = "a client certificate for etcd needs its key, and a key its certificate; give both or none"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class EtcdUser:
    """Name and password of a user of etcd."""

    name: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class EtcdPatience:
    """Seconds to wait before another member is tried, and before a call fails."""

    connect_seconds: float = 2.0
    """Timeout of a connection to one member."""
    attempt_seconds: float = 2.0
    """Timeout of one member's answer to a request that may be repeated, before another member is asked."""
    call_seconds: float = 5.0
    """Timeout of a whole call, and of the only answer to a transaction. A transaction is sent again only if it was
    definitely not applied."""
    silence_seconds: float = 3.0
    """Silence after which a watch requests progress, and after twice that time changes the member."""


@dataclass(frozen=True, slots=True)
class EtcdOptions:
    """Options of one etcd cluster."""

    endpoints: tuple[str, ...]
    """URLs of the members, `http://host:port` or `https://host:port`, all with the same scheme."""
    tls: EtcdTls | None = None
    """Certificates for `https`. None means the authorities that gRPC ships, and no certificate of our own."""
    user: EtcdUser | None = None
    patience: EtcdPatience = EtcdPatience()
    cluster_id: int | None = None
    """Id of the expected etcd cluster, or None for that of the first member that answers."""

    def __post_init__(self) -> None:
        """Raise `ValueError` with the endpoint, unless the endpoints are URLs of members of one cluster."""
        if not self.endpoints:
            msg = "no etcd endpoint is given; name at least one, as http://host:2379"
            raise ValueError(msg)
        for endpoint in self.endpoints:
            _check_endpoint(endpoint)
        if len({urlsplit(endpoint).scheme for endpoint in self.endpoints}) > 1:
            msg = f"etcd endpoints {', '.join(self.endpoints)} mix http and https; use one of them"
            raise ValueError(msg)
        if self.tls is not None and not self.secure:
            msg = f"certificates for etcd are given, but {self.endpoints[0]} is not https; change one of them"
            raise ValueError(msg)

    @property
    def secure(self) -> bool:
        """Whether connections use TLS."""
        return urlsplit(self.endpoints[0]).scheme == "https"


def target_of(endpoint: str) -> str:
    """Return the host and port of an endpoint in gRPC's form."""
    parts = urlsplit(endpoint)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{host}:{parts.port or DEFAULT_PORT}"


def _check_endpoint(endpoint: str) -> None:
    try:
        parts = urlsplit(endpoint)
        good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    else:
        good = good and parts.path in {"", "/"} and not parts.query and "@" not in parts.netloc
    if not good:
        msg = f"etcd endpoint {endpoint!r} is not of the form http://host:port or https://host:port"
        raise ValueError(msg)
