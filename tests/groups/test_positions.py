"""Positions that leaders report to coordinators: lag and limits are the same at every coordinator."""

from __future__ import annotations

import asyncio
import os

from cluster_kit import Cluster
from fairlead_api.bodies.group_requests import ResetRequest, ResetTarget
from fairlead_api.identifiers import Offset, PartitionIndex, TimestampUs, TopicIdPartition
from fairlead_broker.peers.positions import PositionAsked
from group_kit import GroupClient, filled_topic


async def test_a_coordinator_asks_the_leaders_of_other_brokers(cluster: Cluster) -> None:
    """A coordinator asks leaders of other brokers for positions, and a stopped leader does not delay the others."""
    await cluster.start(1, 2, 3)
    await filled_topic(cluster, "flights", partitions=3, records=20, replication_factor=1)
    group = GroupClient(cluster, "job")
    everything = {("flights", index): 20 - index for index in range(3)}
    beyond = {("flights", index): 21 for index in range(3)}
    assert await group.commit(everything) == []
    refused = await asyncio.gather(*(group.commit(beyond) for _ in range(20)))

    assert refused == [["offset_out_of_range"] * 3] * 20
    assert await group.offsets() == everything
    lag = await group.call(lambda groups: groups.lag("job"))
    assert [each.lag_records for each in lag.lag] == [0, 1, 2]
    moved = await group.call(
        lambda groups: groups.reset("job", ResetRequest(to=ResetTarget(duration="1h")), dry_run=False)
    )
    assert [(each.before, each.after) for each in moved.offsets] == [(20, 0), (19, 0), (18, 0)]

    coordinator = await group.coordinator()
    gone = next(broker for broker in (1, 2, 3) if broker != coordinator)
    await cluster.stop(gone)
    left = await group.call(lambda groups: groups.lag("job"))
    told = [(each.lag_records, isinstance(each.problem, dict)) for each in left.lag]
    assert sorted(told, key=str) == [(20, False), (20, False), (None, True)]
    assert left.total_records == 40


async def test_positions_are_answered_in_the_order_of_the_question(cluster: Cluster) -> None:
    """Positions are answered in the order of the request: the age of a record, or the first offset at a time."""
    await cluster.start(1)
    topic_id = await filled_topic(cluster, "flights", partitions=2, records=5, replication_factor=1)
    positions = cluster.broker(1).positions
    first, second = PartitionIndex(0), PartitionIndex(1)
    told = await positions.ask(
        [
            PositionAsked(topic_id=topic_id, partition=second, timestamp_us=TimestampUs(0)),
            PositionAsked(topic_id=topic_id, partition=first, from_start=True),
            PositionAsked(topic_id=topic_id, partition=PartitionIndex(9)),
            PositionAsked(topic_id=topic_id, partition=first, offset=Offset(5)),
        ]
    )

    assert [each.partition for each in told] == [1, 0, 9, 0]
    assert (told[0].found_offset, told[0].append_time_us, told[0].high_watermark) == (0, None, 5)
    assert told[1].append_time_us is not None
    assert told[2].problem is not None
    assert told[3].append_time_us is None
    known = await positions.beyond({TopicIdPartition(topic_id, first): Offset(5)})
    assert known == {}


async def test_the_age_of_a_record_is_read_once(cluster: Cluster) -> None:
    """The age of a record is read once from the file and later answered from memory."""
    await cluster.start(1)
    topic_id = await filled_topic(cluster, "flights", partitions=1, records=5, replication_factor=1)
    asked = [PositionAsked(topic_id=topic_id, partition=PartitionIndex(0), from_start=True)]
    [told] = await cluster.broker(1).positions.ask(asked)
    [log] = [path for path in (cluster.path / "1").rglob("*.log") if path.stat().st_size]
    os.truncate(log, 0)
    [again] = await cluster.broker(1).positions.ask(asked)

    assert told.append_time_us is not None
    assert again == told
