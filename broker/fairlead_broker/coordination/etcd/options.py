"""Addresses of an etcd cluster, credentials, and times to wait for it.

Made by the broker's wiring from its settings, read by everything in this room. Values only; no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

DEFAULT_PORT: Final = 2379


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """Files in PEM. They are read again for every new connection, so that renewed ones are taken up."""

    ca: Path | None = None
    """Authority of the members' certificates; None for the authorities that gRPC ships."""
    certificate: Path | None = None
    """Our own certificate, where the members ask for one."""
    key: Path | None = None

    def __post_init__(self) -> None:
        """Refuse a certificate without its key, or the reverse (`ValueError`)."""
        if (self.certificate is None) != (self.key is None):
            msg = "a client certificate for etcd needs its key, and a key its certificate; give both or none"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class EtcdUser:
    """A name and a password in etcd's own list of users."""

    name: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class EtcdPatience:
    """Times to wait before another member is tried, and before the call fails."""

    connect_seconds: float = 2.0
    """For a connection to one member."""
    attempt_seconds: float = 2.0
    """For one member's answer to what may be asked twice; then another member is asked."""
    call_seconds: float = 5.0
    """For a whole call. Also for the one answer to a transaction, which is never sent twice unless the first one
    was definitely not applied."""
    silence_seconds: float = 3.0
    """Silence after which a watch is asked for its progress; after the same time again another member serves it."""


@dataclass(frozen=True, slots=True)
class EtcdOptions:
    """One etcd cluster."""

    endpoints: tuple[str, ...]
    """URLs of its members, `http://host:port` or `https://host:port`, all with the same scheme."""
    tls: EtcdTls | None = None
    """For `https`. None there: the authorities that gRPC ships, and no certificate of our own."""
    user: EtcdUser | None = None
    patience: EtcdPatience = EtcdPatience()
    cluster_id: int | None = None
    """The id of the etcd cluster that is meant; None to take that of the first member that answers."""

    def __post_init__(self) -> None:
        """Refuse endpoints that are no URLs of members of one cluster (`ValueError`, naming the endpoint)."""
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
    """Return the host and port of an endpoint, as gRPC wants them."""
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
