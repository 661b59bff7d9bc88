"""Settings of a broker: one frozen object that is built once at startup.

`commands` builds the settings. Flags override `FAIRLEAD_...` variables, variables override the configuration file, and
the file overrides the defaults; a setting has the same name in all of them (rule T17). Settings are immutable values.
This module opens no files except the configuration file, and makes no connections.

This code is in one file because the reference pages list the settings in the order of their definitions.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from fairlead_api.bodies.requests import TIMEOUT_MS_MAX, WAIT_MS_MAX
from fairlead_api.configuration import TOPIC_KEYS, ConfigScope, parse_value
from fairlead_api.problems import ProblemError
from fairlead_broker.access.mode import SecurityMode
from fairlead_broker.issuer_settings import IssuerSettings, check_name
from fairlead_broker.pod import credentials, filled

KIB = 1 << 10
MIB = 1 << 20
START_KEYS = {
    "log.cleaner.dedupe.buffer.size": "cleaner_buffer_bytes",
    "log.cleaner.enable": "cleaner_enabled",
    "log.cleaner.threads": "cleaner_threads",
    "broker.session.timeout.ms": "lease_seconds",
    "max.connections": "connections_max",
    "num.io.threads": "disk_threads",
    "num.recovery.threads.per.data.dir": "open_partition_threads",
}
"""Configuration keys that are read when a broker starts, with the setting or limit that each key sets."""
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/?#\s]+")
_PRINCIPALS = re.compile(r"[!-)+\-./0-~]{1,249}|[!-)+\-./0-~]{0,248}\*")
SCHEMES = {"http": "http", "https": "https"}
CLEANER_BUFFER_BYTES_MIN = 16 * MIB
"""Smallest memory for the keys of one round of cleaning."""
KAFKA_SCHEMES = {"plaintext": "http", "ssl": "https"}
LISTENS_MAX = 3
"""Maximum number of addresses of the data listener (rule T2): plain, TLS, and one for local tools."""
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})
EVERY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - a listener may be configured to use these addresses


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """A host and a port. With port 0, the system chooses a free port."""

    host: str
    port: int
    scheme: str = ""
    """`http` or `https` for the address of a listener, or empty if the scheme follows from the other settings."""

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Parse `HOST:PORT`, with an IPv6 host in brackets. Raises ValueError, which names the text."""
        host, colon, port = text.strip().rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
            msg = f"{text!r} is not HOST:PORT (port 0 to 65535)"
            raise ValueError(msg)
        return cls(host, int(port))

    @classmethod
    def parse_listener(cls, text: str, schemes: Mapping[str, str] = SCHEMES) -> Endpoint:
        """Parse `HOST:PORT`, with or without one of the schemes before `://`. Raises ValueError like `parse`."""
        scheme, divider, rest = text.strip().rpartition("://")
        if divider and scheme.lower() not in schemes:
            msg = " or ".join([f"{text!r} is not HOST:PORT", *(f"{each}://HOST:PORT" for each in schemes)])
            raise ValueError(msg)
        return replace(cls.parse(rest), scheme=schemes.get(scheme.lower(), ""))

    @property
    def loopback(self) -> bool:
        """Whether the endpoint can be reached only from this machine."""
        return self.host in LOOPBACK_HOSTS or self.host.startswith("127.")

    @property
    def everywhere(self) -> bool:
        """Whether the host stands for all addresses of a machine, including the loopback address."""
        return self.host in EVERY_ADDRESS

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def _endpoint(value: object) -> object:
    return Endpoint.parse(value) if isinstance(value, str) else value


EndpointText = Annotated[
    Endpoint, NoDecode, BeforeValidator(_endpoint), PlainSerializer(str, return_type=str)
]


def _listener(value: object, schemes: Mapping[str, str] = SCHEMES) -> object:
    return Endpoint.parse_listener(value, schemes) if isinstance(value, str) else value


KafkaListenerText = Annotated[
    Endpoint,
    NoDecode,
    BeforeValidator(lambda value: _listener(value, KAFKA_SCHEMES)),
    PlainSerializer(str, return_type=str),
]


def _listeners(value: object) -> object:
    """Return the addresses of a listener. The value is one address, several, or a text separated by commas."""
    if isinstance(value, Endpoint):
        return (value,)
    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, list | tuple):
        return value
    found = tuple(_listener(each) for each in texts)
    if not 1 <= len(found) <= LISTENS_MAX:
        msg = f"{len(found)} addresses are given; allowed: 1 to {LISTENS_MAX}, separated by commas"
        raise ValueError(msg)
    return found


def listener_text(address: Endpoint) -> str:
    """Return an address in the format of the setting, with its scheme if the scheme was given."""
    return f"{address.scheme}://{address}" if address.scheme else str(address)


