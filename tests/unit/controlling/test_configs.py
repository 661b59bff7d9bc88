"""Configuration of the cluster and of brokers: merge patches by compare-and-set, and their effects."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fairlead_api.bodies.requests import CreateTopicRequest
from fairlead_api.identifiers import BrokerEpoch, BrokerId, PartitionIndex
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.controlling.configs import ConfigAdmin
from fairlead_broker.coordination.protocol import CoordinationUnavailable, UnknownOutcome
from fairlead_broker.registry.records import ConfigRecord, ControllerRecord, DurabilityState, encode
from fairlead_broker.registry.store_writes import Delete, Put

BROKER = BrokerId(1)


@pytest.fixture
def configs(life: Any) -> ConfigAdmin:
    """Return configuration in the store of the test."""
    return ConfigAdmin(life.coordination, life.mirror)


def cluster(life: Any) -> dict[str, object]:
    """Return the configuration of the cluster."""
    return life.mirror.metadata.cluster_config.value.values


async def test_a_patch_sets_changes_and_resets(life: Any, configs: ConfigAdmin) -> None:
    """A configuration value is stored as normalized text and mirrored when the call returns.

    The value null removes its key from the configuration.
    """
    await configs.alter_cluster({"num.partitions": 3, "flush.ms": "007", "auto.create.topics.enable": True})
    first = cluster(life)
    await configs.alter_cluster({"num.partitions": 4, "flush.ms": None})
    await configs.alter_broker(BROKER, {"retention.ms": -1})

    assert first == {"num.partitions": "3", "flush.ms": "7", "auto.create.topics.enable": "true"}
    assert cluster(life) == {"num.partitions": "4", "auto.create.topics.enable": "true"}
    assert life.mirror.metadata.broker_config(BROKER).value.values == {"retention.ms": "-1"}


async def test_nothing_new_is_not_written(life: Any, configs: ConfigAdmin) -> None:
    """A patch without an effective change is not written."""
    await configs.alter_cluster({"flush.ms": 7})
    before = life.mirror.metadata.cluster_config.mod_revision
    for patch in ({"flush.ms": "07"}, {}, {"retention.ms": None}):
        await configs.alter_cluster(patch)

    assert life.mirror.metadata.cluster_config.mod_revision == before


async def test_patches_at_once_all_hold(life: Any, configs: ConfigAdmin) -> None:
    """Concurrent patches are merged, and all of them take effect."""
    keys = ["flush.ms", "segment.ms", "retention.ms", "flush.messages", "file.delete.delay.ms"]
    await asyncio.gather(*(configs.alter_cluster({key: 5}) for key in keys))

    assert cluster(life) == dict.fromkeys(keys, "5")


@pytest.mark.parametrize(
    "patch",
    [{"no.such.key": 1}, {"flush.ms": "x"}, {"quorum.write": 0}, {"flush.ms": 1, "no.such.key": None}],
)
async def test_a_bad_key_or_value_writes_nothing(
    life: Any, configs: ConfigAdmin, patch: dict[str, Any]
) -> None:
    """A patch with an invalid key or value writes nothing."""
    with pytest.raises(ProblemError) as refused:
        await configs.alter_cluster(patch)

    assert refused.value.code == "invalid_config"
    assert life.mirror.metadata.cluster_config is None


async def test_only_brokers_that_are_known_are_configured(life: Any, configs: ConfigAdmin) -> None:
    """A broker can be configured if it is registered or has a configuration already, and is unknown otherwise."""
    key = life.mirror.metadata.keys.broker_config(BrokerId(5))
    with pytest.raises(ProblemError) as refused:
        await configs.alter_broker(BrokerId(5), {"flush.ms": 1})
    written = await life.coordination.transact((), (Put(key, encode(ConfigRecord(values={}))),))
    await life.mirror.wait_for(written.revision)
    await configs.alter_broker(BrokerId(5), {"flush.ms": 1})

    assert (refused.value.code, refused.value.data["broker"]) == ("broker_not_found", 5)
    assert life.mirror.metadata.broker_config(BrokerId(5)).value.values == {"flush.ms": "1"}


async def test_what_a_later_release_wrote_stays(life: Any, configs: ConfigAdmin) -> None:
    """A patch keeps unknown fields and keys that a later release wrote."""
    record = ConfigRecord(values={"from.the.future": 1, "flush.ms": "5"}, unknown={"audience": "all"})
    key = life.mirror.metadata.keys.cluster_config
    written = await life.coordination.transact((), (Put(key, encode(record)),))
    await life.mirror.wait_for(written.revision)
    await configs.alter_cluster({"flush.ms": 6})

    found = life.mirror.metadata.cluster_config.value
    assert found.values == {"from.the.future": "1", "flush.ms": "6"}
    assert found.unknown == {"audience": "all"}


async def test_an_unknown_outcome_is_looked_up(life: Any, configs: ConfigAdmin) -> None:
    """After a write with an unknown outcome, the result is read, so that the value is stored when the call returns."""

    async def written_without_answer(call: Any) -> Any:
        await call()
        message = "no answer"
        raise UnknownOutcome(message)

    async def lost(call: Any) -> Any:
        message = "no answer"
        raise UnknownOutcome(message)

    life.coordination.faults["transact"] = [written_without_answer]
    await configs.alter_cluster({"flush.ms": 5})
    life.coordination.faults["transact"] = [lost]
    await configs.alter_cluster({"flush.ms": 6})

    assert cluster(life) == {"flush.ms": "6"}


async def test_an_unavailable_store_is_reported(life: Any, configs: ConfigAdmin) -> None:
    """A write to an unavailable store fails without a side effect."""

    async def away(call: Any) -> Any:
        message = "away"
        raise CoordinationUnavailable(message)

    life.coordination.faults["transact"] = [away]
    with pytest.raises(ProblemError) as refused:
        await configs.alter_cluster({"flush.ms": 5})

    assert (refused.value.code, refused.value.side_effect) == ("coordination_unavailable", SideEffect.NONE)


async def test_the_controller_brings_partition_records_in_line(life: Any, configs: ConfigAdmin) -> None:
    """Partition records follow the cluster's configuration unless the topic sets the value.

    Setting the same value again writes nothing.
    """
    await life.admin.create(CreateTopicRequest(name="follows", partitions=2))
    await life.admin.create(CreateTopicRequest(name="differs", config={"durability": "synced"}))
    await configs.alter_cluster({"durability": "replicated"})
    await life.admin.follow_cluster_config()
    revision = life.mirror.metadata.revision
    await life.admin.follow_cluster_config()

    assert durabilities(life, "follows") == [DurabilityState.REPLICATED] * 2
    assert durabilities(life, "differs") == [DurabilityState.SYNCED]
    assert life.mirror.metadata.revision == revision


async def test_a_broker_that_is_not_the_controller_leaves_records_alone(
    life: Any, configs: ConfigAdmin
) -> None:
    """A broker that is not the controller writes no partition records, and raises no error."""
    await life.admin.create(CreateTopicRequest(name="flights"))
    await configs.alter_cluster({"durability": "replicated"})
    key = life.mirror.metadata.keys.controller
    other = ControllerRecord(broker=BrokerId(2), broker_epoch=BrokerEpoch(1))
    await life.coordination.transact((), (Delete(key),))
    written = await life.coordination.transact((), (Put(key, encode(other)),))
    await life.mirror.wait_for(written.revision)
    await life.admin.follow_cluster_config()

    assert durabilities(life, "flights") == [DurabilityState.SYNCED]


async def test_a_start_finishes_what_a_crash_left(path: Path, clock: Any, kit: Any) -> None:
    """A controller that starts after a crash writes partition records that lack the cluster's configuration."""
    async with kit.live(path, clock) as life:
        await life.admin.create(CreateTopicRequest(name="flights"))
        await ConfigAdmin(life.coordination, life.mirror).alter_cluster({"durability": "replicated"})
        epoch = life.membership.broker_epoch
    async with kit.live(path, clock, epoch) as life:
        await life.controllership.begin()

        assert durabilities(life, "flights") == [DurabilityState.REPLICATED]


@pytest.mark.parametrize(("configured", "expected"), [({}, 1), ({"num.partitions": 3}, 3)])
async def test_a_topic_without_a_number_of_partitions_takes_the_clusters(
    life: Any, configs: ConfigAdmin, configured: dict[str, Any], expected: int
) -> None:
    """A topic requested without a partition count gets the cluster's default.

    A repeated creation of a topic changes nothing, even after the cluster's default has changed.
    """
    await configs.alter_cluster(configured)
    created, _ = await life.admin.create(CreateTopicRequest(name="flights"))
    await configs.alter_cluster({"num.partitions": 9})
    again, anew = await life.admin.create(CreateTopicRequest(name="flights"))

    assert created.partitions == expected
    assert (again, anew) == (created, False)
    assert sorted(life.mirror.metadata.partitions(created.topic_id)) == list(
        map(PartitionIndex, range(expected))
    )


def durabilities(life: Any, topic: str) -> list[DurabilityState]:
    """Return the durability in each partition record of a topic."""
    metadata = life.mirror.metadata
    records = metadata.partitions(metadata.topics[topic].value.topic_id)
    return [record.value.durability for record in records.values()]
