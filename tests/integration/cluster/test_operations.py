"""Administrative operations on brokers and partitions that have stored records."""

from __future__ import annotations

import asyncio

import pytest

from broker_kit import sequenced
from cluster_kit import Cluster, content, until
from fairlead_api.identifiers import BrokerId, PartitionIndex, TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.controlling.operations import ElectionKind
from fairlead_broker.runtime import AppendResult
from waiting import pause

P0 = PartitionIndex(0)
MODES = pytest.mark.parametrize("mode", ["isr", "quorum"])


def kept_by(cluster: Cluster, topic_id: TopicId) -> list[int]:
    """Return the replicas in the partition record."""
    return [replica.broker for replica in cluster.record(topic_id).replicas]


async def stored(cluster: Cluster, topic_id: TopicId, sequence: int, value: bytes) -> AppendResult:
    """Produce a value, and repeat the batch if the leader changes before the value is acknowledged.

    The batch has a sequence, so that a repeat is stored once.
    """
    data = sequenced(sequence, [value])
    while True:
        flights = await cluster.led("flights", topic_id)
        [answer] = await flights.produce_batch(data)
        if isinstance(answer, AppendResult):
            return answer
        if answer.code != "leader_changed":
            raise answer


@MODES
async def test_a_partition_moves_to_a_new_broker_with_its_records(cluster: Cluster, mode: str) -> None:
    """A partition moves to a new broker with the records acknowledged before, during and after the move."""
    topic_id = await cluster.topic("flights", replication_factor=2, replication_mode=mode)
    flights = await cluster.led("flights", topic_id)
    for number in range(10):
        await flights.produce(b"before %d" % number)
    await cluster.start(4)
    old = kept_by(cluster, topic_id)
    wanted = [BrokerId(4), BrokerId(old[1])]
    await cluster.controller.operations.reassign("flights", P0, wanted)
    during = await stored(cluster, topic_id, 0, b"during")
    await until(lambda: kept_by(cluster, topic_id) == wanted, "the move does not end")
    after = await stored(cluster, topic_id, 1, b"after")
    await cluster.in_sync(topic_id, *wanted)
    copies = [content(cluster.log(broker, topic_id)) for broker in wanted]

    if mode == "isr":
        assert (during.base_offset, after.base_offset) == (10, 11)
    else:
        # The batch that begins each epoch takes an offset, too.
        assert 10 < during.base_offset < after.base_offset
    assert copies[0] == copies[1]
    assert cluster.controller.operations.reassignments() == ()


@MODES
async def test_a_broker_is_drained_stopped_and_forgotten(cluster: Cluster, mode: str) -> None:
    """A broker is drained, stopped and forgotten: its replicas move first, and no partition record names it later."""
    topic_id = await cluster.topic("flights", replication_factor=2, replication_mode=mode)
    flights = await cluster.led("flights", topic_id)
    value = await flights.produce(b"value")
    await cluster.start(4)
    controller = cluster.any.peer_side.controller
    drained = BrokerId(next(broker for broker in kept_by(cluster, topic_id) if broker != controller))
    await cluster.controller.operations.drain(drained)
    await until(lambda: drained not in kept_by(cluster, topic_id), "the drain does not end")
    await cluster.stop(drained)
    await until(lambda: drained not in cluster.controller.metadata.brokers, "the broker stays registered")
    await cluster.controller.operations.unregister(drained)
    flights = await cluster.led("flights", topic_id)
    appended = await flights.produce(b"another")

    assert appended.base_offset == 1 if mode == "isr" else appended.base_offset > value.base_offset
    assert len(kept_by(cluster, topic_id)) == 2
    assert drained not in cluster.controller.metadata.broker_configs


@MODES
async def test_the_preferred_leader_gets_its_partition_back(cluster: Cluster, mode: str) -> None:
    """A restarted preferred leader is a follower with all records, and becomes leader again on request."""
    topic_id = await cluster.topic("flights", replication_mode=mode)
    await (await cluster.led("flights", topic_id)).produce(b"before")
    preferred = kept_by(cluster, topic_id)[0]
    await cluster.stop(preferred)
    second = await (await cluster.led("flights", topic_id)).produce(b"while it is stopped")
    await cluster.start(preferred)
    await cluster.in_sync(topic_id, 1, 2, 3)
    follows = cluster.leader(topic_id)
    async with asyncio.timeout(30):
        # A voter may lead once the leader of its write quorum counts it as near, which no event announces.
        while True:
            try:
                await cluster.controller.operations.elect("flights", P0, ElectionKind.PREFERRED)
                break
            except ProblemError as problem:
                if problem.code != "not_possible_now":
                    raise
                await pause(0.05)
    await until(lambda: cluster.leader(topic_id) == preferred, "the preferred leader does not lead")
    appended = await (await cluster.led("flights", topic_id)).produce(b"after")

    assert follows != preferred
    assert appended.base_offset == 2 if mode == "isr" else appended.base_offset > second.base_offset


async def test_more_replicas_than_brokers_are_refused_with_the_numbers(cluster: Cluster) -> None:
    """A topic with more replicas than uncordoned brokers is refused, and the refusal names both numbers."""
    await cluster.controller.operations.cordon(BrokerId(2))
    with pytest.raises(ProblemError) as refused:
        await cluster.topic("flights", replication_factor=3)

    assert refused.value.code == "invalid_config"
    assert refused.value.data == {"key": "replication_factor", "value": 3, "allowed": "1 to 2"}