def _listener_texts(addresses: tuple[Endpoint, ...]) -> str:
    return ",".join(map(listener_text, addresses))


ListenerText = Annotated[
    Endpoint, NoDecode, BeforeValidator(_listener), PlainSerializer(listener_text, return_type=str)
]
ListenerTexts = Annotated[
    tuple[Endpoint, ...],
    NoDecode,
    BeforeValidator(_listeners),
    PlainSerializer(_listener_texts, return_type=str),
]


def _list_of(pattern: re.Pattern[str], wanted: str) -> BeforeValidator:
    """Return a validator of strings separated by commas.

    The validator raises ValueError for a string that does not match `pattern`. The message names the string and the
    `wanted` format.
    """

    def read(value: object) -> object:
        texts = value.split(",") if isinstance(value, str) else value
        if not isinstance(texts, list | tuple):
            return value
        read_texts = tuple(str(text).strip() for text in texts)
        for text in read_texts:
            if not pattern.fullmatch(text):
                msg = f"{text!r} is not {wanted}"
                raise ValueError(msg)
        return read_texts

    return BeforeValidator(read)


Origins = Annotated[
    tuple[str, ...],
    NoDecode,
    _list_of(_ORIGIN, "an origin such as https://shop.example or http://127.0.0.1:8080, nor *"),
]
Hosts = Annotated[tuple[str, ...], NoDecode, _list_of(_HOST, "the name of a host such as broker-1.example")]


Superusers = Annotated[
    tuple[str, ...],
    NoDecode,
    _list_of(_PRINCIPALS, "a pattern of principals such as user:ann or group:ops:*"),
]


