"""Coordination data in etcd and in the embedded store: every key, the bytes of every record, the tables."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import golden
from fairlead_api.access_needs import Kind
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
from fairlead_broker.controlling.moving import MovedRecord, _moved_key, _moving_key
from fairlead_broker.coordination.embedded_history import History
from fairlead_broker.registry.group_records import (
    ClassicGroupRecord,
    ClassicMemberRecord,
    CoordinatorRecord,
    GroupRecord,
    MemberRecord,
    OffsetEntry,
    OffsetsRecord,
    TargetRecord,
)
from fairlead_broker.registry.keys import GroupKeys, Keys, all_groups
from fairlead_broker.registry.link_records import (
    LinkPolicies,
    LinkRecord,
    LinkSource,
    LinkState,
    NamePatterns,
)
from fairlead_broker.registry.records import (
    Addresses,
    BrokerRegistration,
    BrokerState,
    CertificateRecord,
    ClusterRecord,
    ConfigRecord,
    ControllerEpochRecord,
    ControllerRecord,
    DeletedTopicRecord,
    Directory,
    DurabilityState,
    Era,
    HandedOver,
    InSync,
    MirrorGap,
    MirrorOf,
    MirrorState,
    PartitionRecord,
    ProducerIdsRecord,
    ProducerNameRecord,
    QuarantinedReplica,
    Quorum,
    Record,
    Replica,
    RestartPermitRecord,
    TopicRecord,
    TopicState,
    decode,
    encode,
)
from fairlead_broker.registry.security_records import AclRecord, QuotaRecord, TokenRecord
from fairlead_broker.registry.transaction_records import (
    EndedTransaction,
    EndReason,
    KafkaSession,
    Outcome,
    PendingOffset,
    PendingOffsets,
    TransactionRecord,
    UnfinishedCommit,
)

_TOPIC = TopicId("1b4e28ba-2fa1-4d3b-a3f5-ef19b5a7633b")
_ONE, _TWO, _THREE = BrokerId(1), BrokerId(2), BrokerId(3)
_EPOCH = BrokerEpoch(9)
_TIME = TimestampUs(1_700_000_000_000_005)
_KEYS = Keys("prod")
_GROUP = GroupKeys(_KEYS, "etl")
_ODD = "a/b ü"

# One record of each kind with every field set, and one without its optional fields.
RECORDS: dict[str, Record] = {
    "cluster": ClusterRecord(cluster_id=_TOPIC, feature_level=1, created_us=_TIME),
    "controller": ControllerRecord(broker=_ONE, broker_epoch=_EPOCH),
    "controller epoch": ControllerEpochRecord(epoch=3),
    "restart permit": RestartPermitRecord(broker=_ONE, broker_epoch=_EPOCH),
    "topic": TopicRecord(
        topic_id=_TOPIC,
        state=TopicState.READY,
        partitions=3,
        growing_to=6,
        replication_factor=1,
        config={"segment.bytes": "1048576", "old": True, "number": 5, "part": 0.5},
        created_us=_TIME,
    ),
    "topic, least": TopicRecord(
        topic_id=_TOPIC, state=TopicState.CREATING, partitions=1, replication_factor=1, created_us=_TIME
    ),
    "deleted topic": DeletedTopicRecord(name="t", deleted_us=_TIME),
    "config": ConfigRecord(values={"segment.bytes": "1048576"}),
    "broker": BrokerRegistration(
        state=BrokerState.DRAINING,
        addresses=Addresses(data="h:1", peer="h:2", ops="h:3", data_tls="h:4", peer_scheme="https"),
        rack="zone-a",
        release="0.1.0",
        peer_secret_hash="ab",
        directories=(Directory(id="d", last_broker_epoch=BrokerEpoch(4)),),
        quarantined=(QuarantinedReplica(topic_id=_TOPIC, partition=PartitionIndex(2)),),
        intact_since=BrokerEpoch(2),
        lease_seconds=3,
        tls=CertificateRecord(certificate_sha256="cd", not_after_us=_TIME, ca_sha256=("ef", "01")),
        peer_tls=CertificateRecord(certificate_sha256="23", not_after_us=_TIME, ca_sha256=("ef",)),
        peer_key="45",
        partitions_max=1000,
    ),
    "broker, least": BrokerRegistration(
        state=BrokerState.RUNNING,
        addresses=Addresses(data="h:1", peer="h:2", ops="h:3"),
        rack=None,
        release="0.1.0",
        peer_secret_hash="ab",
        directories=(),
    ),
    "partition": PartitionRecord(
        leader=InSync(broker=_ONE, broker_epoch=_EPOCH),
        leader_epoch=LeaderEpoch(7),
        replicas=(Replica(broker=_ONE, directory="d", generation=2), Replica(broker=_TWO, directory="e")),
        adding=(_TWO,),
        removing=(_THREE,),
        isr=(InSync(broker=_ONE, broker_epoch=_EPOCH),),
        elr=(InSync(broker=_THREE, broker_epoch=BrokerEpoch(8)),),
        min_isr=2,
        durability=DurabilityState.SYNCING,
        unclean=True,
        restored=True,
    ),
    "partition, quorum": PartitionRecord(
        leader=InSync(broker=_ONE, broker_epoch=_EPOCH),
        leader_epoch=LeaderEpoch(7),
        replicas=(Replica(broker=_ONE, directory="d"), Replica(broker=_TWO, directory="e")),
        isr=(),
        min_isr=2,
        durability=DurabilityState.SYNCED,
        quorum=Quorum(
            write=2,
            voters=(
                InSync(broker=_ONE, broker_epoch=_EPOCH),
                InSync(broker=_TWO, broker_epoch=BrokerEpoch(8)),
            ),
            log_start=5,
        ),
    ),
    "partition, mirror with a gap": PartitionRecord(
        leader=None,
        leader_epoch=LeaderEpoch(7),
        replicas=(),
        isr=(),
        min_isr=1,
        durability=DurabilityState.SYNCED,
        gap=MirrorGap(
            first_offset=Offset(5), end_offset=Offset(8), skipped=3, truncated=1, acknowledgements=2
        ),
    ),
    "partition, least": PartitionRecord(
        leader=None,
        leader_epoch=LeaderEpoch(0),
        replicas=(),
        isr=(),
        min_isr=1,
        durability=DurabilityState.SYNCED,
    ),
    "token": TokenRecord(
        principal="user:ann",
        secret_sha256="ab",
        created_us=_TIME,
        created_by="user:admin",
        expires_us=_TIME,
        note="n",
        owner="o",
    ),
    "token, least": TokenRecord(
        principal="user:ann", secret_sha256="ab", created_us=_TIME, created_by="user:admin"
    ),
    "acl": AclRecord(
        effect="deny",
        principal="user:*",
        operations=("read", "write"),
        kind=Kind.TOPIC,
        pattern="a*",
        created_us=_TIME,
        created_by="user:admin",
        owner="o",
    ),
    "quota": QuotaRecord(
        each={"requests_per_second": 5},
        shared={"produce_bytes_per_second": 7},
        changed_us=_TIME,
        changed_by="user:admin",
        owner="o",
    ),
    "quota, least": QuotaRecord(changed_us=_TIME, changed_by="user:admin"),
    "link": LinkRecord(
        source=LinkSource(bootstrap=("http://east:9520",), cluster_id="c"),
        topics=NamePatterns(include=("a*",), exclude=("ab",)),
        groups=NamePatterns(include=("g",)),
        prefix="east.",
        config={"retention.ms": 5},
        replication_factor=2,
        state=LinkState.PAUSED,
        acls=True,
        policies=LinkPolicies(truncated="stop", expired="stop", recreated="replace", log_start="own"),
        bytes_per_second=7,
        acknowledgements=2,
        created_us=_TIME,
        changed_us=_TIME,
    ),
    "link, least": LinkRecord(
        source=LinkSource(bootstrap=("http://east:9520",), cluster_id="c"),
        topics=NamePatterns(include=("a*",)),
        created_us=_TIME,
        changed_us=_TIME,
    ),
    "topic, mirror": TopicRecord(
        topic_id=_TOPIC,
        state=TopicState.READY,
        partitions=1,
        replication_factor=1,
        created_us=_TIME,
        mirror=MirrorOf(
            link="east",
            source_cluster_id="c",
            source_name="a",
            state=MirrorState.PROMOTING,
            lineage=("b", "c"),
            since_us=_TIME,
            era=LeaderEpoch(1 << 20),
        ),
        eras=(Era(epoch=LeaderEpoch(1 << 20), cluster_id="b"),),
    ),
    "topic, failing over": TopicRecord(
        topic_id=_TOPIC,
        state=TopicState.READY,
        partitions=1,
        replication_factor=1,
        created_us=_TIME,
        mirror=MirrorOf(
            link="east",
            source_cluster_id="c",
            source_name="a",
            state=MirrorState.HANDING_OVER,
            lineage=("c",),
            since_us=_TIME,
            failover=True,
        ),
    ),
    "topic, assigned": TopicRecord(
        topic_id=_TOPIC,
        state=TopicState.CREATING,
        partitions=1,
        replication_factor=2,
        created_us=_TIME,
        assigned={PartitionIndex(0): (_TWO, _ONE)},
    ),
    "topic, handed over": TopicRecord(
        topic_id=_TOPIC,
        state=TopicState.READY,
        partitions=1,
        replication_factor=1,
        created_us=_TIME,
        handed_over=HandedOver(cluster_id="d", bootstrap=("http://west:9520",), since_us=_TIME),
    ),
    "group coordinator": CoordinatorRecord(broker=_TWO, broker_epoch=_EPOCH),
    "group": GroupRecord(epoch=3, target_epoch=2, assignor="uniform", emptied_us=_TIME, created_us=_TIME),
    "group, least": GroupRecord(epoch=3, assignor="uniform", created_us=_TIME),
    "group target": TargetRecord(epoch=3, members={"m": (0, 2)}),
    "group, classic": ClassicGroupRecord(
        generation=3, protocol_type="consumer", protocol="range", leader="m"
    ),
    "group member, classic": ClassicMemberRecord(
        instance_id="i",
        client_id="c",
        client_host="/h",
        session_timeout_ms=45_000,
        rebalance_timeout_ms=300_000,
        subscription=b"\x00\x01",
        assignment=b"\xff",
    ),
    "group member": MemberRecord(
        instance_id="i",
        rack="r",
        topics=("a", "b"),
        topic_pattern="x.*",
        assignor="uniform",
        session_timeout_ms=45_000,
        rebalance_timeout_ms=300_000,
        epoch=3,
        previous_epoch=2,
        assigned={_TOPIC: (0, 1)},
        revoking={_TOPIC: (2,)},
        principal="user:ann",
    ),
    "group member, least": MemberRecord(
        session_timeout_ms=45_000, rebalance_timeout_ms=300_000, epoch=-2, previous_epoch=0
    ),
    "group offsets": OffsetsRecord(
        entries=(
            OffsetEntry(
                partition=65, offset=Offset(7), leader_epoch=LeaderEpoch(1), metadata="é", committed_us=_TIME
            ),
            OffsetEntry(partition=66, offset=Offset(0), committed_us=_TIME),
        )
    ),
    "moved": MovedRecord(cluster_id=_TOPIC, etcd="http://etcd:2379"),
    "producer ids": ProducerIdsRecord(next_id=2000),
    "name of transactions": ProducerNameRecord(
        producer_id=ProducerId(8), producer_epoch=ProducerEpoch(1), used_us=_TIME, transactional=True
    ),
    "producer name": ProducerNameRecord(
        producer_id=ProducerId(7), producer_epoch=ProducerEpoch(3), used_us=_TIME
    ),
    "transaction": TransactionRecord(
        name="billing",
        epoch=ProducerEpoch(5),
        timeout_ms=60_000,
        ended=EndedTransaction(
            epoch=ProducerEpoch(4), outcome=Outcome.COMMIT, reason=EndReason.CLIENT, at_us=_TIME
        ),
        named={_TOPIC: (0, 2)},
        unfinished=(UnfinishedCommit(epoch=ProducerEpoch(4), partitions={_TOPIC: (1,)}),),
        metadata="batch 17",
        owner="user:ann",
        used_us=_TIME,
    ),
    "transaction of a Kafka client": TransactionRecord(
        name="copier",
        epoch=ProducerEpoch(5),
        timeout_ms=60_000,
        used_us=_TIME,
        kafka=KafkaSession(
            epoch=ProducerEpoch(2),
            offsets=PendingOffsets(
                group="billing",
                member_id="member-1",
                member_epoch=3,
                offsets=(
                    PendingOffset(
                        topic="orders",
                        topic_id=_TOPIC,
                        partition=0,
                        offset=17,
                        leader_epoch=4,
                        metadata="batch 17",
                    ),
                ),
            ),
        ),
    ),
}


def coordination() -> Any:
    """Describe all keys, all records as stored, their values by name, and the embedded store."""
    return {
        "keys": _keys(),
        "records": {name: encode(record).decode() for name, record in RECORDS.items()},
        "values": {
            "broker state": sorted(BrokerState),
            "durability": sorted(DurabilityState),
            "link state": sorted(LinkState),
            "mirror state": sorted(MirrorState),
            "topic state": sorted(TopicState),
        },
        "embedded": _embedded(),
    }


def _keys() -> dict[str, str]:
    return {
        "prefix": _KEYS.prefix,
        "prefix of an odd name": Keys(_ODD).prefix,
        "mirrored": _KEYS.meta,
        "cluster": _KEYS.cluster,
        "brokers": _KEYS.brokers,
        "broker": _KEYS.broker(BrokerId(3)),
        "controller": _KEYS.controller,
        "controller epoch": _KEYS.controller_epoch,
        "restart permit": _KEYS.restart_permit,
        "topics": _KEYS.topics,
        "topic": _KEYS.topic(_ODD),
        "partitions": _KEYS.partitions(_TOPIC),
        "partition": _KEYS.partition(_TOPIC, PartitionIndex(10)),
        "cluster config": _KEYS.cluster_config,
        "broker config": _KEYS.broker_config(BrokerId(7)),
        "deleted topics": _KEYS.deleted_topics,
        "deleted topic": _KEYS.deleted_topic(_TOPIC),
        "token": _KEYS.token("abcdefghijkl"),
        "acl": _KEYS.acl("0123456789abcdef"),
        "quota": _KEYS.quota("user:a*"),
        "link": _KEYS.link(_ODD),
        "producer ids": _KEYS.producer_ids,
        "producer names": _KEYS.producer_names,
        "producer name": _KEYS.producer_name(_ODD),
        "transactions": _KEYS.transactions,
        "transaction": _KEYS.transaction(ProducerId(17)),
        "moved away": _moved_key(_KEYS),
        "moving in": _moving_key(_KEYS),
        "groups": all_groups(_KEYS),
        "group": GroupKeys(_KEYS, _ODD).prefix,
        "group coordinator": _GROUP.coordinator,
        "group state": _GROUP.state,
        "group targets": _GROUP.targets,
        "group target": _GROUP.target(_TOPIC),
        "group members": _GROUP.members,
        "group member": _GROUP.member(_ODD),
        "group, classic": _GROUP.classic,
        "group member, classic": _GROUP.classic_member(_ODD),
        "group offsets": _GROUP.offsets,
        "group offsets of partition 63": _GROUP.offsets_of(_TOPIC, 63),
        "group offsets of partition 64": _GROUP.offsets_of(_TOPIC, 64),
    }


def _embedded() -> Any:
    """Describe the tables of a new store."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "coordination.sqlite"
        History(path).close()
        connection = sqlite3.connect(path)
        try:
            rows = connection.execute(
                "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
            ).fetchall()
            return {
                "tables": [" ".join(sql.split()) for (sql,) in rows],
                "application_id": connection.execute("PRAGMA application_id").fetchone()[0],
                "user_version": connection.execute("PRAGMA user_version").fetchone()[0],
            }
        finally:
            connection.close()


