from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    InSync,
    PartitionRecord,
    QuarantinedReplica,
    Quorum,
    Record,
    RecordUnreadable,
    Replica,
    TopicRecord,
    TopicState,
    config_texts,
    decode,
    encode,
)
from refusals import raises

ID = "1b4e28ba-2fa1-4d3b-a3f5-ef19b5a7633b"
STORED: list[tuple[Any, dict[str, Any]]] = [
    (
        ClusterRecord(cluster_id=ID, feature_level=1, created_us=5),  # type: ignore[arg-type]
        {"v": 1, "cluster_id": ID, "feature_level": 1, "created_us": 5},
    ),
    (ControllerRecord(broker=1, broker_epoch=9), {"v": 1, "broker": 1, "broker_epoch": 9}),  # type: ignore[arg-type]
    (ControllerEpochRecord(epoch=3), {"v": 1, "epoch": 3}),
    (
        TopicRecord(
            topic_id=ID,  # type: ignore[arg-type]
            state=TopicState.READY,
            partitions=3,
            growing_to=6,
            replication_factor=1,
            config={"segment.bytes": "1048576"},
            created_us=5,  # type: ignore[arg-type]
        ),
        {
            "v": 1,
            "topic_id": ID,
            "state": "ready",
            "partitions": 3,
            "growing_to": 6,
            "replication_factor": 1,
            "config": {"segment.bytes": "1048576"},
            "created_us": 5,
        },
    ),
    (DeletedTopicRecord(name="t", deleted_us=5), {"v": 1, "name": "t", "deleted_us": 5}),  # type: ignore[arg-type]
    (ConfigRecord(values={"a": "b"}), {"v": 1, "values": {"a": "b"}}),
    (
        BrokerRegistration(
            state=BrokerState.RUNNING,
            addresses=Addresses(
                data="h:1",
                peer="h:2",
                ops="h:3",
                data_tls="h:4",
                peer_scheme="https",
                external="",
                kafka="h:5",
            ),
            rack=None,
            release="0.1.0",
            peer_secret_hash="ab",
            directories=(Directory(id="d", last_broker_epoch=4),),  # type: ignore[arg-type]
            quarantined=(QuarantinedReplica(topic_id=ID, partition=2),),  # type: ignore[arg-type]
            intact_since=2,  # type: ignore[arg-type]
            lease_seconds=3,
            feature_level=2,
            tls=CertificateRecord(certificate_sha256="cd", not_after_us=5, ca_sha256=("ef",)),  # type: ignore[arg-type]
            peer_tls=CertificateRecord(certificate_sha256="01", not_after_us=6, ca_sha256=()),  # type: ignore[arg-type]
            peer_key="45",
            partitions_max=1000,
        ),
        {
            "v": 1,
            "state": "running",
            "addresses": {
                "data": "h:1",
                "peer": "h:2",
                "ops": "h:3",
                "data_tls": "h:4",
                "peer_scheme": "https",
                "external": "",
                "kafka": "h:5",
            },
            "rack": None,
            "release": "0.1.0",
            "peer_secret_hash": "ab",
            "directories": [{"id": "d", "last_broker_epoch": 4}],
            "quarantined": [{"topic_id": ID, "partition": 2}],
            "intact_since": 2,
            "lease_seconds": 3,
            "feature_level": 2,
            "tls": {"certificate_sha256": "cd", "not_after_us": 5, "ca_sha256": ["ef"]},
            "peer_tls": {"certificate_sha256": "01", "not_after_us": 6, "ca_sha256": []},
            "peer_key": "45",
            "partitions_max": 1000,
        },
    ),
    (
        PartitionRecord(
            leader=InSync(broker=1, broker_epoch=9),  # type: ignore[arg-type]
            leader_epoch=7,  # type: ignore[arg-type]
            replicas=(Replica(broker=1, directory="d", generation=2),),  # type: ignore[arg-type]
            adding=(2,),  # type: ignore[arg-type]
            removing=(3,),  # type: ignore[arg-type]
            isr=(InSync(broker=1, broker_epoch=9),),  # type: ignore[arg-type]
            elr=(InSync(broker=3, broker_epoch=8),),  # type: ignore[arg-type]
            min_isr=2,
            durability=DurabilityState.SYNCING,
            unclean=True,
            restored=True,
            quorum=Quorum(write=1, voters=(InSync(broker=1, broker_epoch=9),), log_start=4),  # type: ignore[arg-type]
        ),
        {
            "v": 1,
            "leader": {"broker": 1, "broker_epoch": 9},
            "leader_epoch": 7,
            "replicas": [{"broker": 1, "directory": "d", "generation": 2}],
            "adding": [2],
            "removing": [3],
            "isr": [{"broker": 1, "broker_epoch": 9}],
            "elr": [{"broker": 3, "broker_epoch": 8}],
            "min_isr": 2,
            "durability": "syncing",
            "unclean": True,
            "restored": True,
            "quorum": {"write": 1, "voters": [{"broker": 1, "broker_epoch": 9}], "log_start": 4},
        },
    ),
]
IDS = [type(record).__name__ for record, _ in STORED]

