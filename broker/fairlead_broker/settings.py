"""Settings of a broker: one frozen object, built once at the start and passed down as small parts.

`commands` builds it; flags go over `FAIRLEAD_...` variables, those over the configuration file, that over
the defaults here. Settings are values: nothing is opened or connected in this module.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from fairlead_api.bodies.requests import TIMEOUT_MS_MAX, WAIT_MS_MAX
from fairlead_api.configuration import TOPIC_KEYS, ConfigScope, parse_value
from fairlead_api.problems import ProblemError
from fairlead_broker.pod import credentials, filled

KIB = 1 << 10
MIB = 1 << 20
START_KEYS = {
    "broker.session.timeout.ms": "lease_seconds",
    "max.connections": "connections_max",
    "num.io.threads": "disk_threads",
    "num.recovery.threads.per.data.dir": "open_partition_threads",
}
"""Configuration keys that are read when a broker starts, and the setting or limit that each one is."""
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/?#\s]+")
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})
EVERY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - what a listener is bound to, not where it is


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """A host and a port; port 0 asks the system for a free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Read `HOST:PORT`, the host in brackets where it is an IPv6 address.

        Raises ValueError naming the text when it is anything else.
        """
        host, colon, port = text.strip().rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
            msg = f"{text!r} is not HOST:PORT (port 0 to 65535)"
            raise ValueError(msg)
        return cls(host, int(port))

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in LOOPBACK_HOSTS or self.host.startswith("127.")

    @property
    def everywhere(self) -> bool:
        """Whether it stands for every address of a machine, the loopback one too."""
        return self.host in EVERY_ADDRESS

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def _endpoint(value: object) -> object:
    return Endpoint.parse(value) if isinstance(value, str) else value


EndpointText = Annotated[
    Endpoint, NoDecode, BeforeValidator(_endpoint), PlainSerializer(str, return_type=str)
]


def _list_of(pattern: re.Pattern[str], wanted: str) -> BeforeValidator:
    """Read texts separated by commas. Raises ValueError naming a text that does not match, and what is `wanted`."""

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


class Limits(BaseModel):
    """Every bound of the broker, each with its reason. Overridden as `FAIRLEAD_LIMITS__<NAME>`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    disk_threads: int = Field(default=4, ge=1, le=64)
    """Threads that append and read. More only help when the disk waits: on two cores four keep an NVMe
    volume busy, and each thread that has Python work to do takes the loop's turn."""

    sync_threads: int = Field(default=16, ge=1, le=64)
    """Files synced in parallel in one round. Measured with 500 dirty files: 180 ms one by one, 50 ms on 8
    threads; beyond 16 the journal of ext4 is the limit. The threads sleep in the kernel."""

    unsynced_bytes_max: int = Field(default=256 * MIB, ge=1 * MIB)
    """Bytes appended but not yet synced in a data directory. Bounds what a stop has to sync and what a
    recovery has to read; appends wait at the bound, and syncing begins at half of it."""

    sync_interval_seconds: float = Field(default=5.0, gt=0)
    """How long replicated bytes may stay unsynced in the background, as often as the checkpoint is written:
    together they bound how much of the log a recovery reads."""

    checkpoint_interval_seconds: float = Field(default=5.0, gt=0)
    """Time between two checkpoints of log start, high watermark and recovery point."""

    checkpoint_bytes_max: int = Field(default=128 * MIB, ge=1 * MIB)
    """Bytes appended after which the checkpoint does not wait for its time: a start after a kill reads what was
    appended since, checksums and all, at about a GiB a second."""

    scrub_interval_seconds: float = Field(default=7 * 86_400.0, gt=0)
    """Time in which every stored byte is read once and its checksum verified. A week: bits change rarely, and damage
    that is found early can be repaired from other replicas."""

    scrub_bytes_per_second_max: int = Field(default=32 * MIB, ge=64 << 10)
    """Never faster than this, so that a volume of 19 TB is the most that is done within a week, and clients keep
    the disk."""

    partition_queue_batches_max: int = Field(default=1000, ge=1)
    """Batches waiting for one partition's task; one writev takes 1,024 buffers. Beyond it: `overloaded`."""

    produce_bytes_max: int = Field(default=256 * MIB, ge=1 * MIB)
    """Batches held in memory by all unfinished appends of the broker. Beyond it: `overloaded`."""

    validation_on_loop_bytes_max: int = Field(default=2 * MIB, ge=0)
    """Uncompressed batches up to this size are validated on the event loop: checksum and Arrow checks of
    1.2 MB take about 0.2 ms, and handing over to a thread costs up to 0.1 ms and the loop's turn."""

    validation_threads: int = Field(default=2, ge=1, le=64)
    """Threads that validate larger and compressed batches; neither appends nor reads wait behind them. Each holds
    up to `decompressed_bytes_max` beside the batch, which was counted in `produce_bytes_max` before."""

    decompressed_bytes_max: int = Field(default=64 * MIB, ge=1 * MIB)
    """What a compressed batch may open to. A 33 KB body can claim a GiB."""

    fetch_bytes_max: int = Field(default=64 * MIB, ge=1 * MIB)
    """Bytes in one fetch answer, whatever the request says (Kafka's fetch.max.bytes is 55 MiB)."""

    fetch_wait_seconds_max: float = Field(default=WAIT_MS_MAX / 1000, gt=0)
    """Longest long poll: load balancers cut idle requests after 60 seconds and more."""

    produce_timeout_seconds_max: float = Field(default=TIMEOUT_MS_MAX / 1000, gt=0)
    """Longest wait for an acknowledgement."""

    partitions_max: int = Field(default=10_000, ge=1)
    """Partitions on one broker: each holds open files and a task."""

    stop_answer_seconds: float = Field(default=5.0, gt=0)
    """How long a stop lets waiting calls finish before it answers them with a problem."""

    open_partition_threads: int = Field(default=4, ge=1, le=64)
    """Partitions recovered in parallel at the start."""

    request_body_bytes_max: int = Field(default=64 * MIB, ge=1 * MIB)
    """Largest request body; larger answers `body_too_large`, before it is read where its length is announced."""

    json_body_bytes_max: int = Field(default=16 * MIB, ge=64 * KIB)
    """Largest JSON body of a produce call. Parsed, small records take ten times their text; larger loads belong into
    Arrow or record batches."""

    bodies_bytes_max: int = Field(default=256 * MIB, ge=1 * MIB)
    """Bytes of request bodies that all calls together hold, from the first byte to the answer. From three quarters on
    new bodies are refused (`overloaded`) before they are read; the rest is for bodies under way."""

    produce_calls_max: int = Field(default=1000, ge=1)
    """Produce calls under way at once, waiting for acks included. Beyond it `overloaded`, before the body is read: the
    queue stays so short that an admitted call is answered in time, and a refusal costs little."""

    body_seconds_max: float = Field(default=60.0, gt=0)
    """How long a request body may take to arrive; the slowest honest link brings 64 MiB in less."""

    body_idle_seconds_max: float = Field(default=10.0, gt=0)
    """How long a request body may pause. A client that announced a body and sends nothing holds a stream."""

    answers_bytes_max: int = Field(default=256 * MIB, ge=1 * MIB)
    """Bytes of fetch answers that were read and are not yet taken by their readers. One answer gets at most a quarter
    of what is free; when all is taken, answers shrink to 256 KiB, and readers that stall lose their connections."""

    reader_stall_seconds_max: float = Field(default=60.0, gt=0)
    """How long a reader may take nothing of its answer before its connection is closed (nginx's default)."""

    crowded_stall_seconds_max: float = Field(default=3.0, gt=0)
    """The same while `answers_bytes_max` is reached: 256 KiB in three seconds is slower than any link in use."""

    long_polls_max: int = Field(default=20_000, ge=1)
    """Fetches that wait for records at once, about 10 KB each. Beyond it `overloaded` rather than an empty answer,
    which would be asked again at once."""

    connections_max: int = Field(default=0, ge=0)
    """Connections of the data listener at once; 0 takes three quarters of the limit of open files. Further ones wait
    in the listener's queue."""

    streams_per_connection_max: int = Field(default=256, ge=1, le=4096)
    """Requests of one HTTP/2 connection at once; a client with more waits, other connections do not."""

    header_bytes_max: int = Field(default=32 * KIB, ge=8 * KIB)
    """Headers and target of one request, with 32 bytes for each header beside its name and value, as HTTP/2 counts.
    They are a path, some ids and a traceparent; beyond it 431 or a closed stream. Over HTTP/1.1 the HTTP server takes
    more before the broker may refuse it: 64 KiB of a target, 100 headers, some 400 KiB in all."""

    header_seconds_max: float = Field(default=75.0, gt=0)
    """How long the headers of an HTTP/1.1 request may take: the first from their first byte, all others from the last
    answer, so that an idle connection ends then. More than the 60 s for which load balancers keep one (nginx's): a
    request that is sent into a connection which is just being closed is lost."""

    ping_interval_seconds: float = Field(default=30.0, gt=0)
    """Time between two HTTP/2 pings on a connection without traffic; one without answer for 20 s ends it."""


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """What the server room needs to know, and nothing else."""

    data_host: str
    data_port: int
    peer_host: str
    peer_port: int
    ops_host: str
    ops_port: int
    limits: Limits
    access_log: bool
    cors_origins: tuple[str, ...] = ()
    loopback_hosts: tuple[str, ...] | None = None
    """Names by which clients call a data listener on a loopback address; None for other addresses."""


