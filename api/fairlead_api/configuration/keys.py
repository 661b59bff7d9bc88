"""Definitions of all configuration keys of topics, brokers and the cluster.

The keys have Kafka's names, types and defaults (release 4.3), except where the definition of a key explains a
difference. The keys `durability`, `replication.mode` and `quorum.write` are Fairlead's own. The broker and the docs
generator use these definitions through `configuration`. This module must not depend on the values that are set.

This code is in one file because the catalogue lists all keys in one place.
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
THROTTLED_RATE_KEY: Final = "follower.replication.throttled.rate"


class ConfigType(StrEnum):
    """Type of a configuration value, with Kafka's names."""

    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    STRING = "string"


class ConfigScope(StrEnum):
    """Scope in which a key can be set; the value in the scope nearest to the topic takes precedence."""

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

    `default` is the default in stored form; None if the default depends on other settings, as described in
    `default_rule`. A key that is not `dynamic` is read from the broker's own settings when the broker starts, and no
    call can change its value. `choices_supported` are the choices that are implemented; other choices are refused as
    not supported yet. `unit` is the unit of a number, or empty for a value without a unit.
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
    unit: str = ""

    @property
    def allowed(self) -> str:
        """Description of the values that the key allows."""
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


_OF_TOPICS: Final = (
    _number(
        "segment.bytes",
        1 << 30,
        MIB,
        INT_MAX,
        "bytes",
        "Size at which the active segment is closed and the next segment is started.",
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
        "A closed segment is deleted when its newest record reaches this age, the oldest segment first; -1 for no "
        "limit.",
    ),
    _number(
        "retention.bytes",
        -1,
        -1,
        LONG_MAX,
        "bytes",
        "Minimum size of a partition after deletion: its oldest closed segments are deleted as long as the remaining "
        "segments are not smaller; -1 for no limit.",
    ),
    _number(
        "file.delete.delay.ms",
        60_000,
        0,
        LONG_MAX,
        "ms",
        "Time for which the files of deleted segments are kept for reads in progress.",
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
        "Bytes of log between two entries of the offset index; a smaller value finds offsets faster and costs "
        "memory.",
    ),
    _number(
        "max.message.bytes",
        8 * MIB,
        0,
        64 * MIB,
        "bytes",
        "Largest record batch as stored, after compression. A decompressed batch has at most 64 MiB. Kafka's "
        "default is 1 MiB; columnar batches are larger.",
    ),
    _choice(
        "message.timestamp.type",
        "CreateTime",
        ("CreateTime", "LogAppendTime"),
        (),
        "Whether the timestamp of a record is set by the producer or by the leader at the append.",
    ),
    _number(
        "message.timestamp.before.max.ms",
        LONG_MAX,
        0,
        LONG_MAX,
        "ms",
        "Maximum time by which a record's timestamp may be behind the broker's clock. Ignored with LogAppendTime.",
    ),
    _number(
        "message.timestamp.after.max.ms",
        3_600_000,
        0,
        LONG_MAX,
        "ms",
        "Maximum time by which a record's timestamp may be ahead of the broker's clock. Ignored with LogAppendTime.",
    ),
    _choice(
        "compression.type",
        "producer",
        ("producer", "uncompressed", "lz4", "zstd"),
        ("gzip", "snappy"),
        "Codec that the SDK and JSON or Arrow produce calls use if the producer does not choose one; `producer` "
        "means uncompressed for these calls. Stored batches are never re-encoded.",
    ),
    ConfigKey(
        name="min.insync.replicas",
        type=ConfigType.INT,
        default_rule="max(1, replication factor - 1)",
        minimum=1,
        maximum=INT_MAX,
        unit="replicas",
        explanation="Number of replicas that must be in sync for the high watermark to advance and for acks=all. "
        "Kafka's default is 1.",
        scopes=AGREED,
    ),
    _choice(
        "durability",
        "synced",
        ("synced", "replicated"),
        (),
        "When a record counts as stored: `synced` means on disk after fsync, so that an acknowledged record survives "
        "a power failure of all brokers; `replicated` means in the memory of all in-sync replicas, which is "
        "Kafka's guarantee.",
        AGREED,
    ),
    _number(
        "flush.messages",
        LONG_MAX,
        1,
        LONG_MAX,
        "records",
        "Number of records after which the log is synced with durability=replicated; with durability=synced every "
        "record is synced before its acknowledgement.",
    ),
    _number(
        "flush.ms",
        LONG_MAX,
        0,
        LONG_MAX,
        "ms",
        "Time after which the log is synced with durability=replicated; with durability=synced every record is synced "
        "before its acknowledgement.",
    ),
    _choice(
        "replication.mode",
        "isr",
        ("isr", "quorum"),
        (),
        "Replication protocol: with `isr`, every in-sync replica must store a record before it is acknowledged; with "
        "`quorum`, any `quorum.write` replicas. It is fixed when a topic is created.",
        AGREED,
    ),
    ConfigKey(
        name="quorum.write",
        type=ConfigType.INT,
        default_rule="a majority of the replicas",
        minimum=1,
        maximum=INT_MAX,
        unit="replicas",
        explanation="Replicas that must store a record with replication.mode=quorum before it is acknowledged: from a "
        "majority of the replicas to all of them.",
        scopes=AGREED,
    ),
    _choice(
        "cleanup.policy",
        "delete",
        ("delete", "compact", "compact,delete", "delete,compact"),
        (),
        "Handling of old records: they are deleted, or compacted to the newest record of each key.",
    ),
    _choice(
        "unclean.leader.election.enable",
        "false",
        ("true", "false"),
        (),
        "Whether a replica that is not eligible may become leader, which can lose acknowledged records and abort"
        " parts of committed transactions.",
        AGREED,
    ),
    _number(
        "delete.retention.ms",
        DAY_MS,
        0,
        LONG_MAX,
        "ms",
        "Time for which a tombstone stays readable in a compacted topic after the first cleaning that kept it.",
    ),
    _number(
        "min.compaction.lag.ms",
        0,
        0,
        LONG_MAX,
        "ms",
        "Age below which records of a compacted topic are not cleaned.",
    ),
    _number(
        "max.compaction.lag.ms",
        LONG_MAX,
        1,
        LONG_MAX,
        "ms",
        "Age above which a record makes the next cleaning of its partition due, whatever the dirty ratio is.",
    ),
    ConfigKey(
        name="min.cleanable.dirty.ratio",
        type=ConfigType.DOUBLE,
        default="0.5",
        minimum=0,
        maximum=1,
        explanation="Share of a compacted log that no cleaning has covered, above which the next cleaning is due.",
    ),
)

