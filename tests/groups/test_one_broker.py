"""A group on one broker, from its first member through commits to its deletion."""

from __future__ import annotations

import pytest

from cluster_kit import Cluster
from group_kit import GroupClient, filled_topic, settle
from refusals import refuses


@pytest.mark.slow
async def test_members_split_a_topic_commit_and_go_on_where_they_stopped(cluster: Cluster) -> None:
    """A member continues at the committed offsets of its partitions, whichever member committed them."""
    await cluster.start(1)
    await filled_topic(cluster, "flights", partitions=4, records=10, replication_factor=1)
    group = GroupClient(cluster, "etl")
    first, second = group.member("m1", "flights"), group.member("m2", "flights")

    await settle(first)
    assert len(first.partitions) == 4
    await settle(first, second)
    assert len(first.partitions) == len(second.partitions) == 2
    assert not first.partitions & second.partitions
    mine, *_ = sorted(first.partitions)
    assert await group.commit({mine: 7}, first) == []
    await first.leave()
    await settle(second)

    assert len(second.partitions) == 4
    assert await group.offsets() == {mine: 7}
    listed = await cluster.broker(1).groups.listing(None, 10)
    assert [(each.group, each.coordinator) for each in listed.items] == [("etl", 1)]
    with refuses("group_not_empty"):
        await group.call(lambda groups: groups.delete("etl"))
    await second.leave()
    await group.call(lambda groups: groups.delete("etl"))
    assert (await cluster.broker(1).groups.listing(None, 10)).items == []
    with refuses("group_not_found"):
        await group.describe()


async def test_a_crowded_broker_says_how_often_its_members_may_come(cluster: Cluster) -> None:
    """A broker lengthens the heartbeat interval as the number of its members grows."""
    await cluster.start(1)
    await filled_topic(cluster, "flights", partitions=2, records=1, replication_factor=1)
    member = GroupClient(cluster, "etl").member("m1", "flights")
    other = GroupClient(cluster, "other").member("m1", "flights")
    pace = cluster.broker(1).groups.pace
    await settle(member)
    await settle(other)
    pace.count(1_998)
    crowded = (await member.beat()).heartbeat_interval_ms
    await other.leave()
    pace.count(-1_998)

    assert crowded == 10_000
    assert (await member.beat()).heartbeat_interval_ms == 5_000
    await member.leave()