# No release uses these names, so an invented field is never a known one.
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.dictionaries(
    st.text(max_size=8).map(lambda name: f"later-{name}") | st.just("unknown"), VALUES, max_size=3
)


@pytest.mark.slow
@pytest.mark.parametrize(("record", "document"), STORED, ids=IDS)
@settings(max_examples=40)
@given(data=st.data())
def test_unknown_fields_are_kept_on_rewrite(
    record: Record, document: dict[str, Any], data: st.DataObject
) -> None:
    """Fields of a later release are kept at the top and in every nested object, in order and value."""
    enriched = json.loads(json.dumps(document))
    enriched.update(data.draw(FIELDS))
    for name in type(record).nested.keys() & enriched.keys():
        held = enriched[name]
        for entry in [held] if isinstance(held, dict) else held:
            entry.update(data.draw(FIELDS))
    found = decode("/k", json.dumps(enriched).encode(), type(record))
    rewritten = encode(found)

    assert json.loads(rewritten) == enriched
    assert encode(decode("/k", rewritten, type(record))) == rewritten


def test_unknown_fields_go_with_the_entry_that_is_replaced() -> None:
    """A record that is changed by replacing fields keeps its unknown fields."""
    document = {**STORED[-1][1], "leader": {"broker": 1, "broker_epoch": 9, "term": 4}, "later": [1]}
    record = decode("/k", json.dumps(document).encode(), PartitionRecord)
    assert record.leader is not None
    leader = msgspec.structs.replace(record.leader, broker_epoch=10)
    successor = msgspec.structs.replace(record, leader=leader, unclean=False)

    assert json.loads(encode(successor)) == {
        **document,
        "leader": {"broker": 1, "broker_epoch": 10, "term": 4},
        "unclean": False,
    }


def test_no_leader_is_null() -> None:
    """The leader of a partition without a leader is stored as null."""
    record = msgspec.structs.replace(STORED[-1][0], leader=None)
    written = encode(record)

    assert json.loads(written)["leader"] is None
    assert decode("/k", written, PartitionRecord) == record


def test_fields_with_a_default_may_be_missing() -> None:
    """Missing fields take their defaults."""
    document = {k: v for k, v in STORED[-1][1].items() if k not in ("adding", "removing", "elr", "unclean")}
    record = decode("/k", json.dumps(document).encode(), PartitionRecord)

    assert (record.adding, record.removing, record.elr, record.unclean) == ((), (), (), False)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "the value of /k cannot be read"),
        (b"\xff", "the value of /k cannot be read"),
        (b"[]", "it is not a JSON object"),
        (b"{}", "version `v` is None"),
        (b'{"v":true,"epoch":1}', "version `v` is True"),
        (b'{"v":0,"epoch":1}', "version `v` is 0"),
        (b'{"v":2,"epoch":1}', "it has version 2, this release reads up to 1; start a newer release"),
        (b'{"v":1,"epoch":1,"v":2}', "it has version 2, this release reads up to 1"),
        (b'{"v":1}', "epoch"),
        (b'{"v":1,"epoch":"x"}', "epoch"),
        (b'{"v":1,"epoch":0}', "epoch"),
    ],
)
def test_what_cannot_be_read_names_the_key_and_the_reason(value: bytes, reason: str) -> None:
    """A damaged value, a wrong type, a missing field or a later version is refused with the key and the reason."""
    with raises(RecordUnreadable, "/k") as error:
        decode("/k", value, ControllerEpochRecord)

    assert reason in str(error.value)
    assert error.value.key == "/k"


def test_a_nested_entry_of_another_type_is_refused() -> None:
    """A list entry that is not an object is refused."""
    document = {**STORED[-1][1], "isr": [1, 2]}
    with raises(RecordUnreadable, "isr"):
        decode("/k", json.dumps(document).encode(), PartitionRecord)


def test_configuration_is_read_in_the_form_in_which_it_is_stored() -> None:
    """Stored numbers and booleans of a configuration are read as their text."""
    values = {"a": True, "b": False, "c": 5, "d": 0.5, "e": "Text"}

    assert config_texts(values) == {"a": "true", "b": "false", "c": "5", "d": "0.5", "e": "Text"}


@pytest.mark.parametrize(
    "quorum", [{"write": 2, "voters": [{"broker": 1, "broker_epoch": 9}]}, {"write": 1, "voters": []}]
)
def test_an_impossible_quorum_is_unreadable(quorum: dict[str, Any]) -> None:
    """A write quorum above the number of replicas, and a quorum without voters, make a record unreadable."""
    [(record, document)] = [each for each in STORED if isinstance(each[0], PartitionRecord)]
    with pytest.raises(RecordUnreadable):
        decode("/k", json.dumps({**document, "quorum": quorum}).encode(), type(record))
    stranger = {"write": 1, "voters": [{"broker": 8, "broker_epoch": 9}]}

    with pytest.raises(RecordUnreadable):
        decode("/k", json.dumps({**document, "quorum": stranger}).encode(), type(record))


def test_a_record_without_a_quorum_is_written_as_before() -> None:
    """A record without a quorum has no field for one, because older releases do not know the field."""
    [record] = [each for each, _ in STORED if isinstance(each, PartitionRecord)]

    assert b"quorum" not in encode(msgspec.structs.replace(record, quorum=None))