_OF_BROKERS: Final = (
    _choice(
        "auto.create.topics.enable",
        "false",
        ("true", "false"),
        (),
        "Whether producing to an unknown topic creates the topic with the defaults. Kafka's default is true; "
        "`fairlead dev up` sets it to true.",
    ),
    _number(
        "log.retention.check.interval.ms",
        300_000,
        1,
        LONG_MAX,
        "ms",
        "Interval of the checks for segments that have exceeded their retention.",
    ),
    _number(
        "log.cleaner.backoff.ms",
        15_000,
        0,
        LONG_MAX,
        "ms",
        "Time between two searches for a partition that is due for cleaning, while no partition is due.",
    ),
    _number(
        "log.cleaner.io.max.bytes.per.second",
        LONG_MAX,
        MIB,
        LONG_MAX,
        "bytes/s",
        "Maximum rate at which the cleaner reads and writes. The default is no limit.",
    ),
    _number(
        "replica.lag.time.max.ms",
        30_000,
        100,
        INT_MAX,
        "ms",
        "Maximum time for which a follower may lag behind the end of its leader's log before it is removed from the "
        "in-sync replicas. The value of the leader's broker applies.",
    ),
    _number(
        THROTTLED_RATE_KEY,
        LONG_MAX,
        1,
        LONG_MAX,
        "bytes/s",
        "Maximum rate at which a broker copies data into the replicas that moves add to it, until these replicas "
        "are in sync. The default is no limit. In Kafka, the key applies to the replicas that "
        "follower.replication.throttled.replicas lists.",
    ),
)

_OF_ONE_BROKER: Final = (
    _choice(
        "cordoned",
        "false",
        ("true", "false"),
        (),
        "Whether the broker gets no new replicas; existing replicas stay on the broker.",
    ),
    _choice(
        "draining",
        "false",
        ("true", "false"),
        (),
        "Whether the broker is being drained: it gets no new replicas, and its leaderships and then its replicas are "
        "moved to other brokers.",
    ),
)

