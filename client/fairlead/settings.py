"""Typed settings for the producer, the consumer and the admin client, with the reason for each limit.

The public classes build the settings once from their keyword arguments and pass the settings to other modules. Every
value is checked here, so that the other modules need not check it again. Durations are `timedelta` or text with a unit
("30s", "250ms", "2m"); a bare number is refused because it has no unit, except for `linger_ms`, whose name contains the
unit. The module must not depend on how a setting is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final, TypeAlias, get_args
from urllib.parse import urlsplit

from fairlead.credentials import ALLOW_INSECURE_VARIABLE, NO_TOKEN, Credentials, TokenProvider
from fairlead.errors import SettingError
from fairlead.tls_files import NO_FILES, FilePath, TlsFiles
from fairlead_api.batch.header import Codec
from fairlead_api.bodies.requests import Isolation
from fairlead_api.identifiers import Acks

DEFAULT_BOOTSTRAP: Final = "http://127.0.0.1:9520"

ONE_ADDRESS_VARIABLE: Final = "FAIRLEAD_ONE_ADDRESS"
FOLLOW_MOVES_VARIABLE: Final = "FAIRLEAD_FOLLOW_MOVES"
_TRUTHS: Final = {"": False, "false": False, "0": False, "true": True, "1": True}

KIB: Final = 1024
MIB: Final = 1024 * KIB

Duration: TypeAlias = timedelta | str
"""A span of time: a `timedelta`, or a number with its unit: us, ms, s, m, h."""

_UNIT_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s|m|h)\s*")


class OffsetPolicy(StrEnum):
    """Reaction of a consumer to a requested offset that is not in the log."""

    EARLIEST = "earliest"
    LATEST = "latest"
    ERROR = "error"


ResetPolicy: TypeAlias = OffsetPolicy | timedelta
"""Start or end of the log, an error, or a duration, which selects the first record of at most that age."""


def seconds_of(value: Duration, name: str) -> float:
    """Return a duration in seconds; raise `SettingError` with the setting's name for a value that is not a duration."""
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        if seconds >= 0:
            return seconds
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value)):
        return float(match[1]) * _UNIT_SECONDS[match[2]]
    raise SettingError(name, value, 'a timedelta or text with a unit, not negative, such as "30s" or "250ms"')


def seconds_of_ms(value: float, name: str) -> float:
    """Convert a number of milliseconds to seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return value / 1000
    raise SettingError(name, value, "a number of milliseconds, 0 or more, such as 5 or 0.5")


def batch_bytes_of(value: int, name: str, buffer_bytes: int) -> int:
    """Return the batch size, at most the buffer size: a larger batch could never be filled."""
    check_whole(value, name, least=1)
    check_whole(buffer_bytes, "buffer_bytes", least=1)
    return min(value, buffer_bytes)


def check_whole(value: object, name: str, *, least: int) -> None:
    """Raise `SettingError` unless the value is a whole number of at least `least`; booleans are refused."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SettingError(name, value, f"a whole number, {least} or more")


def check_text(value: object, name: str) -> None:
    """Raise `SettingError` unless the value is text or None."""
    if value is not None and not isinstance(value, str):
        raise SettingError(name, value, "text")


def texts_of(value: object, name: str) -> tuple[str, ...]:
    """Return one string, or several strings without duplicates, as a tuple."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Iterable):
        raise SettingError(name, value, "text, or several texts")
    texts = list(value)
    if not all(isinstance(text, str) for text in texts):
        raise SettingError(name, value, "text, or several texts")
    return tuple(dict.fromkeys(texts))


def bootstrap_of(value: str | Iterable[str]) -> tuple[str, ...]:
    """Return the bootstrap addresses of a comma-separated text or a list, without trailing slashes."""
    addresses = value.split(",") if isinstance(value, str) else texts_of(value, "bootstrap")
    cleaned = tuple(dict.fromkeys(address.strip().rstrip("/") for address in addresses if address.strip()))
    for address in cleaned:
        if not _is_address(address):
            meant = _meant(address)
            asked = "" if meant is None else f"; did you mean {meant}?"
            allowed = f"http://HOST:PORT or https://HOST:PORT, several separated by commas{asked}"
            raise SettingError("bootstrap", address, allowed)
    if not cleaned:
        raise SettingError("bootstrap", value, "at least one address such as http://127.0.0.1:9520")
    return cleaned


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:  # The port is invalid, or an IPv6 address is incomplete.
        return False
    known = parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0
    return known and not any((parts.path, parts.query, parts.fragment, re.search(r"\s", text)))


def _meant(text: str) -> str | None:
    """Return a suggestion for an invalid address: Kafka's addresses have no scheme, and copied URLs have a path."""
    scheme, divider, rest = text.rpartition("://")
    place = rest.partition("/")[0].partition("?")[0].partition("#")[0]
    if divider and scheme not in ("http", "https"):
        return None
    known = scheme or "http"
    if place.count(":") > 1 and "[" not in place:
        # An IPv6 address needs brackets that separate it from its port.
        return f"{known}://[IPV6-ADDRESS]:PORT"
    address = f"{known}://{place}"
    return address if _is_address(address) and (divider or urlsplit(address).port) else None


