"""Committed offsets: permitted commits, shared transactions, expiry, lag and resets."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from cluster_kit import Cluster, until
from fairlead_api.bodies.group_requests import ResetPartition, ResetRequest, ResetTarget
from fairlead_api.identifiers import TimestampUs, TopicId
from fairlead_broker.clock import SystemClock
from fairlead_broker.coordination.mirror import Mirror
from fairlead_broker.groups.classic.messages import Join, Joined, Leave, Sync, Synced
from fairlead_broker.runtime.groups.coordinated_group import CoordinatedGroup
from fairlead_broker.runtime.groups.refusals import restarted
from fairlead_broker.runtime.groups.upkeep import GroupUpkeep
from group_kit import GroupClient, filled_topic, settle
from refusals import refuses

IN_AN_HOUR_US = 3600 * 1_000_000


@pytest.fixture
async def alone(cluster: Cluster) -> Cluster:
    """Return one broker with a topic of four partitions."""
    await cluster.start(1)
    await filled_topic(cluster, "flights", partitions=4, records=100, replication_factor=1)
    return cluster


def coordinated(cluster: Cluster, name: str) -> CoordinatedGroup:
    """Return the group in its coordinator's memory."""
    return next(each for each in cluster.broker(1).groups if each.name == name)


async def test_a_commit_of_another_members_partition_is_refused(alone: Cluster) -> None:
    """A stale commit, or one from an unknown member or for another member's partition, is refused without effect."""
    group = GroupClient(alone, "etl")
    first, second = group.member("m1", "flights"), group.member("m2", "flights")
    await settle(first)
    stale = group.member("m1", epoch=first.epoch)
    await settle(first, second)
    mine, theirs = min(first.partitions), min(second.partitions)
    assert await group.commit({mine: 5}, first) == []

    with refuses("stale_member_epoch"):
        await group.commit({mine: 1}, stale)
    with refuses("member_not_found"):
        await group.commit({mine: 1}, group.member("m3", epoch=first.epoch))
    with refuses("group_not_empty"):
        await group.commit({mine: 1})
    with refuses("member_not_found"):
        await GroupClient(alone, "other").commit({mine: 1}, first)
    refused = await group.commit({theirs: 1, ("ships", 0): 1, ("flights", 4): 1, mine: 6}, first)
    assert refused == ["member_fenced", "topic_not_found", "partition_not_found"]
    assert await group.offsets() == {mine: 6}
    assert [each.group for each in (await alone.broker(1).groups.listing(None, 10)).items] == ["etl"]


async def test_commits_share_transactions(alone: Cluster) -> None:
    """A hundred concurrent commits are stored in a few transactions."""
    group = GroupClient(alone, "job")
    await group.commit({("flights", 0): 1})
    budget = coordinated(alone, "job")._shared.budget
    before = budget.granted
    await asyncio.gather(*(group.commit({("flights", at % 4): at}) for at in range(100)))

    assert await group.offsets() == {("flights", index): 96 + index for index in range(4)}
    assert 1 <= budget.granted - before <= 10


async def test_offsets_of_a_group_without_members_expire_and_then_the_group(alone: Cluster) -> None:
    """Offsets of a group expire only when it has no members, and the group is removed with its last offset."""
    group = GroupClient(alone, "etl")
    member = group.member("m1", "flights")
    await settle(member)
    await group.commit(dict.fromkeys(member.partitions, 5), member)
    later = TimestampUs(alone.broker(1).clock.now_us() + IN_AN_HOUR_US)

    def is_gone(topic_id: TopicId) -> bool:
        """Return whether the topic is deleted."""
        return alone.broker(1).metadata.topic_by_id(topic_id) is None

    await coordinated(alone, "etl").forget_old(later, is_gone)
    assert len(await group.offsets()) == 4
    await member.leave()
    await coordinated(alone, "etl").forget_old(TimestampUs(later - 2 * IN_AN_HOUR_US), is_gone)
    assert len(await group.offsets()) == 4
    await coordinated(alone, "etl").forget_old(later, is_gone)
    with refuses("group_not_found"):
        await group.offsets()
    left = await alone.store.list(alone.broker(1).metadata.keys.prefix + "groups/")
    assert left.items == ()


class Moved(SystemClock):
    """Clock that a test can advance."""

    wall_minutes = elapsed_minutes = 0

    def now_us(self) -> TimestampUs:
        """Return the wall time plus the time by which a test has moved the clock."""
        return TimestampUs(super().now_us() + self.wall_minutes * 60_000_000)

    def monotonic(self) -> float:
        """Return the monotonic time plus the time by which a test has moved the clock."""
        return super().monotonic() + self.elapsed_minutes * 60


def upkeep(cluster: Cluster, clock: Moved, mirror: Mirror | None = None) -> GroupUpkeep:
    """Return the upkeep of groups with a clock; `mirror` replaces the broker's mirror of the topics."""
    parts = cluster.broker(1)
    return GroupUpkeep(
        parts.coordinated_groups, mirror or parts.entry.mirror, parts.group_lag, clock, parts.log
    )


