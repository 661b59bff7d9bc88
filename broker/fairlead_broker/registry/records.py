"""The values of the cluster's keys: JSON objects with a version `v` (protocol sections 3 and 4).

The controller, replication and the runtime read the values and write changed values. A release keeps fields that
it does not know: `decode` puts unknown fields, including those of nested objects, into `unknown`, and `encode`
writes them back. A changed record must be created with `msgspec.structs.replace`, because a new object would lose
the unknown fields. The module is pure. The code is in one file because all records share the format at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from typing import Annotated, ClassVar, Final, TypeAlias, TypeVar, cast

import msgspec

from fairlead_api.identifiers import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TimestampUs,
    TopicId,
)

VERSION: Final = 1
"""Version of the records that this release writes, and the highest version that this release reads."""

_HEAD: Final = b'{"v":%d,' % VERSION
"""First bytes of every record that this release writes."""
_UNKNOWN: Final = b'"unknown"'
"""Name of the field for unknown fields; a value in the store may use this name for another purpose."""

ConfigScalar: TypeAlias = bool | int | float | str
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]


class RecordUnreadable(Exception):
    """A value in the store does not match the type of its key, or was written by a later release."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"the value of {key} cannot be read: {reason}")
        self.key = key


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False, forbid_unknown_fields=True):
    """An object inside a record."""

    nested: ClassVar[Mapping[str, type[Entry]]] = {}
    """Fields that contain an entry or a list of entries. Unknown fields of nested entries are also kept."""
    omitted_if_none: ClassVar[frozenset[str]] = frozenset()
    """Fields that are not written while they are None, because older releases do not know them."""

    unknown: dict[str, object] = {}
    """Fields that a later release wrote, kept unchanged."""


class Record(Entry, frozen=True, kw_only=True):
    """Base class of records, each of which is the complete value of a key."""

    v: Positive = VERSION


R = TypeVar("R", bound=Record)
_Change: TypeAlias = "Callable[[dict[str, object], type[Entry]], dict[str, object]]"


class TopicState(StrEnum):
    """State of a topic, from its creation to its deletion (protocol section 4, rule 13)."""

    CREATING = "creating"
    """The topic's partitions are being created; the topic does not accept records yet."""
    READY = "ready"
    DELETING = "deleting"
    """The topic's partitions are being removed; the deletion cannot be undone."""


class DurabilityState(StrEnum):
    """State that decides which offsets of a replica count (protocol section 4, rules 2 and 6)."""

    REPLICATED = "replicated"
    """Written offsets count towards the high watermark."""
    SYNCING = "syncing"
    """Only synced offsets count towards the high watermark. Earlier records may be unsynced, so candidates are chosen
    as with `replicated`.
    """
    SYNCED = "synced"
    """Only synced offsets count towards the high watermark."""


class BrokerState(StrEnum):
    """State of a broker, which determines the tasks in which the broker takes part."""

    RUNNING = "running"
    DRAINING = "draining"
    STOPPING = "stopping"


class ClusterRecord(Record, frozen=True, kw_only=True):
    """Value of `meta/cluster`."""

    cluster_id: str
    feature_level: Positive
    """Feature level that every broker of the cluster supports. Newer fields and formats require a higher level."""
    created_us: TimestampUs


class Addresses(Entry, frozen=True, kw_only=True):
    """Addresses of a broker's listeners, each `host:port` (rule T3)."""

    data: str
    """Address for clients without TLS; empty if the broker serves only clients with TLS."""
    peer: str
    ops: str
    data_tls: str | None = None
    """Address for clients with TLS, or None if the broker serves none."""
    peer_scheme: str = "http"
    """Scheme of the peer listener: `http` or `https`."""
    external: str | None = None
    """Base URL for external clients. The URL is empty if these clients keep using the address to which they connected;
    it is None if there is no external listener.
    """
    kafka: str | None = None
    """Address for clients of Kafka's protocol, or None if the broker serves none."""

    @property
    def any_data(self) -> str:
        """Address for clients without TLS or, if there is none, for clients with TLS."""
        return self.data or self.data_tls or ""

    def data_url(self, scheme: str) -> str | None:
        """Return the base URL for clients that use a scheme; None if the broker has no address of this scheme."""
        address = self.data_tls if scheme == "https" else self.data
        return f"{scheme}://{address}" if address else None


class CertificateRecord(Entry, frozen=True, kw_only=True):
    """Certificate that a broker currently uses. The record is updated whenever a certificate is replaced."""

    certificate_sha256: str
    """SHA-256 of the broker's certificate in lower-case hexadecimal digits."""
    not_after_us: TimestampUs
    ca_sha256: tuple[str, ...]
    """SHA-256 of the certificates of the authorities that the broker accepts."""