def _kinds(of: type[Record]) -> Iterator[type[Record]]:
    for kind in of.__subclasses__():
        yield kind
        yield from _kinds(kind)


def test_keys_and_records_are_unchanged() -> None:
    """Keys and bytes of the stored records of coordination are unchanged."""
    golden.assert_unchanged("coordination", coordination())


def test_every_kind_of_record_is_held() -> None:
    """Every record of the registry is in the golden data, and every field of it is set in at least one record."""
    held = {type(record) for record in RECORDS.values()}

    assert held == {kind for kind in _kinds(Record) if kind.__module__.startswith("fairlead_broker.")}
    for kind in held:
        records = [record for record in RECORDS.values() if type(record) is kind]
        left = [
            field.name
            for field in msgspec.structs.fields(kind)
            if field.name not in ("v", "unknown") and not any(_is_set(record, field) for record in records)
        ]
        assert left == [], kind.__name__


def _is_set(record: Record, field: msgspec.structs.FieldInfo) -> bool:
    return field.required or bool(getattr(record, field.name))


@pytest.mark.parametrize("name", RECORDS)
def test_a_golden_record_is_read(name: str) -> None:
    """A record that an earlier release stored is decoded to the same value."""
    stored = golden.read("coordination")["records"][name].encode()

    assert decode("/key", stored, type(RECORDS[name])) == RECORDS[name]