_AT_START: Final = (
    _number(
        "broker.session.timeout.ms",
        6_000,
        2_000,
        120_000,
        "ms",
        "Time without a heartbeat after which a broker counts as failed, rounded up to whole seconds. Kafka's default "
        "is 9 seconds.",
    ),
    _choice(
        "log.cleaner.enable",
        "true",
        ("true", "false"),
        (),
        "Whether the broker cleans the partitions of compacted topics.",
    ),
    _number(
        "log.cleaner.dedupe.buffer.size",
        134_217_728,
        16 << 20,
        INT_MAX,
        "bytes",
        "Memory for the keys of all cleanings that run at the same time, 32 bytes a key, at least 16 MiB for each of "
        "log.cleaner.threads. A cleaning with more keys covers the log in several rounds.",
    ),
    _number(
        "log.cleaner.threads",
        1,
        0,
        4,
        "threads",
        "Number of partitions that are cleaned at the same time, each by a process. With 0, no partition is cleaned.",
    ),
    _number(
        "max.connections",
        0,
        0,
        INT_MAX,
        "connections",
        "Maximum number of concurrent connections of the data listener; further connections wait. 0, the default, "
        "means three quarters of the open-file limit.",
    ),
    _number(
        "num.io.threads",
        4,
        1,
        64,
        "threads",
        "Number of threads that append to logs and read from logs. Kafka's default is 8.",
    ),
    _number(
        "num.recovery.threads.per.data.dir",
        4,
        1,
        64,
        "threads",
        "Number of partitions that are recovered in parallel when a broker starts. Kafka's default is 2.",
    ),
)

_OF_THE_CLUSTER: Final = (
    _number(
        "feature.level",
        1,
        1,
        INT_MAX,
        "level",
        "Feature level of the cluster, which every broker must support. A higher level enables features that older "
        "releases lack, and brokers of those releases no longer start. The level cannot be lowered, and a level that "
        "a running broker does not support is refused. A new cluster begins at the level of its first broker's "
        "release.",
    ),
    _number(
        "num.partitions",
        1,
        1,
        10_000,
        "partitions",
        "Number of partitions of a topic that is created without a partition count.",
    ),
    _choice(
        "audit.topic.enable",
        "false",
        ("true", "false"),
        (),
        "Whether brokers also write the records of the audit log into the topic `__audit`, which the controller "
        "creates with three partitions and a retention of 30 days.",
    ),
    _choice(
        "security.mode",
        "open",
        ("open", "observe", "enforce"),
        (),
        "Effect of access decisions: ignored, only counted and listed, or enforced. A broker that was started with a "
        "stricter mode keeps its mode. A mode above open needs feature level 2.",
    ),
    _number(
        "tokens.valid.after",
        0,
        0,
        LONG_MAX,
        "ms",
        "Time since the Unix epoch; API tokens and signed tokens that were created earlier are refused. Set this key "
        "after a theft of tokens, or after a restore of the coordination store, which restores revoked tokens. The "
        "caller's own token must have been created at or after this time.",
    ),
    ConfigKey(
        name="default.replication.factor",
        type=ConfigType.INT,
        default_rule="min(3, brokers)",
        minimum=1,
        maximum=32_767,
        unit="replicas",
        explanation="Replication factor of a topic that is created without a replication factor. Kafka's default is 1.",
    ),
    _choice(
        "auto.leader.rebalance.enable",
        "true",
        ("true", "false"),
        (),
        "Whether the controller moves leaderships back to the preferred leaders, the first replicas of partitions.",
    ),
    _number(
        "leader.imbalance.per.broker.percentage",
        10,
        0,
        100,
        "percent",
        "Share of a broker's preferred leaderships that are on other brokers, above which the leaderships are "
        "moved back.",
    ),
    _number(
        "leader.imbalance.check.interval.seconds",
        300,
        1,
        INT_MAX,
        "s",
        "Interval of the checks for partitions that are not led by their preferred leader.",
    ),
    _number(
        "offsets.retention.minutes",
        10_080,
        1,
        INT_MAX,
        "min",
        "Time after which a committed offset of a group without members is deleted, counted from the commit or from "
        "the departure of the last member, whichever is later.",
    ),
    _number(
        "transaction.max.timeout.ms",
        900_000,
        1_000,
        INT_MAX,
        "ms",
        "Maximum timeout of a transaction, after which the transaction is aborted.",
    ),
    _number(
        "transactional.id.expiration.ms",
        604_800_000,
        1_000,
        INT_MAX,
        "ms",
        "Time after which the name of a transactional producer is forgotten if it is not used.",
    ),
    _number(
        "unclean.leader.election.delay.ms",
        10_000,
        0,
        INT_MAX,
        "ms",
        "Time that a partition with unclean elections allowed waits for a complete replica before the live replica "
        "with the longest log is elected.",
    ),
)


def _catalogue(*keys: ConfigKey) -> Mapping[str, ConfigKey]:
    return MappingProxyType({key.name: key for key in sorted(keys, key=lambda key: key.name)})


TOPIC_KEYS: Final = _catalogue(*_OF_TOPICS)
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
