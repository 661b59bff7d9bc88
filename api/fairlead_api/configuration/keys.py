"""Definitions of all configuration keys of topics, brokers and the cluster.

The keys have Kafka's names, types and defaults (release 4.3), except where the entry explains a difference. The keys
`durability`, `replication.mode` and `quorum.write` are Fairlead's own. Used through `configuration`, by the broker and
by the docs generator. This module must not know the values that are set.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

LONG_MAX: Final = 2**63 - 1
INT_MAX: Final = 2**31 - 1
MIB: Final = 1 << 20
DAY_MS: Final = 24 * 3_600_000


class ConfigType(StrEnum):
    """Type of a value, with Kafka's names."""

    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    STRING = "string"


class ConfigScope(StrEnum):
    """Scope in which a key can be set; the value nearest to the topic takes precedence."""

    TOPIC = "topic"
    BROKER = "broker"
    CLUSTER = "cluster"


EVERYWHERE: Final = (ConfigScope.TOPIC, ConfigScope.BROKER, ConfigScope.CLUSTER)
AGREED: Final = (ConfigScope.TOPIC, ConfigScope.CLUSTER)
"""Scopes of keys whose values are stored in a partition's record, so that every broker uses the same value (as in Kafka
for min.insync.replicas since KIP-966)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """Definition of a key: its meaning and its allowed values.

    `default` is in the stored form; None if the default depends on other settings, as described in `default_rule`. A
    key that is not `dynamic` is read from the broker's own settings when the broker starts, and no call can change it.
    `choices_supported` are the implemented choices; other choices are refused as not supported yet. `unit` is the unit
    of a number; empty without a unit.
    """

    name: str
    type: ConfigType
    explanation: str
    default: str | None = None
    default_rule: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    choices_supported: tuple[str, ...] = ()
    scopes: tuple[ConfigScope, ...] = EVERYWHERE
    dynamic: bool = True
    supported: bool = True
    unit: str = ""

    @property
    def allowed(self) -> str:
        """Description of the allowed values."""
        if self.choices:
            return "one of " + ", ".join(self.choices_supported)
        return f"{self._type_in_words} from {self.minimum} to {self.maximum}"

    @property
    def _type_in_words(self) -> str:
        return "a number" if self.type is ConfigType.DOUBLE else "an integer"


def _number(
    name: str, default: int | None, minimum: int, maximum: int, unit: str, explanation: str
) -> ConfigKey:
    return ConfigKey(
        name=name,
        type=ConfigType.INT if maximum <= INT_MAX else ConfigType.LONG,
        default=None if default is None else str(default),
        minimum=minimum,
        maximum=maximum,
        unit=unit,
        explanation=explanation,
    )


def _choice(
    name: str,
    default: str,
    built: tuple[str, ...],
    later: tuple[str, ...],
    explanation: str,
    scopes: tuple[ConfigScope, ...] = EVERYWHERE,
) -> ConfigKey:
    return ConfigKey(
        name=name,
        type=ConfigType.BOOLEAN if default in ("true", "false") else ConfigType.STRING,
        default=default,
        choices=built + later,
        choices_supported=built,
        explanation=explanation,
        scopes=scopes,
    )


_BUILT: Final = (
    _number(
        "segment.bytes",
        1 << 30,
        MIB,
        INT_MAX,
        "bytes",
        "Size at which the active segment is closed and the next one begins.",
    ),
    _number(
        "segment.ms",
        7 * DAY_MS,
        1,
        LONG_MAX,
        "ms",
        "Age at which the active segment is closed even if it is not full, so that it can expire.",
    ),
    _number(
        "retention.ms",
        7 * DAY_MS,
        -1,
        LONG_MAX,
        "ms",
        "Age of its newest record at which a whole closed segment is deleted, the oldest first; -1 keeps it for ever.",
    ),
    _number(
        "retention.bytes",
        -1,
        -1,
        LONG_MAX,
        "bytes",
        "Size of a partition that stays at least: its oldest closed segments are deleted while the rest is not "
        "smaller; -1 has no limit.",
    ),
    _number(
        "file.delete.delay.ms",
        60_000,
        0,
        LONG_MAX,
        "ms",
        "Time for which the files of deleted segments stay, for readers that are inside.",
    ),
    _number(
        "segment.index.bytes",
        10 * MIB,
        4,
        INT_MAX,
        "bytes",
        "Size of a segment's offset index; a full index closes the segment.",
    ),
    _number(
        "index.interval.bytes",
        4096,
        0,
        INT_MAX,
        "bytes",
        "Bytes of log between two entries of the offset index; smaller finds offsets faster and costs "
        "memory.",
    ),
    _number(
        "max.message.bytes",
        8 * MIB,
        0,
        64 * MIB,
        "bytes",
        "Largest record batch as stored, after compression. A batch may open to 64 MiB at most. Kafka's "
        "default is 1 MiB; columnar batches are larger.",
    ),
    _choice(
        "message.timestamp.type",
        "CreateTime",
        ("CreateTime", "LogAppendTime"),
        (),
        "Whether a record's time is the producer's or the leader's at the append.",
    ),
    _number(
        "message.timestamp.before.max.ms",
        LONG_MAX,
        0,
        LONG_MAX,
        "ms",
        "How far a record's time may lie before the broker's clock. Not applied with LogAppendTime.",
    ),
    _number(
        "message.timestamp.after.max.ms",
        3_600_000,
        0,
        LONG_MAX,
        "ms",
        "How far a record's time may lie after the broker's clock. Not applied with LogAppendTime.",
    ),
    _choice(
        "compression.type",
        "producer",
        ("producer", "uncompressed", "lz4", "zstd"),
        ("gzip", "snappy"),
        "Codec that the SDK and the JSON path use when the producer names none; `producer` means "
        "uncompressed there. Stored batches are never encoded again.",
    ),
    ConfigKey(
        name="min.insync.replicas",
        type=ConfigType.INT,
        default_rule="max(1, replication factor - 1)",
        minimum=1,
        maximum=INT_MAX,
        unit="replicas",
        explanation="Replicas that must be in sync before the high watermark moves and acks=all is answered. Kafka's "
        "default is 1.",
        scopes=AGREED,
    ),
    _choice(
        "durability",
        "synced",
        ("synced", "replicated"),
        (),
        "What counts as stored: `synced` is on disk after fsync, so that an acknowledged record survives "
        "the loss of power on all brokers; `replicated` is Kafka's promise, in the memory of all in-sync "
        "replicas.",
        AGREED,
    ),
    _number(
        "flush.messages",
        LONG_MAX,
        1,
        LONG_MAX,
        "records",
        "Records after which the log is synced with durability=replicated; synced syncs before it "
        "acknowledges.",
    ),
    _number(
        "flush.ms",
        LONG_MAX,
        0,
        LONG_MAX,
        "ms",
        "Time after which the log is synced with durability=replicated; synced syncs before it acknowledges.",
    ),
    _choice(
        "replication.mode",
        "isr",
        ("isr",),
        ("quorum",),
        "How replicas agree: by the set of in-sync replicas, or by a write quorum.",
        AGREED,
    ),
    _choice(
        "cleanup.policy",
        "delete",
        ("delete",),
        ("compact", "compact,delete", "delete,compact"),
        "What happens to old records: they are deleted, or compacted to the newest record of each key.",
    ),
    _choice(
        "unclean.leader.election.enable",
        "false",
        ("true", "false"),
        (),
        "Whether a replica outside the eligible ones may become leader, at the price of acknowledged "
        "records.",
        AGREED,
    ),
)

_LATER: Final = (
    _number(
        "delete.retention.ms",
        DAY_MS,
        0,
        LONG_MAX,
        "ms",
        "How long a tombstone stays readable in a compacted topic.",
    ),
    _number(
        "min.compaction.lag.ms",
        0,
        0,
        LONG_MAX,
        "ms",
        "Time that a record stays uncompacted at least.",
    ),
    _number(
        "max.compaction.lag.ms",
        LONG_MAX,
        1,
        LONG_MAX,
        "ms",
        "Time after which a record is compacted at the latest.",
    ),
    ConfigKey(
        name="min.cleanable.dirty.ratio",
        type=ConfigType.DOUBLE,
        default="0.5",
        minimum=0,
        maximum=1,
        explanation="Share of the log that must be uncompacted before compaction runs.",
    ),
    ConfigKey(
        name="quorum.write",
        type=ConfigType.INT,
        default_rule="a majority of the replicas",
        minimum=1,
        maximum=INT_MAX,
        unit="replicas",
        explanation="Replicas that must store a record in quorum mode before it is acknowledged.",
        scopes=AGREED,
    ),
)

_OF_BROKERS: Final = (
    _choice(
        "auto.create.topics.enable",
        "false",
        ("true", "false"),
        (),
        "Whether producing to an unknown topic creates it, with the defaults. Kafka's default is true; "
        "`fairlead dev up` sets it to true.",
    ),
    _number(
        "log.retention.check.interval.ms",
        300_000,
        1,
        LONG_MAX,
        "ms",
        "Time between two looks for segments whose retention is over.",
    ),
    _number(
        "replica.lag.time.max.ms",
        30_000,
        100,
        INT_MAX,
        "ms",
        "Time for which a follower may not have caught up with its leader's end before it leaves the in-sync "
        "replicas. Read by the leader.",
    ),
)

_OF_ONE_BROKER: Final = (
    _choice(
        "cordoned",
        "false",
        ("true", "false"),
        (),
        "Whether the broker gets no new replicas. What it keeps it goes on keeping.",
    ),
    _choice(
        "draining",
        "false",
        ("true", "false"),
        (),
        "Whether the broker is being emptied: it gets no new replicas, its leaderships and then its replicas move to "
        "other brokers.",
    ),
)

_AT_START: Final = (
    _number(
        "broker.session.timeout.ms",
        6_000,
        2_000,
        120_000,
        "ms",
        "Time of silence after which others take over from a broker, rounded up to whole seconds. Kafka's default is "
        "9 seconds.",
    ),
    _number(
        "max.connections",
        0,
        0,
        INT_MAX,
        "connections",
        "Connections of the data listener at once; further ones wait. 0, the default, takes three quarters of the "
        "limit of open files.",
    ),
    _number(
        "num.io.threads",
        4,
        1,
        64,
        "threads",
        "Threads that append and read. Kafka's default is 8.",
    ),
    _number(
        "num.recovery.threads.per.data.dir",
        4,
        1,
        64,
        "threads",
        "Partitions that are recovered in parallel at the start. Kafka's default is 2.",
    ),
)

_OF_THE_CLUSTER: Final = (
    _number(
        "num.partitions", 1, 1, 10_000, "partitions", "Partitions of a topic whose creator names no number."
    ),
    ConfigKey(
        name="default.replication.factor",
        type=ConfigType.INT,
        default_rule="min(3, brokers)",
        minimum=1,
        maximum=32_767,
        unit="replicas",
        explanation="Replication factor of a topic whose creator names none. Kafka's default is 1.",
    ),
    _choice(
        "auto.leader.rebalance.enable",
        "true",
        ("true", "false"),
        (),
        "Whether the controller gives partitions back to their preferred leaders, the first of their replicas.",
    ),
    _number(
        "leader.imbalance.per.broker.percentage",
        10,
        0,
        100,
        "percent",
        "Share of the partitions that a broker should lead and does not lead, above which they are given back to it.",
    ),
    _number(
        "leader.imbalance.check.interval.seconds",
        300,
        1,
        INT_MAX,
        "s",
        "Time between two looks for partitions that are not led by their preferred leader.",
    ),
    _number(
        "offsets.retention.minutes",
        10_080,
        1,
        INT_MAX,
        "min",
        "Time after which a committed offset of a group without members is forgotten, counted from the later of its "
        "commit and the end of the last member.",
    ),
    _number(
        "unclean.leader.election.delay.ms",
        10_000,
        0,
        INT_MAX,
        "ms",
        "Time that a partition which allows unclean elections waits for a complete replica before the replica "
        "with the longest log among the live ones is elected.",
    ),
)


def _catalogue(*keys: ConfigKey) -> Mapping[str, ConfigKey]:
    return MappingProxyType({key.name: key for key in sorted(keys, key=lambda key: key.name)})


TOPIC_KEYS: Final = _catalogue(*_BUILT, *(replace(key, supported=False) for key in _LATER))
"""All keys of topics by name, sorted by name."""

CLUSTER_KEYS: Final = _catalogue(
    *(replace(key, scopes=(ConfigScope.BROKER, ConfigScope.CLUSTER)) for key in _OF_BROKERS),
    *(replace(key, scopes=(ConfigScope.BROKER,)) for key in _OF_ONE_BROKER),
    *(replace(key, scopes=(ConfigScope.BROKER,), dynamic=False) for key in _AT_START),
    *(replace(key, scopes=(ConfigScope.CLUSTER,)) for key in _OF_THE_CLUSTER),
)
"""All keys of brokers and the cluster that are not keys of topics, by name, sorted by name."""

KEYS: Final = _catalogue(*TOPIC_KEYS.values(), *CLUSTER_KEYS.values())
"""All keys by name, sorted by name."""
