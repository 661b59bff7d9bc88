"""Options for etcd: addresses of the cluster, credentials and timeouts.

The broker's wiring creates the options from its settings, and all modules of this package read the options. The
module performs no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

DEFAULT_PORT: Final = 2379


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """PEM files for TLS. Every new connection reads the files again, so that renewed certificates are used."""

    ca: Path | None = None
    """File with the CA that signed the members' certificates, or None for the CAs that are part of gRPC."""
    certificate: Path | None = None
    """File with the client certificate, or None if the members require no client certificate."""
    key: Path | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` for a certificate without its key, or a key without its certificate."""
        if (self.certificate is None) != (self.key is None):
            msg = "a client certificate for etcd needs its key, and a key its certificate; give both or none"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class EtcdUser:
    """Name and password of an etcd user."""

    name: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class EtcdPatience:
    """Timeouts, in seconds, after which another member is tried or a call fails."""

    connect_seconds: float = 2.0
    """Timeout for connecting to one member."""
    attempt_seconds: float = 2.0
    """Timeout for one member's answer to a request that may be repeated, after which another member is tried."""
    call_seconds: float = 5.0
    """Timeout for a whole call, and for the answer to a transaction. A transaction is sent again only if it was
    definitely not applied.
    """
    silence_seconds: float = 3.0
    """Silence after which a watch requests progress. After twice this time, the watch switches to another member."""


@dataclass(frozen=True, slots=True)
class EtcdOptions:
    """Options of one etcd cluster."""

    endpoints: tuple[str, ...]
    """URLs of the members, `http://host:port` or `https://host:port`. All URLs must use the same scheme."""
    tls: EtcdTls | None = None
    """Certificates for `https`. If None, the CAs that are part of gRPC are used, without a client certificate."""
    user: EtcdUser | None = None
    patience: EtcdPatience = EtcdPatience()
    cluster_id: int | None = None
    """Id of the expected etcd cluster, or None to accept the cluster of the first member that answers."""

    def __post_init__(self) -> None:
        """Raise `ValueError`, which names the endpoint, if endpoints are missing, invalid or inconsistent."""
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
    """Return the host and port of an endpoint in gRPC's format."""
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