class Directory(Entry, frozen=True, kw_only=True):
    """A healthy data directory: it is mounted and writable, its identity matches, and no sync has failed."""

    id: str
    last_broker_epoch: BrokerEpoch
    """Last incarnation of the broker that led or fetched with this directory, from the identity file; 0 for a new
    directory.
    """


class QuarantinedReplica(Entry, frozen=True, kw_only=True):
    """A replica whose bytes are not trusted. The replica serves no records."""

    topic_id: TopicId
    partition: PartitionIndex


class BrokerRegistration(Record, frozen=True, kw_only=True):
    """Value of `meta/brokers/<id>`."""

    nested: ClassVar[Mapping[str, type[Entry]]] = {
        "addresses": Addresses,
        "tls": CertificateRecord,
        "peer_tls": CertificateRecord,
        "directories": Directory,
        "quarantined": QuarantinedReplica,
    }

    state: BrokerState
    addresses: Addresses
    rack: str | None
    release: str
    peer_secret_hash: str
    """SHA-256, in lower-case hexadecimal digits, of the secret that authenticates the broker to peers."""
    directories: tuple[Directory, ...]
    quarantined: tuple[QuarantinedReplica, ...] = ()
    intact_since: BrokerEpoch | None = None
    """Oldest broker epoch since which every restart kept all written bytes (clean marker, or same boot id and
    volume), or None if written bytes may have been lost before this registration.
    """
    lease_seconds: Positive | None = None
    """Time to live of the broker's lease in seconds, or None if an older release wrote the registration. The broker
    considers itself registered for this time after a renewal.
    """
    feature_level: Positive = 1
    """Highest feature level that the broker's release supports. A registration without this field is from a release
    that supports level 1.
    """
    tls: CertificateRecord | None = None
    """Certificate of the data listener; None if the listener has no TLS or an older release wrote the registration."""
    peer_tls: CertificateRecord | None = None
    """Certificate of the peer listener and of calls to peers, even if the listener does not use TLS yet."""
    peer_key: str | None = None
    """Public Ed25519 key, in lower-case hexadecimal, with which peers verify the broker's proofs; None if an older
    release wrote the registration. Without a key, the broker sends and accepts secrets.
    """
    partitions_max: Positive | None = None
    """Maximum number of replicas on the broker. None means no limit: an older release wrote the registration."""


class ControllerRecord(Record, frozen=True, kw_only=True):
    """Value of `meta/controller`."""

    broker: BrokerId
    broker_epoch: BrokerEpoch


class ControllerEpochRecord(Record, frozen=True, kw_only=True):
    """Value of `meta/controller-epoch`."""

    epoch: Positive


class RestartPermitRecord(Record, frozen=True, kw_only=True):
    """Value of `meta/restart-permit`, under its own lease."""

    broker: BrokerId
    broker_epoch: BrokerEpoch
    """Incarnation of the broker that may be restarted. The permit ends when a new incarnation of the broker is
    registered."""


class MirrorState(StrEnum):
    """State of a mirror between its creation and its promotion (rules L18, L19)."""

    MIRRORING = "mirroring"
    HANDING_OVER = "handing_over"
    """The source is made to refuse records, and the mirror copies the remaining records."""
    PROMOTING = "promoting"
    """The mirror fetches nothing, and its partitions begin a new era."""


class MirrorOf(Entry, frozen=True, kw_only=True):
    """Origin of a topic that a link writes (rule L3)."""

    omitted_if_none: ClassVar[frozenset[str]] = frozenset({"failover"})

    link: str
    source_cluster_id: str
    source_name: str
    """Name of the topic in the source."""
    state: MirrorState
    lineage: tuple[str, ...]
    """Ids of the clusters through which the records came, from their origin to the source."""
    since_us: TimestampUs
    era: LeaderEpoch | None = None
    """First leader epoch of the era that a promotion begins, or None before the era is chosen."""
    failover: bool | None = None
    """Whether the mirror is promoted without its source if the source does not hand the topic over in time."""


class Era(Entry, frozen=True, kw_only=True):
    """Promotion of a topic in a cluster; from then on, the topic's leader epochs are at least `epoch`."""

    epoch: LeaderEpoch
    cluster_id: str


class HandedOver(Entry, frozen=True, kw_only=True):
    """Cluster to which the writes of a topic were handed over."""

    cluster_id: str
    bootstrap: tuple[str, ...]
    """Base URLs of brokers of that cluster."""
    since_us: TimestampUs


