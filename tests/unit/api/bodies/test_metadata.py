"""Answers about the cluster and topics use the field names of the contract."""

from __future__ import annotations

import msgspec
import pytest

from fairlead_api.bodies.metadata import (
    BrokerDescription,
    ClusterDescription,
    Metadata,
    Page,
    PartitionMetadata,
    TopicDescription,
    TopicHandOver,
    TopicMetadata,
    Versions,
)
from fairlead_api.configuration import ConfigEntry, ConfigSource

BROKER = BrokerDescription(id=1, address="http://b1:9520")
BROKER_JSON = {
    "id": 1,
    "address": "http://b1:9520",
    "rack": None,
    "state": "running",
    "cordoned": False,
    "immovable": [],
    "external_address": None,
}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            Versions(
                release="0.1.0",
                api=["v1"],
                batch_formats=[1],
                codecs=["none"],
                cluster_id="c",
                cluster="dev",
                feature_level=1,
            ),
            {
                "release": "0.1.0",
                "api": ["v1"],
                "batch_formats": [1],
                "codecs": ["none"],
                "cluster_id": "c",
                "cluster": "dev",
                "feature_level": 1,
            },
        ),
        (
            ClusterDescription(cluster_id="c", cluster="dev", controller=None, brokers=[BROKER]),
            {"cluster_id": "c", "cluster": "dev", "controller": None, "brokers": [BROKER_JSON]},
        ),
        (
            Metadata(
                cluster_id="c",
                controller=1,
                brokers=[BROKER],
                topics=[
                    TopicMetadata(
                        name="t",
                        topic_id="i",
                        partitions=[
                            PartitionMetadata(
                                partition=0,
                                leader=None,
                                leader_epoch=3,
                                replicas=[1],
                                isr=[],
                                elr=[1],
                                offline=[1],
                            )
                        ],
                        handed_over=TopicHandOver(cluster_id="d", bootstrap=["http://d:1"]),
                    )
                ],
            ),
            {
                "cluster_id": "c",
                "controller": 1,
                "brokers": [BROKER_JSON],
                "topics": [
                    {
                        "name": "t",
                        "topic_id": "i",
                        "partitions": [
                            {
                                "partition": 0,
                                "leader": None,
                                "leader_epoch": 3,
                                "replicas": [1],
                                "isr": [],
                                "elr": [1],
                                "offline": [1],
                                "adding": [],
                                "removing": [],
                                "min_isr": 1,
                                "voters": [],
                                "write": None,
                            }
                        ],
                        "is_mirror": False,
                        "handed_over": {"cluster_id": "d", "bootstrap": ["http://d:1"]},
                    }
                ],
            },
        ),
        (
            TopicDescription(
                name="t",
                topic_id="i",
                state="ready",
                partitions=1,
                replication_factor=1,
                config={"segment.ms": ConfigEntry("5", ConfigSource.TOPIC)},
            ),
            {
                "name": "t",
                "topic_id": "i",
                "state": "ready",
                "partitions": 1,
                "replication_factor": 1,
                "config": {"segment.ms": {"value": "5", "source": "topic"}},
                "mirror": None,
                "eras": [],
                "handed_over": None,
            },
        ),
    ],
)
def test_an_answer_has_the_members_of_the_contract(answer: msgspec.Struct, expected: object) -> None:
    """An answer uses the JSON names of the contract and is read back unchanged; unknown fields are ignored."""
    document = msgspec.json.decode(msgspec.json.encode(answer))

    assert document == expected
    assert msgspec.convert({**document, "from_the_future": 1}, type(answer)) == answer


@pytest.mark.parametrize("cursor", [None, "b"])
def test_a_page_knows_the_type_of_its_items(cursor: str | None) -> None:
    """A page of brokers has `items` and `next`, and is read back as brokers."""
    page = Page[BrokerDescription](items=[BROKER], next=cursor)
    text = msgspec.json.encode(page)

    assert msgspec.json.decode(text) == {"items": [BROKER_JSON], "next": cursor}
    assert msgspec.json.decode(text, type=Page[BrokerDescription]) == page


def test_a_broker_that_is_gone_has_no_address() -> None:
    """A stopped broker has no address, its state shows the reason, and it can still be cordoned."""
    gone = BrokerDescription(id=3, address=None, state="gone", cordoned=True)
    text = msgspec.json.encode(gone)

    assert msgspec.json.decode(text) == {
        "id": 3,
        "address": None,
        "rack": None,
        "state": "gone",
        "cordoned": True,
        "immovable": [],
        "external_address": None,
    }
    assert msgspec.json.decode(text, type=BrokerDescription) == gone


def test_a_broker_of_an_earlier_release_is_not_cordoned() -> None:
    """A broker of an earlier release counts as not cordoned, because an absent field has its default."""
    early = b'{"id": 1, "address": "http://b1:9520", "rack": null, "state": "running"}'

    assert msgspec.json.decode(early, type=BrokerDescription) == BROKER