class Limits(BaseModel):
    """Limits of the broker, each with its reason. A limit is overridden by a setting `FAIRLEAD_LIMITS__<NAME>`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    disk_threads: int = Field(default=4, ge=1, le=64)
    """Number of threads that append and read. More threads only help when the disk is slow: on two cores, four threads
    keep an NVMe volume busy, and each thread that runs Python code slows down the event loop."""

    sync_threads: int = Field(default=16, ge=1, le=64)
    """Maximum number of files that are synced in parallel in one round. Syncing 500 dirty files took 180 ms one by one
    and 50 ms on 8 threads; beyond 16 threads, the journal of ext4 is the bottleneck. During a sync, the threads sleep
    in the kernel."""

    unsynced_bytes_max: int = Field(default=256 * MIB, ge=1 * MIB)
    """Maximum number of bytes that are appended but not yet synced in a data directory. The limit bounds the time that
    a stop and a recovery take. Appends wait when the limit is reached, and syncing begins at half of the limit."""

    sync_interval_seconds: float = Field(default=5.0, gt=0)
    """Maximum time that replicated bytes stay unsynced. The default equals the checkpoint interval, because the two
    intervals together bound how much of the log a recovery reads."""

    checkpoint_interval_seconds: float = Field(default=5.0, gt=0)
    """Time between two checkpoints of log start, high watermark and recovery point."""

    checkpoint_bytes_max: int = Field(default=128 * MIB, ge=1 * MIB)
    """Number of appended bytes after which a checkpoint is written early. A broker restarted after a kill reads all
    bytes appended since the checkpoint and verifies their checksums, at about one GiB per second.
    """

    scrub_interval_seconds: float = Field(default=7 * 86_400.0, gt=0)
    """Time in which the scrub reads every stored batch once and verifies its checksum. One week is enough: bits change
    rarely, and damage that is found early can be repaired from other replicas."""

    scrub_bytes_per_second_max: int = Field(default=32 * MIB, ge=64 << 10)
    """Maximum read rate of the scrub. At this rate, up to 20 TB are read within a week, and most of the disk's
    throughput is left for clients."""

    partition_queue_batches_max: int = Field(default=1000, ge=1)
    """Maximum number of batches that wait for one partition's task: one writev accepts 1,024 buffers. Further batches
    are refused with `overloaded`."""

    produce_bytes_max: int = Field(default=256 * MIB, ge=1 * MIB)
    """Maximum number of bytes of batches in memory, for all unfinished appends of the broker. Further batches are
    refused with `overloaded`."""

    validation_on_loop_bytes_max: int = Field(default=2 * MIB, ge=0)
    """Uncompressed batches up to this size are validated on the event loop. Checking the checksum and the Arrow data of
    1.2 MB takes about 0.2 ms; passing a batch to a thread costs up to 0.1 ms and one iteration of the event loop."""

    validation_threads: int = Field(default=2, ge=1, le=64)
    """Number of threads that validate larger and compressed batches; appends and reads do not wait for these threads.
    Each thread uses up to `decompressed_bytes_max` bytes in addition to the batch, which is already counted in
    `produce_bytes_max`."""

    decompressed_bytes_max: int = Field(default=64 * MIB, ge=1 * MIB)
    """Maximum decompressed size of a batch. A body of 33 KB can decompress to a GiB."""

    fetch_bytes_max: int = Field(default=64 * MIB, ge=1 * MIB)
    """Maximum number of bytes in one fetch answer, regardless of the request (Kafka's fetch.max.bytes is 55 MiB)."""

    fetch_wait_seconds_max: float = Field(default=WAIT_MS_MAX / 1000, gt=0)
    """Maximum wait of a long poll. Load balancers close idle requests after 60 seconds or more."""

    produce_timeout_seconds_max: float = Field(default=TIMEOUT_MS_MAX / 1000, gt=0)
    """Maximum wait for an acknowledgement."""

    partitions_max: int = Field(default=10_000, ge=1)
    """Maximum number of replicas on one broker, since each replica has open files and a task. New partitions and moves
    above this number are refused with `too_many_partitions`. Replicas that the broker already has are kept."""

    stop_answer_seconds: float = Field(default=5.0, gt=0)
    """Maximum time that a stop waits for calls to finish; after this time, unfinished calls fail with a problem."""

    cleaner_enabled: bool = True
    """Whether the broker cleans the partitions of compacted topics."""

    cleaner_threads: int = Field(default=1, ge=0, le=4)
    """Number of partitions that are cleaned at the same time, each by a child process. With 0, no partition is cleaned.
    """

    cleaner_buffer_bytes: int = Field(default=128 * MIB, ge=CLEANER_BUFFER_BYTES_MIN)
    """Memory in bytes for the keys of all cleaning rounds that run at the same time, at least 16 MiB each: 20 bytes
    per slot of a map filled to nine tenths."""

    open_partition_threads: int = Field(default=4, ge=1, le=64)
    """Maximum number of partitions that are recovered in parallel at startup. Short recoveries use one thread."""

    request_body_bytes_max: int = Field(default=64 * MIB, ge=1 * MIB)
    """Maximum size of a request body. A larger body is refused with `body_too_large`, before the body is read if its
    length is declared."""

    json_body_bytes_max: int = Field(default=16 * MIB, ge=64 * KIB)
    """Maximum size of the JSON body in a produce call. Parsed small records use ten times as much memory as their text;
    larger loads should use Arrow or record batches."""

    bodies_bytes_max: int = Field(default=256 * MIB, ge=1 * MIB)
    """Maximum number of bytes of request bodies in memory, for all calls, from the first byte of a body to the answer.
    Above three quarters of the limit, new bodies are refused with `overloaded` before they are read; the rest is
    reserved for bodies that are being received, and for clients that use less memory than others. When no memory is
    free, the broker frees memory for a client that uses less than others: it aborts the oldest incomplete body of the
    address that uses the most or, if this is the client's own address, of the connection that uses the most. An
    incomplete body older than `body_idle_seconds_max` may be aborted to free memory for any client.
    """

    produce_calls_max: int = Field(default=1000, ge=1)
    """Maximum number of concurrent produce calls, including calls that wait for acks. Further calls are refused with
    `overloaded` before the body is read. The limit keeps the queue short enough to answer admitted calls in time, and a
    refusal costs little."""

    body_seconds_max: float = Field(default=60.0, gt=0)
    """Maximum time to receive a request body, or one line of a line-delimited body; the slowest reasonable link
    transfers 64 MiB in less time."""

    body_idle_seconds_max: float = Field(default=10.0, gt=0)
    """Maximum pause within a request body, or within one line of a line-delimited body. A client that announces a body
    and sends none occupies a stream.
    """

    answers_bytes_max: int = Field(default=256 * MIB, ge=1 * MIB)
    """Maximum number of bytes of fetch answers that were read but not yet received by clients. One answer gets at most
    a quarter of the free bytes. When the limit is reached, answers shrink to 256 KiB, and connections of stalled
    clients are closed."""

    reader_stall_seconds_max: float = Field(default=60.0, gt=0)
    """Maximum time without progress in sending an answer before the connection is closed (nginx's default)."""

    crowded_stall_seconds_max: float = Field(default=3.0, gt=0)
    """Maximum time without progress of an answer while `answers_bytes_max` is reached: 256 KiB in three seconds is
    slower than any link in use."""

    long_polls_max: int = Field(default=20_000, ge=1)
    """Maximum number of waiting fetches, about 10 KB each. Further fetches are refused with `overloaded`. An empty
    answer instead of a refusal would make clients repeat the fetch at once."""

    connections_max: int = Field(default=0, ge=0)
    """Maximum number of connections to the data listener, where further connections wait; 0 means three quarters of the
    limit of open files. Half of them belong to the Kafka listener, if any, which closes further connections."""

    connections_per_address_max: int | None = Field(default=None, ge=0)
    """Maximum number of connections from one client address (with IPv6, from one /64 network) to the data listener, and
    to the Kafka listener. The default is half of `connections_max`, so that one client cannot use all connections. The
    newest connections beyond the limit are closed. 0 turns the limit off, for clients behind one proxy.
    """

    first_request_seconds_max: float = Field(default=30.0, gt=0)
    """Maximum time until the first request of a connection. A connection whose tokens were all refused is closed after
    twice this time. A TLS handshake must end within ten seconds.
    """

    streams_per_connection_max: int = Field(default=256, ge=1, le=4096)
    """Maximum number of concurrent requests of one HTTP/2 connection. Further requests wait; other connections are not
    affected."""

    header_bytes_max: int = Field(default=32 * KIB, ge=8 * KIB)
    """Maximum size of the headers and the target of one request, counted as in HTTP/2: each header adds 32 bytes to
    its name and value. Typical headers are a path, some ids and a traceparent. A larger request gets status 431, or
    its stream is closed. Over HTTP/1.1, the HTTP server accepts more before the broker can refuse the request: a
    target of 64 KiB and 100 headers, about 400 KiB in total.
    """

    header_seconds_max: float = Field(default=75.0, gt=0)
    """Maximum time to receive the headers of an HTTP/1.1 request. For the first request on a connection, the time limit
    begins with the first byte. For later requests on the connection, the time limit begins with the previous answer, so
    that idle connections are closed as well. The time must exceed the 60 s that load balancers keep an idle connection
    (nginx's default): a request sent on a closing connection is lost.
    """

    ping_interval_seconds: float = Field(default=30.0, gt=0)
    """Time between two HTTP/2 pings on a connection without traffic. A connection whose ping is not answered within 20
    s is closed."""

    @property
    def cleans(self) -> bool:
        """Whether the broker cleans the partitions of compacted topics."""
        return self.cleaner_enabled and self.cleaner_threads > 0

    @model_validator(mode="after")
    def _has_memory_for_each_round(self) -> Self:
        """Refuse a memory size for keys that gives a round less memory than it needs."""
        needed = self.cleaner_threads * CLEANER_BUFFER_BYTES_MIN
        if self.cleaner_buffer_bytes < needed:
            msg = f"cleaner_buffer_bytes must be at least {needed} for {self.cleaner_threads} cleaner_threads"
            raise ValueError(msg)
        return self


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """Settings that the `server` package needs."""

    data: tuple[Endpoint, ...]
    """Addresses of the data listener, each with its scheme, like the addresses of the other listeners."""
    peer: Endpoint
    ops: Endpoint
    limits: Limits
    access_log: bool
    cors_origins: tuple[str, ...] = ()
    own_names: tuple[str, ...] = ()
    """Host names that clients use to call a data or ops listener on a loopback address."""
    tls_min: str = "1.3"
    """Lowest TLS version on the data and ops listeners."""
    external: Endpoint | None = None
    """Address of the data listener for external clients."""
    kafka: Endpoint | None = None
    """Address of the listener for Kafka's protocol."""
    external_scheme: str = "http"
    """URL scheme that external clients use to call the listener, or the proxy in front of it."""
    metrics_by_token: bool = False
    """Whether `/metrics` needs a caller that may describe the cluster."""
    forwards_external: bool = True
    """Whether calls of external clients are always forwarded, because the broker has no external address of its own."""


class BrokerSettings(BaseSettings):
    """Settings of a broker. The field names are the names of the flags and of the `FAIRLEAD_...` variables."""

    model_config = SettingsConfigDict(
        env_prefix="FAIRLEAD_",
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
    )

    cluster: str = Field(default="fairlead", pattern=r"^[a-zA-Z0-9._-]{1,249}$")
    """Name of the cluster, which is part of every coordination key."""

    id: int = Field(default=0, ge=0, le=2_147_483_647)
    """Broker id, unique in the cluster."""

    data: Path = Path("fairlead-data")
    """Data directory: logs, and the coordination store if it is embedded."""

    listen: ListenerTexts = (Endpoint("127.0.0.1", 9520),)
    """Address of the data listener, or up to three separated by commas. `[::]` means every IPv6 and IPv4 address,
    `0.0.0.0` every IPv4 address. An address may begin with `http://` or `https://`; without a scheme it is `https` if
    `tls` is set. The first address of each scheme is advertised to clients. Further addresses of a scheme are served
    but not advertised."""

    external_listen: ListenerText | None = None
    """Address of an additional data listener for clients outside the brokers' network, optionally with a scheme.
    Clients of this listener get the external address of each broker. If a broker has no external address, external
    clients get the address that they called, such as the address of a load balancer, and brokers forward every call.
    """

    external_scheme: Literal["http", "https"] | None = None
    """URL scheme that clients of `external_listen` use to call the broker: `https` behind a proxy that terminates TLS.
    The default is the scheme of `external_listen`. Brokers read no headers of proxies, such as `X-Forwarded-Proto`.
    """

    external_advertise: ListenerText | None = None
    """Address of this broker for clients of `external_listen`, optionally with the scheme of a proxy in front, and with
    the placeholders of `advertise`. Without this setting and without an entry in `advertise_each`, the broker forwards
    every call from these clients.
    """

    peer_listen: ListenerText = Endpoint("127.0.0.1", 9521)
    """Address of the peer listener, optionally with a scheme. The default scheme is `https` if `peer_tls` or `tls` is
    set.
    """

    ops_listen: ListenerText = Endpoint("127.0.0.1", 9522)
    """Address of the ops listener, for health checks and Prometheus, optionally with a scheme. The default scheme is
    `https` if `tls` is set.
    """

    kafka_listen: KafkaListenerText | None = None
    """Address of a listener for Kafka's clients, which needs the extra `kafka` of the distribution. The listener uses
    TLS if `tls` is set, unless the address begins with `plaintext://` or `ssl://`."""

    kafka_advertise: EndpointText | None = None
    """Address advertised to clients of Kafka's protocol, with the placeholders of `advertise`; by default the bound
    address of `kafka_listen`. Each client must be able to reach each broker at its address."""

    tls: Path | None = None
    """Folder with `tls.crt` (the broker's certificate, followed by the intermediate certificates), `tls.key` and
    `ca.crt` (the authorities that sign brokers), in PEM. The data and ops listeners use the certificate. Changed files
    are in use after about ten seconds, or at once after SIGHUP. Without this setting, nothing is encrypted.
    """

    peer_tls: Path | None = None
    """Folder with the same files, for the peer listener and for calls to other brokers. The certificate must be valid
    for server and client use, and be signed by an authority in the folder's `ca.crt`. The default is the folder
    `tls`."""

    client_ca: Path | None = None
    """PEM file with the authorities that may sign clients' certificates. Clients of the data listener and of the Kafka
    listener need a certificate that one of these authorities, or an authority in the folder `peer_tls`, has signed. On
    the Kafka listener, the certificate determines the principal of a client without a token: `cert:` and the first
    name among the certificate's alternative names.
    """

    tls_min: Literal["1.2", "1.3"] = "1.3"
    """Lowest TLS version that the data and ops listeners accept. The peer listener accepts only TLS 1.3."""

    advertise: EndpointText | None = None
    """Address advertised to clients; by default the bound address of the data listener. In a pod, the address may
    contain the placeholders `{id}`, `{id+30000}`, `{pod}`, `{namespace}`, `{ip}` and `{node}`. `{id+30000}` stands for
    the sum of the broker's id and a number. The last four placeholders are replaced by the variables `POD_NAME`,
    `POD_NAMESPACE`, `POD_IP` and `NODE_IP`. If the data listener has addresses of both schemes, this setting is the
    address for `http`. If the listener has only `https` addresses, this setting is the address for `https`.
    """

    advertise_tls: EndpointText | None = None
    """Address advertised to clients that use TLS, with the placeholders of `advertise`; by default the bound
    address."""

    advertise_each: dict[int, ListenerText] = Field(default_factory=dict)
    """Addresses advertised to clients, by broker id, for a file that all brokers share. The entry of the broker's own
    id takes precedence over `advertise` or, if `external_listen` is set, over `external_advertise`."""

    peer_advertise: EndpointText | None = None
    """Address advertised to other brokers; by default the bound address of the peer listener. The address may contain
    the same placeholders as `advertise`."""

    rack: str | None = None
    """Rack or zone for spreading replicas. An empty value means no rack, as on a node without a zone."""

    etcd: str | None = None
    """URLs of etcd's members, separated by commas. Without this setting, coordination is embedded, and the cluster has
    only this broker."""

    etcd_ca: Path | None = None
    """PEM file with the certificates of the authority that signs etcd's certificates; used with `https`."""

    etcd_cert: Path | None = None
    """PEM file with the broker's own certificate, if etcd requires one; used with `etcd_key`."""

    etcd_key: Path | None = None
    """PEM file with the key of `etcd_cert`."""

    etcd_user: str | None = None
    """Name of an etcd user; used with `etcd_password`."""

    etcd_password: SecretStr | None = None
    """Password of `etcd_user`, given by the variable `FAIRLEAD_ETCD_PASSWORD` and not by a flag, because other users
    can see the flags of a program."""

    etcd_credentials: Path | None = None
    """Folder with the files `ca.crt`, `tls.crt`, `tls.key`, `username` and `password`, like a mounted Secret. Each
    existing file sets the corresponding etcd setting, unless that setting is given directly."""

    lease_seconds: int = Field(default=6, ge=2, le=120)
    """Number of seconds without a lease renewal after which the cluster considers the broker gone and elects other
    leaders. The lease is renewed every third of this time, so that two lost renewals are harmless. The end of a process
    is detected sooner: its peer port refuses connections."""

    config_values: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """Values of Kafka's configuration keys for this broker, such as `segment.bytes`; values set by `PATCH
    /v1/brokers/{broker}/config` take precedence."""

    log_format: str = Field(default="auto", pattern="^(auto|json|console)$")
    """Format of the logs on stderr; `auto` means `console` on a terminal, and `json` otherwise."""

    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    """Minimum level of logged events."""

    access_log: bool = False
    """Whether each request is logged in one line. Access logs are off by default: logging a small produce call costs
    more than the call itself."""

    cors_origins: Origins = ()
    """Origins of web pages that may call the data listener from a browser, such as `https://shop.example`, separated by
    commas; `*` allows all. Without this setting, browsers block pages of other origins."""

    hosts: Hosts = ()
    """Further host names, separated by commas, that clients and scrapers may use to call a data or ops listener on a
    loopback address, for example behind a proxy. IP addresses, `localhost` and the advertised name are always allowed.
    Other host names are refused, so that a web page whose own name resolves to 127.0.0.1 cannot call the broker.
    """

    security: SecurityMode | None = None
    """Least strict security mode of this broker: `open`, `observe` or `enforce`. The stricter of this setting and the
    cluster's `security.mode` applies. The first broker of a new cluster also stores its mode as `security.mode`. A
    broker that listens on an address other than loopback must be given a mode; otherwise the default is `open`.
    """

    allow_plaintext: bool = False
    """Whether a broker with `security=enforce` may listen for clients without TLS on addresses other than loopback,
    because a mesh or a proxy terminates TLS. Without TLS, tokens can be read on the network.
    """

    superusers: Superusers = ()
    """Patterns of principals, separated by commas, that are allowed everything, before any ACL: a name such as
    `user:ann`, or a prefix that ends in `*`. `user:admin` is a superuser if `admin_token_file` is set.
    """

    metrics_access: Literal["open", "token"] | None = None
    """Callers that may read `/metrics` on the ops listener: every client (`open`), or only callers that may `describe`
    the cluster (`token`), as the security mode decides. The default is `token` for a broker with `security=enforce`
    whose ops listener is not on a loopback address, and otherwise `open`. Health checks never need a token.
    """

    admin_token_file: Path | None = Field(default=None, validate_default=True)
    """File with the API token of `user:admin`. If the file does not exist, the broker creates a token and the file,
    which only the broker's user can read. All brokers of a cluster use the same file."""

    link_credentials: Path | None = None
    """Folder with the credentials of links for their sources: `LINK.token` with an API token, `LINK.ca` with
    authorities, `LINK.crt` and `LINK.key` with a client certificate. Each file is optional, and is read at each use."""

    issuers: dict[str, IssuerSettings] = Field(default_factory=dict)
    """Issuers of signed tokens, by name. The principals in the issuer's tokens begin with this name: `corp:ann`. An
    issuer is a table `[issuers.NAME]` of the configuration file, or variables `FAIRLEAD_ISSUERS__NAME__...`."""

    limits: Limits = Field(default_factory=Limits)
    """Limits of queues, sizes, threads and times."""

    @model_validator(mode="before")
    @classmethod
    def _of_pod(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Return the given settings, completed by pod variables, credential files and start keys."""
        merged = {name: value for name, value in given.items() if name != "rack" or value != ""}
        broker = merged.get("id", cls.model_fields["id"].default)
        each = merged.get("advertise_each")
        own = (
            {str(key): value for key, value in each.items()}.get(str(broker))
            if isinstance(each, dict)
            else None
        )
        if own is not None:
            merged["external_advertise" if merged.get("external_listen") else "advertise"] = own
        if isinstance(each, dict):
            merged["advertise_each"] = {
                key: filled(value, key, os.environ) if isinstance(value, str) else value
                for key, value in each.items()
            }
        for name in ("advertise", "advertise_tls", "external_advertise", "peer_advertise", "kafka_advertise"):
            if isinstance(merged.get(name), str):
                merged[name] = filled(merged[name], broker, os.environ)
        if merged.get("etcd_credentials"):
            merged = {**credentials(Path(merged["etcd_credentials"])), **merged}
        return _with_start_keys(merged)

    @field_validator("config_values")
    @classmethod
    def _known_keys(cls, value: dict[str, str | int | float | bool]) -> dict[str, str | int | float | bool]:
        for name, each in value.items():
            try:
                parse_value(name, each, ConfigScope.BROKER)
            except ProblemError as problem:
                raise ValueError(problem.detail) from problem
        return value

    @field_validator("issuers")
    @classmethod
    def _named_issuers(cls, value: dict[str, IssuerSettings]) -> dict[str, IssuerSettings]:
        """Refuse names that other principals use, and two issuers with the same value of `iss`."""
        for name in value:
            check_name(name)
        claims = [each.issuer for each in value.values()]
        if len(set(claims)) < len(claims):
            msg = "two issuers have the same value of issuer"
            raise ValueError(msg)
        return value

    @field_validator("admin_token_file")
    @classmethod
    def _has_administrator(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        """Refuse a broker with `security=enforce` that no principal could administer (rule T4)."""
        is_closed = info.data.get("security") is SecurityMode.ENFORCE
        if is_closed and value is None and not info.data.get("superusers"):
            message = (
                "security=enforce needs admin_token_file or superusers, so that a caller can create ACLs"
            )
            raise ValueError(message)
        return value

    @model_validator(mode="after")
    def _has_material(self) -> Self:
        """Refuse TLS settings without the folder that they need."""

        def lacks_tls(*addresses: Endpoint | None) -> bool:
            return self.tls is None and any(each and each.scheme == "https" for each in addresses)

        lacking = {
            "listen": lacks_tls(*self.listen),
            "ops_listen": lacks_tls(self.ops_listen),
            "external_listen": lacks_tls(self.external_listen),
            "kafka_listen": lacks_tls(self.kafka_listen),
            "client_ca": self.tls is None and self.client_ca is not None,
            "advertise_tls": self.tls is None and self.advertise_tls is not None,
            "peer_listen": self._peer_folder is None and self.peer_listen.scheme == "https",
        }
        for name, lacks in lacking.items():
            if lacks:
                msg = f"{name} needs the setting tls, a folder with tls.crt, tls.key and ca.crt"
                raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _is_reachable_on_purpose(self) -> Self:
        """Refuse a broker that other machines can reach if no mode is set or tokens would be sent without TLS (T4)."""
        others = [each for each in (self.external_listener, self.kafka_listener) if each is not None]
        listens = (*self.listen, self.peer_listen, self.ops_listen, *others)
        outside = [each for each in listens if not each.loopback]
        if outside and self.security is None:
            msg = f"security must be given (open, observe or enforce), because {outside[0]} is not a loopback address"
            raise ValueError(msg)
        if self.security is SecurityMode.ENFORCE and not self.allow_plaintext:
            for each in (*self.data_listens, *others):
                if each.scheme == "http" and not each.loopback:
                    msg = (
                        f"security=enforce needs TLS on {each} (setting tls), since tokens can be read on the network; "
                        "set allow_plaintext if a mesh or a proxy ends TLS"
                    )
                    raise ValueError(msg)
        return self

    @property
    def security_floor(self) -> SecurityMode:
        """Least strict security mode of this broker."""
        return self.security or SecurityMode.OPEN

    @property
    def _peer_folder(self) -> Path | None:
        return self.peer_tls or self.tls

    @property
    def data_listens(self) -> tuple[Endpoint, ...]:
        """Addresses of the data listener, each with its scheme."""
        return tuple(_with_scheme(each, self.tls) for each in self.listen)

    @property
    def external_listener(self) -> Endpoint | None:
        """Address of the listener for external clients, with its scheme."""
        return None if self.external_listen is None else _with_scheme(self.external_listen, self.tls)

    @property
    def kafka_listener(self) -> Endpoint | None:
        """Address of the Kafka listener, with its scheme: `https` stands for TLS."""
        return None if self.kafka_listen is None else _with_scheme(self.kafka_listen, self.tls)

    def advertised(self, scheme: str) -> Endpoint | None:
        """Return the address advertised to clients that use a scheme; None if no listener has this scheme.

        Without a setting, the result is the first address of the scheme, whose port may be 0.
        """
        listens = self.data_listens
        first = next((each for each in listens if each.scheme == scheme), None)
        if first is None:
            return None
        is_only = all(each.scheme == scheme for each in listens)
        named = (
            self.advertise
            if scheme == "http"
            else self.advertise_tls or (self.advertise if is_only else None)
        )
        return named or first

    @property
    def external_url(self) -> str | None:
        """Base URL for clients of the external listener.

        The URL is None if there is no external listener, and empty if external clients should keep using the address
        that they called.
        """
        if self.external_listener is None:
            return None
        if self.external_advertise is None:
            return ""
        scheme = self.external_advertise.scheme or self._external_scheme
        return f"{scheme}://{self.external_advertise}"

    @property
    def _external_scheme(self) -> str:
        listener = self.external_listener
        return self.external_scheme or (listener.scheme if listener is not None else "http")

    @property
    def etcd_endpoints(self) -> tuple[str, ...]:
        """URLs of etcd's members, or no URLs if coordination is embedded."""
        return tuple(url.strip() for url in (self.etcd or "").split(",") if url.strip())

    @property
    def topic_defaults(self) -> dict[str, str | int | float | bool]:
        """Topic keys among the broker's configuration keys."""
        return {key: value for key, value in self.config_values.items() if key in TOPIC_KEYS}

    @property
    def listeners(self) -> ListenerSettings:
        """Settings for the server package."""
        return ListenerSettings(
            data=self.data_listens,
            peer=_with_scheme(self.peer_listen, self._peer_folder),
            ops=_with_scheme(self.ops_listen, self.tls),
            limits=self.limits,
            access_log=self.access_log,
            cors_origins=self.cors_origins,
            own_names=self._own_names(),
            tls_min=self.tls_min,
            external=self.external_listener,
            kafka=self.kafka_listener,
            external_scheme=self._external_scheme,
            forwards_external=not self.external_url,
            metrics_by_token=self._metrics_by_token,
        )

    @property
    def _metrics_by_token(self) -> bool:
        if self.metrics_access is not None:
            return self.metrics_access == "token"
        return self.security is SecurityMode.ENFORCE and not self.ops_listen.loopback

    def _own_names(self) -> tuple[str, ...]:
        named = (self.advertise, self.advertise_tls, self.external_advertise)
        return (*self.hosts, *(each.host for each in named if each is not None))

    @classmethod
    def load(cls, flags: Mapping[str, Any] | None = None, config_file: Path | None = None) -> BrokerSettings:
        """Load settings. Flags (None = not given) take precedence over variables, then the file, then the defaults.

        Raises OSError if the file cannot be read, and ValueError (also as pydantic's ValidationError) if a value is
        invalid.
        """
        given = {name: value for name, value in (flags or {}).items() if value is not None}
        layered = _without_file(cls) if config_file is None else _layered(cls, read_config_file(config_file))
        loaded = layered(**given)
        return cls.model_construct(**{name: getattr(loaded, name) for name in cls.model_fields})


def _layered(settings: type[BrokerSettings], from_file: Mapping[str, Any]) -> type[BrokerSettings]:
    """Return a class that loads flags, variables and the values of a file, in this order of precedence."""

    class Layered(settings):  # type: ignore[valid-type, misc]
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[Any, ...]:
            return init_settings, env_settings, lambda: from_file

    return Layered


@cache
def _without_file(settings: type[BrokerSettings]) -> type[BrokerSettings]:
    """Return the class that loads flags and variables; pydantic needs milliseconds to build a class."""
    return _layered(settings, {})


def _with_scheme(address: Endpoint, folder: Path | None) -> Endpoint:
    """Return the address of a listener with its scheme, by default `https` for a listener with a TLS folder."""
    return replace(address, scheme=address.scheme or ("http" if folder is None else "https"))


def _with_start_keys(given: dict[str, Any]) -> dict[str, Any]:
    """Set the settings that correspond to Kafka's start keys in `config_values`, unless a setting is given directly.

    The values of start keys are validated together with all other `config_values`.
    """
    values = given.get("config_values")
    if not isinstance(values, dict):
        return given
    limits = given.get("limits", {})
    for name, setting in START_KEYS.items():
        with suppress(ProblemError):
            if name in values:
                number = int(parse_value(name, values[name], ConfigScope.BROKER))
                if setting == "lease_seconds":
                    given = {setting: -(-number // 1000), **given}
                elif isinstance(limits, dict):
                    limits = {setting: number, **limits}
    return {**given, "limits": limits} if limits else given


def read_config_file(path: Path) -> dict[str, Any]:
    """Return the settings in a TOML (`.toml`) or YAML (`.yaml`, `.yml`) file. Dashes in names become underscores.

    Raises OSError if the file cannot be read, and ValueError if it does not contain a table of settings.
    """
    content = _parse(path, path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        msg = f"{path}: expected names and values at the top level, found {type(content).__name__}"
        raise ValueError(msg)  # noqa: TRY004 - the file's content is invalid, not an argument's type
    return {str(name).replace("-", "_"): value for name, value in content.items()}


def _parse(path: Path, text: str) -> object:
    if path.suffix in {".yaml", ".yml"}:
        return _parse_yaml(path, text)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        msg = f"{path}: {error}"
        raise ValueError(msg) from error


def _parse_yaml(path: Path, text: str) -> object:
    import yaml  # noqa: PLC0415 - slow to import, and needed only for YAML files

    try:
        return {} if (content := yaml.safe_load(text)) is None else content
    except yaml.YAMLError as error:
        msg = f"{path}: {error}"
        raise ValueError(msg) from error