class TopicRecord(Record, frozen=True, kw_only=True):
    """Value of `meta/topics/<name>`."""

    nested: ClassVar[Mapping[str, type[Entry]]] = {
        "mirror": MirrorOf,
        "eras": Era,
        "handed_over": HandedOver,
    }
    omitted_if_none: ClassVar[frozenset[str]] = frozenset({"assigned", "mirror", "eras", "handed_over"})

    topic_id: TopicId
    state: TopicState
    partitions: Positive
    """Number of partitions in use."""
    growing_to: Positive | None = None
    """Number of partitions after the current growth, or None if the topic is not growing."""
    assigned: dict[PartitionIndex, tuple[BrokerId, ...]] | None = None
    """Brokers that a client chose for the partitions that are not written yet, or None if the controller chooses."""
    replication_factor: Positive
    config: dict[str, ConfigScalar] = {}
    """Configuration that was set for the topic itself, with Kafka's keys."""
    created_us: TimestampUs
    mirror: MirrorOf | None = None
    """Origin of a mirror, which accepts no records, or None for a topic that accepts records."""
    eras: tuple[Era, ...] | None = None
    """Promotions of the topic in every cluster, oldest first, or None before the first promotion."""
    handed_over: HandedOver | None = None
    """Cluster that accepts records instead of this one, or None."""


class DeletedTopicRecord(Record, frozen=True, kw_only=True):
    """Value of `meta/deleted/<topic id>`."""

    name: str
    deleted_us: TimestampUs


class ConfigRecord(Record, frozen=True, kw_only=True):
    """Value of `meta/config/cluster` and `meta/config/brokers/<id>`."""

    values: dict[str, ConfigScalar]


class InSync(Entry, frozen=True, kw_only=True):
    """An incarnation of a broker that is the leader, a member of the isr, or an eligible leader replica."""

    broker: BrokerId
    broker_epoch: BrokerEpoch


class Replica(Entry, frozen=True, kw_only=True):
    """One replica in the assignment of a partition."""

    broker: BrokerId
    directory: str
    generation: Count = 0
    """Number that distinguishes the replica from earlier replicas on the broker. A move sets the generation to the
    partition record's mod revision. A broker that removes itself because of damage increases the generation of its
    replica by one.
    """


class Quorum(Entry, frozen=True, kw_only=True):
    """Write quorum and voters of a partition with `replication.mode=quorum`."""

    nested: ClassVar[Mapping[str, type[Entry]]] = {"voters": InSync}

    write: Positive
    """Number of voters that must have a record before the record is committed (W)."""
    voters: tuple[InSync, ...]
    """Incarnations that have lost nothing that they reported since their entry was written, except records that W other
    voters have. A slow voter remains a voter."""
    log_start: Count = 0
    """Highest log start that voters reported at the last appointment (quorum Q16)."""


class MirrorGap(Entry, frozen=True, kw_only=True):
    """Offsets of a mirror's partition at which records of the source are missing (rules L13, L14)."""

    first_offset: Offset
    end_offset: Offset
    """Offset after the last missing record."""
    skipped: Count
    """Number of offsets whose records the source had deleted before they were copied."""
    truncated: Count
    """Number of dropped records, which the source had lost."""
    acknowledgements: Count
    """Number of acknowledgements of the link when the gap began. The next acknowledgement closes the gap."""


class PartitionRecord(Record, frozen=True, kw_only=True):
    """Value of `meta/partitions/<topic id>/<n>` (protocol section 4)."""

    nested: ClassVar[Mapping[str, type[Entry]]] = {
        "leader": InSync,
        "replicas": Replica,
        "isr": InSync,
        "elr": InSync,
        "quorum": Quorum,
        "gap": MirrorGap,
    }
    omitted_if_none: ClassVar[frozenset[str]] = frozenset({"quorum", "gap"})

    leader: InSync | None
    leader_epoch: LeaderEpoch
    replicas: tuple[Replica, ...]
    """Replicas in assignment order: the first is the preferred leader."""
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    isr: tuple[InSync, ...]
    elr: tuple[InSync, ...] = ()
    min_isr: Positive
    durability: DurabilityState
    unclean: bool = False
    """Whether a replica outside isr and elr may be elected (`unclean.leader.election.enable` of the topic)."""
    restored: bool = False
    """Whether the record comes from a backup of the store. The isr in a restored record may be outdated and contain
    replicas that were removed later, so the only replica that may be elected is the one with the longest log among all
    replicas.
    """
    quorum: Quorum | None = None
    """Quorum of a partition with `replication.mode=quorum`, whose `isr` and `elr` are empty; None for other partitions.
    """
    gap: MirrorGap | None = None
    """Last gap of a mirror's partition; None for a partition without a gap."""

    def __post_init__(self) -> None:
        """Check the quorum. A record with an impossible quorum is unreadable."""
        quorum = self.quorum
        if quorum is None:
            return
        brokers = {replica.broker for replica in self.replicas}
        if not quorum.voters or not brokers.issuperset(voter.broker for voter in quorum.voters):
            msg = f"the voters {[voter.broker for voter in quorum.voters]} are not replicas of {sorted(brokers)}"
            raise ValueError(msg)
        if quorum.write > len(brokers):
            msg = f"a write quorum of {quorum.write} is above {len(brokers)} replicas"
            raise ValueError(msg)