async def test_offsets_expire_after_seven_days(alone: Cluster) -> None:
    """Offsets of a group without members expire seven days after the last commit, and not when the clock jumps."""
    group = GroupClient(alone, "job")
    await group.commit({("flights", 0): 5})
    clock, week = Moved(), 7 * 24 * 60
    work, kept = upkeep(alone, clock), []
    for clock.elapsed_minutes, clock.wall_minutes in ((0, 2 * week), (120, 2 * week), (week - 61, week - 1)):
        await work.forget_old()
        kept.append(await group.offsets())
    clock.elapsed_minutes = clock.wall_minutes = week + 1
    await work.forget_old()

    assert kept == [{("flights", 0): 5}] * 3
    with refuses("group_not_found"):
        await group.offsets()


async def test_a_commit_that_waits_with_the_expiry_of_the_one_before_stands(alone: Cluster) -> None:
    """A commit that shares a transaction with the expiry of the previous offset is stored."""
    group = GroupClient(alone, "job")
    await group.commit({("flights", 0): 5, ("flights", 1): 5})
    held, budget = coordinated(alone, "job"), alone.broker(1).groups._shared.budget
    old_before = TimestampUs(alone.broker(1).clock.now_us() + 1)
    budget.spend(200)
    committing = asyncio.create_task(group.commit({("flights", 0): 6}))
    await until(lambda: len(held._commits) == 1, "the commit does not wait")
    await held.forget_old(old_before, lambda _: False)

    assert await committing == []
    assert not group.refusals
    assert await group.offsets() == {("flights", 0): 6}


async def test_offsets_of_a_classic_group_expire_after_its_last_member_has_left(alone: Cluster) -> None:
    """The retention time of a classic group begins when its last member leaves, not with the group's first commit."""
    group, broker = GroupClient(alone, "etl"), alone.broker(1)
    await group.commit({("flights", 0): 5})
    founded_us = coordinated(alone, "etl").group.emptied_us
    coordinated(alone, "etl").classic.group.initial_delay_seconds = 0
    join = partial(
        Join,
        member_id="",
        new_id="m1",
        instance_id=None,
        client_id="client",
        client_host="/127.0.0.1",
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=(("range", b""),),
        needs_known_id=False,
    )
    joined = await broker.groups.classic("etl", lambda token: join(token=token), joins=True)
    assert isinstance(joined, Joined)
    sync = partial(
        Sync, member_id="m1", instance_id=None, generation=joined.generation, assignments={"m1": b"all"}
    )
    assert isinstance(await broker.groups.classic("etl", lambda token: sync(token=token)), Synced)
    later = TimestampUs(broker.clock.now_us() + IN_AN_HOUR_US)
    await coordinated(alone, "etl").forget_old(later, lambda _: False)
    assert await group.offsets() == {("flights", 0): 5}
    left_us = broker.clock.now_us()
    leave = partial(Leave, member_id="m1", instance_id=None)
    await broker.groups.classic("etl", lambda token: leave(token=token))
    await until(
        lambda: coordinated(alone, "etl").classic.group.is_idle, "the member's records are not deleted"
    )
    # The time is read from the store again.
    coordinated(alone, "etl").let_go(restarted("etl"))
    await group.offsets()
    emptied_us = coordinated(alone, "etl").group.emptied_us

    assert founded_us is not None
    assert emptied_us is not None
    assert founded_us < left_us <= emptied_us
    await coordinated(alone, "etl").forget_old(left_us, lambda _: False)
    assert await group.offsets() == {("flights", 0): 5}
    await coordinated(alone, "etl").forget_old(later, lambda _: False)
    with refuses("group_not_found"):
        await group.offsets()


@pytest.mark.slow
async def test_offsets_of_a_topic_that_is_not_known_yet_are_kept(alone: Cluster) -> None:
    """Offsets of a topic that the coordinator does not know yet are kept until its mirror is current."""
    behind = Mirror(alone.store.connect(), alone.broker(1).metadata.keys)
    await behind.load()
    await alone.topic("ships", partitions=1, replication_factor=1)
    group = GroupClient(alone, "job")
    await group.commit({("ships", 0): 0, ("flights", 0): 5})
    early = upkeep(alone, Moved(), behind)
    await early.forget_old()
    assert "ships" not in behind.metadata.topics
    assert await group.offsets() == {("flights", 0): 5, ("ships", 0): 0}
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(behind.run())
        await early.forget_old()
        running.cancel()

    assert "ships" in behind.metadata.topics
    assert await group.offsets() == {("flights", 0): 5, ("ships", 0): 0}


async def test_offsets_of_a_topic_that_was_made_again_begin_clean(alone: Cluster) -> None:
    """A topic that was created again has no committed offsets, and those of the deleted topic are removed."""
    group = GroupClient(alone, "job")
    await group.commit({("flights", 0): 5})
    await alone.broker(1).delete_topic("flights")
    await alone.topic("flights", partitions=4, replication_factor=1)

    assert await group.offsets() == {}
    metadata = alone.broker(1).metadata
    old = TimestampUs(0)
    assert coordinated(alone, "job").offsets
    await coordinated(alone, "job").forget_old(old, lambda each: metadata.topic_by_id(each) is None)
    assert not coordinated(alone, "job").offsets