class BrokerSettings(BaseSettings):
    """Settings of a broker. Field names are the flags and the `FAIRLEAD_...` variables."""

    model_config = SettingsConfigDict(
        env_prefix="FAIRLEAD_",
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
    )

    cluster: str = Field(default="fairlead", pattern=r"^[a-zA-Z0-9._-]{1,249}$")
    """Name of the cluster; part of every coordination key."""

    id: int = Field(default=0, ge=0, le=2_147_483_647)
    """Broker id, unique in the cluster."""

    data: Path = Path("fairlead-data")
    """Data directory: logs, and the coordination store when it is embedded."""

    listen: EndpointText = Endpoint("127.0.0.1", 9520)
    """Address of the data listener. `[::]` is every address of IPv6 and of IPv4, `0.0.0.0` every one of IPv4 alone."""

    peer_listen: EndpointText = Endpoint("127.0.0.1", 9521)
    """Address of the peer listener."""

    ops_listen: EndpointText = Endpoint("127.0.0.1", 9522)
    """Address of the ops listener, for health checks and Prometheus."""

    advertise: EndpointText | None = None
    """Address advertised to clients; by default the bound address of the data listener. In a pod it has placeholders:
    `{id}`, `{pod}`, `{namespace}` and `{ip}`, of which all but the first stand for the variables `POD_NAME`,
    `POD_NAMESPACE` and `POD_IP`."""

    advertise_each: dict[int, EndpointText] = Field(default_factory=dict)
    """Address advertised to clients, by broker id: one file for all brokers. An entry of its own id goes before
    `advertise`."""

    peer_advertise: EndpointText | None = None
    """Address advertised to other brokers; by default the bound address of the peer listener. Placeholders as in
    `advertise`."""

    rack: str | None = None
    """Rack or zone, for spreading replicas. Empty is none: a node without a zone."""

    etcd: str | None = None
    """URLs of etcd's members, separated by commas. Without, coordination is embedded, and this broker the only one."""

    etcd_ca: Path | None = None
    """Certificates in PEM of the authority that signs etcd's certificates; for `https`."""

    etcd_cert: Path | None = None
    """The broker's own certificate in PEM, where etcd asks for one; with `etcd_key`."""

    etcd_key: Path | None = None
    """The key of `etcd_cert`."""

    etcd_user: str | None = None
    """Name of a user of etcd; with `etcd_password`."""

    etcd_password: SecretStr | None = None
    """Password of `etcd_user`, by the variable `FAIRLEAD_ETCD_PASSWORD` alone: others see the flags of a program."""

    etcd_credentials: Path | None = None
    """Folder with the files `ca.crt`, `tls.crt`, `tls.key`, `username` and `password`, as a Secret is mounted: each
    that is there is the setting of etcd that was not given otherwise."""

    lease_seconds: int = Field(default=6, ge=2, le=120)
    """After which the cluster takes a silent broker for gone and elects others in its place. Renewed each third, so
    that two lost renewals do no harm."""

    config_values: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """The broker's own values of Kafka's configuration keys, such as `segment.bytes`; what is set on the broker by
    `PATCH /v1/brokers/{broker}/config` goes before them."""

    log_format: str = Field(default="auto", pattern="^(auto|json|console)$")
    """Shape of the logs on stderr; auto is console on a terminal, else json."""

    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    """Least level that is logged."""

    access_log: bool = False
    """One log line a request. Off: at full rate it costs more than a small produce."""

    cors_origins: Origins = ()
    """Origins of web pages that may call the data listener from a browser, such as `https://shop.example`, separated by
    commas; `*` for all. Without, browsers keep pages of other origins out."""

    hosts: Hosts = ()
    """Further names, separated by commas, by which clients call a data listener on a loopback address, as behind a
    proxy. IP addresses, `localhost` and the advertised name are always allowed, other names are refused: a web page
    whose own name resolves to 127.0.0.1 does not reach the broker."""

    limits: Limits = Field(default_factory=Limits)
    """Bounds of queues, sizes, threads and times."""

    @model_validator(mode="before")
    @classmethod
    def _of_pod(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Fill in what other settings and the pod say."""
        merged = {name: value for name, value in given.items() if name != "rack" or value != ""}
        broker = merged.get("id", cls.model_fields["id"].default)
        each = merged.get("advertise_each")
        own = (
            {str(key): value for key, value in each.items()}.get(str(broker))
            if isinstance(each, dict)
            else None
        )
        if own is not None:
            merged["advertise"] = own
        for name in ("advertise", "peer_advertise"):
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

    @property
    def etcd_endpoints(self) -> tuple[str, ...]:
        """URLs of etcd's members; none where coordination is embedded."""
        return tuple(url.strip() for url in (self.etcd or "").split(",") if url.strip())

    @property
    def topic_defaults(self) -> dict[str, str | int | float | bool]:
        """The topic keys among the broker's configuration keys."""
        return {key: value for key, value in self.config_values.items() if key in TOPIC_KEYS}

    @property
    def listeners(self) -> ListenerSettings:
        """The part that the server room gets."""
        return ListenerSettings(
            data_host=self.listen.host,
            data_port=self.listen.port,
            peer_host=self.peer_listen.host,
            peer_port=self.peer_listen.port,
            ops_host=self.ops_listen.host,
            ops_port=self.ops_listen.port,
            limits=self.limits,
            access_log=self.access_log,
            cors_origins=self.cors_origins,
            loopback_hosts=self._own_names() if self.listen.loopback else None,
        )

    def _own_names(self) -> tuple[str, ...]:
        return self.hosts if self.advertise is None else (*self.hosts, self.advertise.host)

    @classmethod
    def load(cls, flags: Mapping[str, Any] | None = None, config_file: Path | None = None) -> BrokerSettings:
        """Settings from flags (None = not given) over environment over file over defaults.

        Raises OSError when the file cannot be read, ValueError (pydantic's, too) when a value is wrong.
        """
        given = {name: value for name, value in (flags or {}).items() if value is not None}
        from_file = read_config_file(config_file) if config_file else {}

        class Layered(cls):  # type: ignore[valid-type, misc]
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

        loaded = Layered(**given)
        return cls.model_construct(**{name: getattr(loaded, name) for name in cls.model_fields})


def _with_start_keys(given: dict[str, Any]) -> dict[str, Any]:
    """Set the settings that Kafka's start keys in `config_values` stand for, unless they are given by their own names.

    Their values are checked with all others of `config_values`.
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
    """The settings in a TOML (`.toml`) or YAML (`.yaml`, `.yml`) file; dashes in names are underscores.

    Raises OSError when it cannot be read and ValueError when it does not hold a table of settings.
    """
    content = _parse(path, path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        msg = f"{path}: expected names and values at the top, found {type(content).__name__}"
        raise ValueError(msg)  # noqa: TRY004 - the file is wrong, not the caller's type
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
    import yaml  # noqa: PLC0415 - a twentieth of the start, needed only where a YAML file is used

    try:
        return {} if (content := yaml.safe_load(text)) is None else content
    except yaml.YAMLError as error:
        msg = f"{path}: {error}"
        raise ValueError(msg) from error