def config_texts(values: Mapping[str, ConfigScalar]) -> dict[str, str]:
    """Return the configuration values as texts, from a record written by any release."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in values.items()
    }


def encode(record: Record) -> bytes:
    """Return a record as JSON, including its unknown fields. Equal records give equal bytes."""
    return msgspec.json.encode(_spread(cast("dict[str, object]", msgspec.to_builtins(record)), type(record)))


def decode(key: str, value: bytes, record_type: type[R]) -> R:
    """Decode the value of a key to a record. Raises `RecordUnreadable`, which names the key."""
    record = _decode_known(value, record_type)
    if record is not None:
        return record
    try:
        document = msgspec.json.decode(value)
        if not isinstance(document, dict):
            raise RecordUnreadable(key, "it is not a JSON object")
        _check_version(key, document.get("v"))
        return msgspec.convert(_gather(document, record_type), record_type)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RecordUnreadable(key, str(error)) from error


def _decode_known(value: bytes, record_type: type[R]) -> R | None:
    """Return a record as this release writes it, without unknown fields; None for any other value.

    A starting broker decodes the records of all partitions; this method takes only a fifth of the time that `_gather`
    takes.
    """
    if not value.startswith(_HEAD) or _UNKNOWN in value:
        return None
    try:
        record = cast("R", _decoder(record_type).decode(value))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return record if record.v == VERSION else None


@cache
def _decoder(record_type: type[Record]) -> msgspec.json.Decoder[Record]:
    return msgspec.json.Decoder(record_type)


def _check_version(key: str, version: object) -> None:
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise RecordUnreadable(key, f"its version `v` is {version!r}, not a number of at least 1")
    if version > VERSION:
        raise RecordUnreadable(
            key, f"it has version {version}, this release reads up to {VERSION}; start a newer release"
        )


def _gather(document: dict[str, object], entry_type: type[Entry]) -> dict[str, object]:
    """Move fields that the type does not know into `unknown`, also in nested entries."""
    known = _known(entry_type)
    unknown = {name: document.pop(name) for name in document.keys() - known}
    for name, nested_type in entry_type.nested.items():
        if name in document:
            document[name] = _each(document[name], nested_type, _gather)
    document["unknown"] = unknown
    return document


@cache
def _known(entry_type: type[Entry]) -> frozenset[str]:
    """Return the names of an entry's fields in JSON."""
    return frozenset(entry_type.__struct_fields__) - {"unknown"}


def _spread(document: dict[str, object], entry_type: type[Entry]) -> dict[str, object]:
    """Undo `_gather`: put `v` first, then the known fields in the order of the type, then unknown fields by name."""
    unknown = cast("dict[str, object]", document.pop("unknown"))
    spread: dict[str, object] = {"v": document["v"]} if "v" in document else {}
    spread.update(document)
    for name, nested_type in entry_type.nested.items():
        spread[name] = _each(spread[name], nested_type, _spread)
    for name in entry_type.omitted_if_none:
        if spread[name] is None:
            del spread[name]
    spread.update(sorted(unknown.items()))
    return spread


def _each(value: object, entry_type: type[Entry], change: _Change) -> object:
    """Apply a change to an entry or to every entry of a list. Other values are returned unchanged."""
    if isinstance(value, dict):
        return change(value, entry_type)
    if isinstance(value, list | tuple):
        return [change(each, entry_type) if isinstance(each, dict) else each for each in value]
    return value


class ProducerIdsRecord(Record, frozen=True, kw_only=True):
    """Value of `producers/next-id`."""

    next_id: Count
    """Lowest producer id that is not assigned yet. Brokers reserve ids in blocks."""


class ProducerNameRecord(Record, frozen=True, kw_only=True):
    """Value of `producers/names/<name>`."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    """Newest epoch that was assigned to the producer. A batch with a lower epoch is fenced in every partition that
    has a batch with a higher epoch.
    """
    used_us: TimestampUs
    """Time of the last request for the name, or of the last batch seen from its producer."""
    transactional: bool = False
    """Whether the producer has transactions. The epoch and the time of the last use of a transactional producer are in
    its transaction record.
    """
