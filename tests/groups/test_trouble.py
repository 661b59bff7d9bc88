"""A store that is unavailable or does not answer, and an unconfirmed lease: only stored changes are acknowledged."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cluster_kit import Cluster, until
from fairlead_api.identifiers import TimestampUs
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.clock import SystemClock
from fairlead_broker.registry.store_writes import Put
from fairlead_broker.runtime.groups.coordinated_group import CoordinatedGroup
from fairlead_broker.runtime.groups.upkeep import GroupUpkeep
from group_kit import GroupClient, filled_topic, settle
from refusals import refuses
from troubled_store import Trouble, TroubledStore
from waiting import LOOK_SECONDS, pause

IN_AN_HOUR_US = 3600 * 1_000_000


@pytest.fixture
async def troubled(cluster: Cluster, tmp_path: Path) -> tuple[Cluster, list[Trouble]]:
    """Return one broker and the list of its store's faults."""
    faults: list[Trouble] = []
    real = cluster.store
    cluster.store = TroubledStore(real, faults)  # type: ignore[assignment]
    await cluster.start(1)
    await filled_topic(cluster, "flights", partitions=4, records=10, replication_factor=1)
    return cluster, faults


def coordinated(cluster: Cluster) -> CoordinatedGroup | None:
    """Return the current group in its coordinator's memory."""
    return next(iter(cluster.broker(1).groups), None)


@pytest.mark.parametrize("trouble", ["away", "lost before", "lost after"])
async def test_a_commit_that_may_not_stand_is_not_acknowledged(
    troubled: tuple[Cluster, list[Trouble]], trouble: Trouble
) -> None:
    """A commit with an unknown outcome is not acknowledged, and is stored when the client repeats it."""
    cluster, faults = troubled
    group = GroupClient(cluster, "etl")
    member = group.member("m1", "flights")
    await settle(member)
    mine = min(member.partitions)
    await group.commit({mine: 1}, member)
    faults.append(trouble)
    assert await group.commit({mine: 2}, member) == []

    [refused] = group.refusals
    assert refused.code == "coordination_unavailable"
    assert refused.side_effect is (SideEffect.NONE if trouble == "away" else SideEffect.MAYBE)
    assert await group.offsets() == {mine: 2}


async def test_a_commit_that_is_being_written_keeps_its_group(
    troubled: tuple[Cluster, list[Trouble]],
) -> None:
    """A group without offsets that is old enough to be removed is kept while a commit is being written."""
    cluster, faults = troubled
    group = GroupClient(cluster, "job")
    await group.commit({("flights", 0): 5})
    await group.call(lambda groups: groups.delete_offsets("job", None))
    held, through = coordinated(cluster), asyncio.Event()
    assert held is not None
    faults.append(through)
    async with asyncio.TaskGroup() as tasks:
        committing = tasks.create_task(group.commit({("flights", 0): 6}))
        await until(lambda: not faults, "the commit is not written")
        later = TimestampUs(cluster.broker(1).clock.now_us() + IN_AN_HOUR_US)
        tasks.create_task(held.forget_old(later, lambda _: False))
        # Tasks start in the order of their creation.
        asyncio.get_running_loop().call_soon(through.set)

    assert committing.result() == []
    assert not group.refusals
    assert await group.offsets() == {("flights", 0): 6}


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["away", "lost before", "lost after"])
async def test_members_get_over_a_change_whose_answer_was_lost(
    troubled: tuple[Cluster, list[Trouble]], trouble: Trouble
) -> None:
    """A group is loaded again after a change with an unknown outcome, and members that retry get the stored state."""
    cluster, faults = troubled
    group = GroupClient(cluster, "etl")
    first, second = group.member("m1", "flights"), group.member("m2", "flights")
    await settle(first)
    before = coordinated(cluster)
    faults.append(trouble)
    await settle(first, second)

    assert not faults
    assert len(group.refusals) == 1
    assert len(first.partitions) == len(second.partitions) == 2
    assert not first.partitions & second.partitions
    assert (coordinated(cluster) is before) == (trouble == "away")


async def test_a_claim_without_an_answer_is_made_again(troubled: tuple[Cluster, list[Trouble]]) -> None:
    """A claim with an unknown outcome is repeated and succeeds, whether or not the first claim was stored."""
    cluster, faults = troubled
    group = GroupClient(cluster, "etl")
    faults += ["lost after", "lost before"]
    await settle(group.member("m1", "flights"))

    assert not faults
    assert not group.refusals


@pytest.mark.slow
async def test_a_lease_in_doubt_answers_nothing_and_ends_no_session(
    troubled: tuple[Cluster, list[Trouble]],
) -> None:
    """A coordinator with an unconfirmed lease answers no member; after the confirmation, sessions start again."""
    cluster, _ = troubled
    group = GroupClient(cluster, "etl")
    member = group.member("m1", "flights", session_timeout_ms=1000)
    await settle(member)
    groups, before = cluster.broker(1).groups, coordinated(cluster)
    life = cluster.broker(1).entry.incarnation
    life.membership.confirmed_at = -1e9

    with pytest.raises(ProblemError) as heartbeat:
        await groups.heartbeat("etl", "m1", member.request())
    with pytest.raises(ProblemError) as description:
        await groups.describe("etl")
    assert [each.value.code for each in (heartbeat, description)] == ["coordination_unavailable"] * 2
    await until(lambda: life.confirmed, "the lease was not kept")
    epoch, partitions = member.epoch, member.partitions
    await member.beat()

    assert (member.epoch, member.partitions) == (epoch, partitions)
    assert coordinated(cluster) is not before


@pytest.mark.parametrize("damaged", ["coordinator", "state"])
async def test_a_group_that_cannot_be_read_holds_up_no_other(
    troubled: tuple[Cluster, list[Trouble]], damaged: str
) -> None:
    """A group that cannot be loaded is listed, its refusals name the damaged key, and other groups are maintained."""
    cluster, _ = troubled
    await GroupClient(cluster, "zzz").commit({("flights", 0): 1})
    parts = cluster.broker(1)
    key = f"{parts.metadata.keys.prefix}groups/aaa/{damaged}"
    await cluster.store.transact((), (Put(key, b"?"), Put(f"{parts.metadata.keys.prefix}groups/aaa/x", b"")))
    parts.coordinated_groups.incarnation_changed()
    assert not len(parts.coordinated_groups)
    await GroupUpkeep(
        parts.coordinated_groups, parts.entry.mirror, parts.group_lag, SystemClock(), parts.log
    ).look_at_all()

    assert [each.name for each in parts.coordinated_groups] == ["zzz"]
    assert [each.group for each in (await parts.coordinated_groups.listing(None, 10)).items] == ["aaa", "zzz"]
    with refuses("coordination_unavailable", f"aaa/{damaged}"):
        await parts.coordinated_groups.describe("aaa")


async def test_nothing_is_left_of_a_join_that_was_refused(troubled: tuple[Cluster, list[Trouble]]) -> None:
    """A join that was refused leaves no group in the store or in memory."""
    cluster, _ = troubled
    group = GroupClient(cluster, "never")
    with refuses("invalid_pattern"):
        await group.member("m1", topic_pattern="(").beat()
    await until(lambda: coordinated(cluster) is None, "the group is still there")
    keys = cluster.broker(1).metadata.keys

    async def left() -> int:
        """Return the number of group keys in the store."""
        return len((await cluster.store.list(keys.prefix + "groups/")).items)

    async with asyncio.timeout(30):
        while await left():
            await pause(LOOK_SECONDS)