def acks_of(value: Acks | str | int) -> Acks:
    """Return the acknowledgement level for `0`, `1`, `"all"` (or Kafka's -1)."""
    text = "all" if value == -1 else str(value.value if isinstance(value, Acks) else value)
    for acks in Acks:
        if acks.value == text:
            return acks
    raise SettingError("acks", value, '0, 1 or "all"')


def idempotence_of(value: bool | None, acks: Acks) -> bool:
    """Return whether a producer is idempotent, which is the default if acks allow idempotence, as in Kafka."""
    if value is None:
        return acks is Acks.ALL
    if isinstance(value, bool):
        return value
    raise SettingError("idempotence", value, "True, False, or None, which means True if acks allows it")


def codec_of(value: Codec | str) -> Codec:
    """Return the codec for `"none"`, `"lz4"` or `"zstd"`."""
    if isinstance(value, Codec):
        return value
    if isinstance(value, str) and value.upper() in Codec.__members__:
        return Codec[value.upper()]
    raise SettingError("compression", value, '"none", "lz4" or "zstd"')


def policy_of(value: OffsetPolicy | Duration, name: str) -> ResetPolicy:
    """Return the offset policy for `"earliest"`, `"latest"`, `"error"` (Kafka's `"none"`) or a duration."""
    if value == "none":
        return OffsetPolicy.ERROR
    if isinstance(value, str) and value in OffsetPolicy.__members__.values():
        return OffsetPolicy(value)
    try:
        return timedelta(seconds=seconds_of(value, name))
    except (SettingError, OverflowError):
        allowed = '"earliest", "latest", "error" (the same as "none") or a duration such as "10m"'
        raise SettingError(name, value, allowed) from None


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise SettingError(name, value, allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Settings for finding and calling brokers, shared by all three clients."""

    bootstrap: tuple[str, ...] = (DEFAULT_BOOTSTRAP,)
    """Addresses that the client tries first; one running broker among them is sufficient."""
    connect_timeout_seconds: float = 5.0
    """Timeout for opening one connection."""
    request_timeout_seconds: float = 30.0
    """Timeout for one attempt of a call; a produce request also contains the value as `timeout_ms`."""
    retry_timeout_seconds: float = 30.0
    """Timeout of an admin or metadata call with all its attempts."""
    retry_backoff_seconds: float = 0.1
    """Pause after the first failed attempt."""
    retry_backoff_seconds_max: float = 1.0
    """Maximum pause between two attempts."""
    metadata_age_seconds_max: float = 300.0
    """Age at which the metadata is refreshed even without a refusal, so that the client detects new partitions."""
    tls: TlsFiles = NO_FILES
    """TLS files for brokers with `https` addresses."""
    credentials: Credentials = NO_TOKEN
    """Source of the token that names the caller."""
    one_address: bool = False
    """Whether every call goes to a bootstrap address, whose broker forwards calls to leaders and coordinators. The
    setting is for clients that cannot reach the addresses of the other brokers."""
    follow_moves: bool = False
    """Whether a producer or consumer continues in the other cluster after a topic was handed over to that cluster."""

    def __post_init__(self) -> None:
        """Check the values."""
        _require(self.connect_timeout_seconds > 0, "connect_timeout", self.connect_timeout_seconds, "above 0")
        _require(self.request_timeout_seconds > 0, "request_timeout", self.request_timeout_seconds, "above 0")
        for address in self.bootstrap:
            self.credentials.check_safe(address)

    @property
    def uses_tls(self) -> bool:
        """Whether a bootstrap address is an `https` address; in this case brokers report only `https` addresses."""
        return any(address.startswith("https://") for address in self.bootstrap)

    @property
    def backoff(self) -> Backoff:
        """Pauses between the attempts of a call."""
        return Backoff(self.retry_backoff_seconds, self.retry_backoff_seconds_max)


def connection_of(
    bootstrap: str | Iterable[str],
    *,
    connect: Duration,
    request: Duration,
    retry: Duration,
    token: str | None = None,
    token_file: FilePath | None = None,
    token_provider: TokenProvider | None = None,
    allow_insecure_token: bool | None = None,
    ca_file: FilePath | None = None,
    client_cert_file: FilePath | None = None,
    client_key_file: FilePath | None = None,
    one_address: bool | None = None,
    follow: bool | None = False,
) -> ConnectionSettings:
    """Return the connection settings from the arguments of a client; an admin client never follows moves."""
    return ConnectionSettings(
        bootstrap=bootstrap_of(bootstrap),
        connect_timeout_seconds=seconds_of(connect, "connect_timeout"),
        request_timeout_seconds=seconds_of(request, "request_timeout"),
        retry_timeout_seconds=seconds_of(retry, "retry_timeout"),
        tls=TlsFiles.chosen(ca_file, client_cert_file, client_key_file),
        credentials=Credentials.chosen(
            token,
            token_file,
            token_provider,
            allow_insecure=truth_of(allow_insecure_token, "allow_insecure_token", ALLOW_INSECURE_VARIABLE),
        ),
        one_address=truth_of(one_address, "one_address", ONE_ADDRESS_VARIABLE),
        follow_moves=truth_of(follow, "follow_moves", FOLLOW_MOVES_VARIABLE),
    )


def truth_of(value: bool | None, name: str, variable: str) -> bool:
    """Return an argument, or the truth value of an environment variable if the argument is None."""
    if isinstance(value, bool):
        return value
    text = os.environ.get(variable, "") if value is None else ""
    if value is not None or text.lower() not in _TRUTHS:
        raise SettingError(name, value if value is not None else text, "True or False")
    return _TRUTHS[text.lower()]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential pauses with jitter: doubled after each attempt up to `seconds_max`, with half of the pause random.

    No retry library is used, because the accumulator and the prefetch buffer need the pause as a number, and the hooks
    of retry libraries are global in the user's process.
    """

    seconds_initial: float
    seconds_max: float

    def seconds(self, attempts: int, chance: float, advice_seconds: float | None = None) -> float:
        """Return the pause after `attempts` failures, which is never shorter than the pause that the server advised."""
        # Without the limit on the exponent, a day of retries would overflow the float.
        full = min(self.seconds_initial * 2.0 ** min(max(attempts - 1, 0), 30), self.seconds_max)
        return max(full * (0.5 + chance / 2), advice_seconds or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Settings for batching, sending and retrying records."""

    acks: Acks = Acks.ALL
    """Replicas that must have a record before its acknowledgement: all in-sync replicas, the leader (1), none (0)."""
    linger_seconds: float = 0.005
    """Time that a batch waits for more records; the value is Kafka's default."""
    batch_bytes: int = 256 * KIB
    """Payload at which a batch of single records is sent without further waiting."""
    columnar_batch_bytes: int = MIB
    """Payload of the pieces into which `send_batch` splits tables."""
    codec: Codec = Codec.NONE
    """Compression of batches: `"none"`, `"lz4"` for speed, `"zstd"` for size."""
    buffer_bytes: int = 64 * MIB
    """Maximum unacknowledged payload, beyond which `send` waits for space."""
    request_bytes_max: int = 8 * MIB
    """Maximum size of a request with batches of several partitions; a single batch may exceed this size."""
    requests_in_flight_max: int = 5
    """Maximum number of unfinished requests to one broker. A partition has at most five unfinished batches, or one
    without idempotence, because HTTP/2 streams overtake each other."""
    delivery_timeout_seconds: float = 120.0
    """Timeout from `send` to the acknowledgement, all retries included."""
    retries_max: int | None = None
    """Maximum number of retries; 0 with acks 0 or 1 gives at-most-once delivery. If None, only the delivery timeout
    stops the retries."""
    idempotence: bool = True
    """Whether batches have a producer id and sequences, so that a retried batch is stored only once. Idempotence is
    the default if acks is `"all"`."""
    name: str | None = None
    """Name of an idempotent producer: the next producer with the name fences this producer."""
    transactional: str | bool = False
    """Whether the producer sends records in transactions. A text is the name of the producer, which fences earlier
    producers with the same name."""
    transaction_timeout_seconds: float = 60.0
    """Time after which the cluster aborts an open transaction."""

    def __post_init__(self) -> None:
        """Check each value and the consistency of the values."""
        _require(self.linger_seconds >= 0, "linger_ms", self.linger_seconds * 1000, "0 or more")
        check_whole(self.batch_bytes, "batch_bytes", least=1)
        check_whole(self.columnar_batch_bytes, "columnar_batch_bytes", least=1)
        check_whole(self.requests_in_flight_max, "requests_in_flight_max", least=1)
        check_whole(self.request_bytes_max, "request_bytes_max", least=1)
        check_whole(self.buffer_bytes, "buffer_bytes", least=1)
        _require(
            self.delivery_timeout_seconds > 0, "delivery_timeout", self.delivery_timeout_seconds, "above 0"
        )
        if self.retries_max is not None:
            check_whole(self.retries_max, "retries_max", least=0)
        check_text(self.name, "name")
        if self.transactional is not False:
            self._check_transactional()
        _require(
            self.acks is Acks.ALL or not self.idempotence,
            "acks",
            self.acks.value,
            '"all" with idempotence=True; without the argument idempotence, it is off with acks 0 and 1',
        )
        _require(
            self.name is None or self.idempotence,
            "name",
            self.name,
            "only with idempotence, which needs acks=all",
        )

    def _check_transactional(self) -> None:
        if self.transactional is not True:
            check_text(self.transactional, "transactional")
        _require(
            self.idempotence,
            "transactional",
            self.transactional,
            "only with idempotence, which needs acks=all",
        )
        _require(self.name is None, "name", self.name, "omitted with transactional, whose value is the name")
        _require(
            self.transaction_timeout_seconds >= 1,
            "transaction_timeout",
            self.transaction_timeout_seconds,
            "1 s or more",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Settings for fetching records ahead of the reader."""

    fetch_wait_seconds_max: float = 0.5
    """Maximum time that a broker delays the answer to a fetch that finds less than `fetch_bytes_min`."""
    fetch_bytes_min: int = 1
    """Number of bytes for which a broker waits, at most for `fetch_wait_max`, before it answers a fetch."""
    fetch_bytes_max: int = 4 * MIB
    """Maximum size of an answer for all partitions together; the first batch may exceed this size.

    Larger answers cost the client more, not less: from about 8 MiB, allocating new memory for each answer takes as much
    processor time as all other work.
    """
    partition_fetch_bytes_max: int = 4 * MIB
    """Maximum number of bytes of one partition in an answer; the partition's first batch may exceed this size."""
    prefetch_bytes: int = 64 * MIB
    """Maximum bytes of all partitions together that are fetched and not yet read; the answers to two more requests may
    exceed this size."""
    requests_in_flight_max: int = 4
    """Maximum number of fetches in flight to one broker, for disjoint partitions, so that a long poll does not delay
    the other partitions."""
    offset_policy: ResetPolicy = OffsetPolicy.ERROR
    """Reaction to an offset outside the log; with the default `error`, records are never skipped silently."""
    isolation: Isolation = "read_uncommitted"
    """Whether records of transactions that are open or aborted are read (`read_uncommitted`) or not."""

    def __post_init__(self) -> None:
        """Check the values."""
        check_whole(self.fetch_bytes_min, "fetch_bytes_min", least=1)
        check_whole(self.fetch_bytes_max, "fetch_bytes_max", least=1)
        check_whole(self.partition_fetch_bytes_max, "partition_fetch_bytes_max", least=1)
        _require(
            self.isolation in get_args(Isolation),
            "isolation",
            self.isolation,
            '"read_uncommitted" or "read_committed"',
        )
        check_whole(self.prefetch_bytes, "prefetch_bytes", least=1)
        check_whole(self.requests_in_flight_max, "requests_in_flight_max", least=1)