async def test_lag_and_resets_go_by_what_the_leaders_have(alone: Cluster) -> None:
    """Lag is counted in records and seconds; a reset needs a group without members and offsets within the log."""
    group = GroupClient(alone, "etl")
    member = group.member("m1", "flights")
    await settle(member)
    await group.commit({("flights", 0): 98, ("flights", 1): 100, ("flights", 2): 100}, member)

    lag = await group.call(lambda groups: groups.lag("etl"))
    assert [(each.lag_records, each.committed_offset, each.member_id) for each in lag.lag] == [
        (2, 98, "m1"),
        (0, 100, "m1"),
        (0, 100, "m1"),
        (100, None, "m1"),
    ]
    assert lag.total_records == 102
    assert [each.lag_seconds for each in lag.lag[1:3]] == [0, 0]
    assert 0 < lag.max_seconds < 60

    async def reset(to: object, *, dry_run: bool = False, partition: int = 0) -> int | None:
        """Return the offset after a reset of a partition; None when the offset is unchanged."""
        request = ResetRequest(
            to=to,  # type: ignore[arg-type]
            topics=(ResetPartition(topic="flights", partition=partition),),
        )
        answer = await group.call(lambda groups: groups.reset("etl", request, dry_run=dry_run))
        return answer.offsets[0].after

    with refuses("group_not_empty"):
        await reset("earliest")
    await member.leave()
    assert await reset("earliest", dry_run=True) == 0
    assert (await group.offsets())["flights", 0] == 98
    assert await reset("latest") == 100
    assert await reset(ResetTarget(shift=-2)) == 98
    assert await reset(ResetTarget(shift=-200)) == 0
    assert await reset(ResetTarget(offset=2)) == 2
    assert await reset(ResetTarget(offset=101)) is None
    assert (await group.offsets())["flights", 0] == 2
    assert await reset(ResetTarget(timestamp="2020-01-01T00:00:00Z")) == 0
    assert await reset(ResetTarget(duration=0)) == 100
    assert await reset("earliest", partition=3) == 0
    assert await group.offsets() == {
        ("flights", index): offset for index, offset in enumerate((100, 100, 100, 0))
    }
    gone = await group.call(lambda groups: groups.delete_offsets("etl", ["flights"]))
    assert len(gone.offsets) == 4
    assert await group.offsets() == {}


async def test_a_commit_refused_by_a_deletion_is_repeated(alone: Cluster) -> None:
    """A commit that waits while its group is deleted is refused, and repeating the commit creates the group again."""
    group = GroupClient(alone, "job")
    place = ("flights", 0)
    await group.commit({place: 1})
    budget = alone.broker(1).groups._shared.budget
    budget.spend(200)
    committing = asyncio.create_task(group.commit({place: 2}))
    await until(lambda: budget.waiting == 1, "the commit does not wait")
    await group.call(lambda groups: groups.delete("job"))

    assert await committing == []
    assert {refusal.code for refusal in group.refusals} == {"coordination_unavailable"}
    assert await group.offsets() == {place: 2}


async def test_metrics_show_the_lag_of_groups(alone: Cluster) -> None:
    """Metrics contain the lag by group, topic and partition, and nothing about deleted groups."""
    group = GroupClient(alone, "job")
    await group.commit({("flights", 0): 99})
    telemetry = alone.broker(1).telemetry

    def lag() -> float | None:
        """Return the lag that a scrape shows."""
        labels = {"group": "job", "topic": "flights", "partition": "0"}
        return telemetry.registry.get_sample_value("fairlead_group_lag_records", labels)

    meters = alone.broker(1).group_lag
    await meters.show()
    assert lag() == 1
    assert telemetry.registry.get_sample_value("fairlead_coordinated_groups") == 1
    await group.call(lambda groups: groups.delete("job"))
    await meters.show()
    assert lag() is None


@pytest.mark.slow
async def test_members_follow_topics_and_silence(alone: Cluster) -> None:
    """A member gets new partitions and topics of its pattern without a request, and a silent member is removed."""
    group = GroupClient(alone, "etl")
    silent = group.member("m1", "flights", session_timeout_ms=1000)
    await settle(silent)
    watching = group.member("m2", topic_pattern="fl.*")
    while len(watching.partitions) < 4:
        await watching.beat()
    await alone.topic("fleet", partitions=2, replication_factor=1)
    await until(
        lambda: coordinated(alone, "etl").group.member_count == 1, "the silent member was not removed"
    )
    await settle(watching)

    assert {name for name, _ in watching.partitions} == {"flights", "fleet"}
    assert len(watching.partitions) == 6
    with refuses("member_not_found"):
        await silent.beat()
