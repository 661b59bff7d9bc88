"""Coordinators that stop or lose their lease or claim keep members and offsets, and only one coordinator writes."""

from __future__ import annotations

import asyncio

import pytest

from cluster_kit import Cluster, until
from fairlead_api.problems import ProblemError
from fairlead_broker.coordination.group_store import ClaimLost, GroupStore
from fairlead_broker.registry.keys import Keys
from fairlead_broker.runtime.groups.groups import Groups
from group_kit import GroupClient, GroupMember, filled_topic, settle
from refusals import refuses


@pytest.fixture
async def three(cluster: Cluster) -> Cluster:
    """Return three brokers with a topic of six partitions."""
    await cluster.start(1, 2, 3)
    await filled_topic(cluster, "flights", partitions=6, records=100)
    return cluster


async def settled_pair(cluster: Cluster) -> tuple[GroupClient, GroupMember, GroupMember]:
    """Return a group of two members with three partitions each; one partition has a committed offset."""
    group = GroupClient(cluster, "etl")
    first, second = group.member("m1", "flights"), group.member("m2", "flights")
    await settle(first, second)
    await group.commit({("flights", index): 10 + index for _, index in first.partitions}, first)
    return group, first, second


async def goes_on(group: GroupClient, *members: GroupMember) -> None:
    """Check that members keep their partitions and their member epochs."""
    before = [(member.epoch, member.partitions) for member in members]
    epoch, offsets = (await group.describe()).epoch, await group.offsets()
    for member in members:
        await member.beat()

    assert [(member.epoch, member.partitions) for member in members] == before
    described = await group.describe()
    assert (described.state, described.epoch) == ("stable", epoch)
    assert await group.offsets() == offsets == {each: 10 + each[1] for each in members[0].partitions}


@pytest.mark.slow
async def test_members_do_not_notice_that_their_coordinator_stops(three: Cluster) -> None:
    """A coordinator that stops releases its group, and the next coordinator loads the group unchanged."""
    group, first, second = await settled_pair(three)
    was = await group.coordinator()
    await three.stop(was)

    await goes_on(group, first, second)
    assert await group.coordinator() != was
    assert await group.commit({next(iter(first.partitions)): 99}, first) == []


async def test_members_are_kept_when_the_coordinator_loses_its_lease(three: Cluster) -> None:
    """A group whose coordinator lost its lease is kept, and writes by the old coordinator are refused by the store."""
    group, first, second = await settled_pair(three)
    was = await group.coordinator()
    old = next(each for each in three.broker(was).groups if each.name == "etl")
    life = three.broker(was).entry.incarnation
    ended = life.epoch
    await three.store.revoke(life.membership.lease)
    await until(lambda: life.epoch > ended, "the broker did not register again")

    await goes_on(group, first, second)
    keys = three.broker(was).entry.keys
    with pytest.raises(ClaimLost):
        await GroupStore(three.store, keys).write(old.claim, ())
    assert not old.usable


async def test_one_broker_gets_a_group_that_all_ask_for(three: Cluster) -> None:
    """A group that three brokers claim has one coordinator, whose address the other brokers name."""
    group = GroupClient(three, "etl")

    async def join(broker: int) -> str:
        """Return the broker's answer to a join."""
        groups: Groups = three.broker(broker).groups
        member = group.member(f"m{broker}", "flights")
        try:
            await groups.heartbeat("etl", member.member_id, member.request())
        except ProblemError as problem:
            return f"{problem.code} {problem.data['address'] is not None}"
        return "joined"

    answers = await asyncio.gather(*(join(broker) for broker in (1, 2, 3)))

    assert sorted(answers) == ["joined", "not_coordinator True", "not_coordinator True"]
    holder = await GroupStore(three.store, Keys("fairlead")).holder("etl")
    assert holder is not None
    assert holder.broker == await group.coordinator() == answers.index("joined") + 1


async def test_claims_at_once_leave_one(three: Cluster) -> None:
    """When several brokers claim one group, the store grants the claim to only one broker."""
    keys = Keys("fairlead")
    lives = [three.broker(broker).entry.incarnation for broker in (1, 2, 3)]
    store = GroupStore(three.store, keys)
    claims = await asyncio.gather(*(store.claim("mine", None, life.broker, life.epoch) for life in lives))

    won = [claim for claim in claims if claim is not None]
    assert len(won) == 1
    holder = await store.holder("mine")
    assert holder is not None
    for life in lives:
        again = await store.claim("mine", holder, life.broker, life.epoch)
        assert (again is not None) == (life.broker == won[0].broker)
    with pytest.raises(ClaimLost):
        await store.write(won[0], ())


async def test_a_group_without_requests_is_taken_over(three: Cluster) -> None:
    """A group without requests is taken over when its coordinator stops, and its dead members are removed."""
    group = GroupClient(three, "etl")
    member = group.member("m1", "flights", session_timeout_ms=1000)
    await settle(member)
    was = await group.coordinator()
    await three.stop(was)

    def is_empty() -> bool:
        """Return whether one coordinator has the group, without members."""
        found = [each for broker in three.brokers.values() for each in broker.broker.groups]
        return [each.group.member_count for each in found if each.name == "etl"] == [0]

    await until(is_empty, "the dead member was not removed")
    with refuses("member_not_found"):
        await member.beat()
