from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fairlead_api.identifiers import BrokerId, PartitionIndex, TopicId
from fairlead_broker.registry.keys import (
    NAME_BYTES_MAX,
    AclKey,
    BrokerConfigKey,
    BrokerKey,
    ClusterConfigKey,
    ClusterKey,
    ControllerEpochKey,
    ControllerKey,
    DeletedTopicKey,
    Keys,
    MetaKey,
    PartitionKey,
    TokenKey,
    TopicKey,
    encode_name,
)
from refusals import raises

KEYS = Keys("prod")
ID = TopicId("1b4e28ba-2fa1-4d3b-a3f5-ef19b5a7633b")
BUILT: list[tuple[str, MetaKey]] = [
    (KEYS.token("t1"), TokenKey("t1")),
    (KEYS.acl("a1"), AclKey("a1")),
    (KEYS.cluster, ClusterKey()),
    (KEYS.broker(BrokerId(3)), BrokerKey(BrokerId(3))),
    (KEYS.broker(BrokerId(0)), BrokerKey(BrokerId(0))),
    (KEYS.controller, ControllerKey()),
    (KEYS.controller_epoch, ControllerEpochKey()),
    (KEYS.topic("a.b_c-1"), TopicKey("a.b_c-1")),
    (KEYS.topic("a/b ü"), TopicKey("a/b ü")),
    (KEYS.partition(ID, PartitionIndex(10)), PartitionKey(ID, PartitionIndex(10))),
    (KEYS.cluster_config, ClusterConfigKey()),
    (KEYS.broker_config(BrokerId(7)), BrokerConfigKey(BrokerId(7))),
    (KEYS.deleted_topic(ID), DeletedTopicKey(ID)),
]


@pytest.mark.parametrize(("built", "parsed"), BUILT)
def test_a_key_that_was_built_is_parsed(built: str, parsed: MetaKey) -> None:
    """A built key is parsed to its type.

    The text of each key is tested in tests/contract.
    """
    assert KEYS.parse(built) == parsed


def test_the_permit_to_restart_lies_in_the_cluster_and_is_not_followed() -> None:
    """The key of the restart permit is below the cluster's prefix and outside the mirrored keys."""
    assert KEYS.restart_permit == "/fairlead/prod/meta/restart-permit"
    assert KEYS.parse(KEYS.restart_permit) is None


def test_prefixes_hold_their_keys() -> None:
    """A prefix selects exactly its keys."""
    assert KEYS.prefix == "/fairlead/prod/"
    assert KEYS.meta == "/fairlead/prod/meta/"
    assert KEYS.broker(BrokerId(1)).startswith(KEYS.brokers)
    assert KEYS.topic("t").startswith(KEYS.topics)
    assert KEYS.partition(ID, PartitionIndex(1)).startswith(KEYS.partitions(ID))
    assert KEYS.deleted_topic(ID).startswith(KEYS.deleted_topics)


@pytest.mark.parametrize(
    "key",
    [
        "/fairlead/other/meta/cluster",
        "/fairlead/prod/groups/g/offsets/1",
        "/fairlead/prod/meta",
        "/fairlead/prod/meta/",
        "/fairlead/prod/meta/later",
        "/fairlead/prod/meta/brokers/",
        "/fairlead/prod/meta/brokers/x",
        "/fairlead/prod/meta/brokers/-1",
        "/fairlead/prod/meta/brokers/01",
        "/fairlead/prod/meta/brokers/1/later",
        "/fairlead/prod/meta/topics/",
        "/fairlead/prod/meta/partitions/x",
        "/fairlead/prod/meta/partitions//1",
        "/fairlead/prod/meta/partitions/x/ü",
        "/fairlead/prod/meta/deleted/",
        "/fairlead/prod/meta/config/later",
        "/fairlead/prod/meta/config/brokers/x",
    ],
)
def test_what_is_no_key_of_this_release_is_nothing(key: str) -> None:
    """Keys of another cluster, outside `meta/`, or of a later release parse to no key."""
    assert KEYS.parse(key) is None


@given(name=st.text(min_size=1, max_size=80))
def test_every_name_is_found_again_in_its_key(name: str) -> None:
    """A percent-encoded name is ASCII and is decoded unchanged."""
    assume(not any("\ud800" <= letter <= "\udfff" for letter in name))
    assume(len(name.encode()) * 3 <= NAME_BYTES_MAX)
    key = KEYS.topic(name)

    assert key.isascii()
    assert key.count("/") == KEYS.topics.count("/")
    assert KEYS.parse(key) == TopicKey(name)


def test_names_take_at_most_255_bytes() -> None:
    """A name of more than 255 bytes, and an empty name, are refused, and the error contains the length."""
    assert len(encode_name("a" * 255)) == 255
    with raises(ValueError, 256):
        encode_name("a" * 256)
    with raises(ValueError, 258):
        encode_name("/" * 86)
    with raises(ValueError, 0):
        Keys("")


def test_the_name_of_a_cluster_is_encoded() -> None:
    """The name of a cluster is encoded, so its prefix never covers keys of another cluster."""
    assert Keys("a/meta").prefix == "/fairlead/a%2Fmeta/"
