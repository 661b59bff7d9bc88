from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fairlead_api.identifiers import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionIndex,
    TimestampUs,
    TopicId,
)
from fairlead_broker.controlling.moving import (
    STEP_KEYS,
    CoordinationMove,
    CoordinationMoved,
    MoveRefused,
    check_not_moved,
)
from fairlead_broker.coordination.embedded import EmbeddedCoordination
from fairlead_broker.coordination.protocol import Coordination, CoordinationUnavailable, UnknownOutcome
from fairlead_broker.registry.group_records import CoordinatorRecord, GroupRecord, MemberRecord
from fairlead_broker.registry.keys import GroupKeys
from fairlead_broker.registry.records import (
    ClusterRecord,
    ConfigRecord,
    DurabilityState,
    InSync,
    PartitionRecord,
    Record,
    Replica,
    decode,
    encode,
)
from fairlead_broker.registry.transactions import Get, Put

TOPIC = TopicId("00000001-0000-4000-8000-000000000000")
ETCD = "http://127.0.0.1:2379"
EMPTY_CONFIG = encode(ConfigRecord(values={}))


@pytest.fixture
async def new(tmp_path: Path, clock: Any, kit: Any) -> AsyncIterator[Any]:
    """The store to which everything goes; any store is one."""
    async with await EmbeddedCoordination.open(tmp_path / "new.sqlite", clock) as opened:
        yield kit.unreliable(opened)


def partition(*brokers: int) -> PartitionRecord:
    """A partition with these replicas, led by the first."""
    entries = tuple(InSync(broker=BrokerId(each), broker_epoch=BrokerEpoch(700 + each)) for each in brokers)
    return PartitionRecord(
        leader=entries[0],
        leader_epoch=LeaderEpoch(4),
        replicas=tuple(Replica(broker=BrokerId(each), directory=f"d{each}") for each in brokers),
        isr=entries,
        min_isr=1,
        durability=DurabilityState.SYNCED,
    )


async def put(store: Coordination, **values: Record | bytes) -> None:
    """Put each value under its key."""
    for key, value in values.items():
        await store.transact((), (Put(key, value if isinstance(value, bytes) else encode(value)),))


async def everything(store: Coordination) -> dict[str, bytes]:
    """Every key and value."""
    page = await store.list("/")
    found = {item.key: item.value for item in page.items}
    while page.next is not None:
        page = await store.list("/", revision=page.revision, after=page.next)
        found.update((item.key, item.value) for item in page.items)
    return found


@pytest.fixture
async def old(store: EmbeddedCoordination, kit: Any, clock: Any) -> EmbeddedCoordination:
    """A cluster with one partition and more names of producers than one transaction takes."""
    keys = kit.keys
    await put(
        store,
        **{
            keys.cluster: ClusterRecord(
                cluster_id=kit.cluster_id, feature_level=1, created_us=clock.now_us()
            ),
            keys.broker(BrokerId(1)): kit.registration(),
            keys.partition(TOPIC, PartitionIndex(0)): partition(1),
            keys.cluster_config: EMPTY_CONFIG,
        },
        **{keys.producer_name(f"p{number}"): b'{"v":1}' for number in range(2 * STEP_KEYS)},
    )
    return store


async def test_every_key_is_there_once_and_the_old_store_says_so(
    old: EmbeddedCoordination, new: Any, kit: Any
) -> None:
    """All but registrations, which end with the broker; lives of the old store become one before all others."""
    keys = kit.keys
    before = await everything(old)
    moved = await CoordinationMove(old, new, keys, ETCD).run()
    after = await everything(new)

    assert set(after) == set(before) - {keys.broker(BrokerId(1))}
    assert (moved.cluster_id, moved.keys, moved.already) == (kit.cluster_id, len(after), False)
    key = keys.partition(TOPIC, PartitionIndex(0))
    record = decode(key, after[key], PartitionRecord)
    assert record.leader is None
    assert record.isr == (InSync(broker=BrokerId(1), broker_epoch=BrokerEpoch(0)),)
    assert (record.leader_epoch, record.replicas) == (4, partition(1).replicas)
    assert {name: value for name, value in after.items() if name != key} == {
        name: value for name, value in before.items() if name in after and name != key
    }
    with pytest.raises(CoordinationMoved, match=f"start the broker with: --etcd {ETCD}"):
        await check_not_moved(old, keys, Path("data"))


async def test_claims_on_groups_end_with_the_broker_that_held_them(
    old: EmbeddedCoordination, new: Any, kit: Any
) -> None:
    """Their broker epochs are revisions of the old store: the new one may be asked about them before it is there."""
    killed = GroupKeys(kit.keys, "orders/eu")
    kept = {
        killed.state: GroupRecord(epoch=1, target_epoch=1, assignor="uniform", created_us=TimestampUs(1)),
        killed.member("coordinator"): MemberRecord(
            session_timeout_ms=1, rebalance_timeout_ms=1, epoch=1, previous_epoch=0
        ),
    }
    claim = CoordinatorRecord(broker=BrokerId(1), broker_epoch=BrokerEpoch(7_000))
    await put(old, **{killed.coordinator: claim}, **kept)
    await CoordinationMove(old, new, kit.keys, ETCD).run()
    after = await everything(new)

    assert {key for key in after if key.startswith(killed.prefix)} == set(kept)


async def test_moving_again_changes_nothing(old: EmbeddedCoordination, new: Any, kit: Any) -> None:
    """The cluster may be in use by then."""
    await CoordinationMove(old, new, kit.keys, ETCD).run()
    await put(new, **{kit.keys.cluster_config: encode(ConfigRecord(values={"num.partitions": "7"}))})
    there = await everything(new)
    moved = await CoordinationMove(old, new, kit.keys, ETCD).run()

    assert moved.already
    assert await everything(new) == there


async def lost_before(call: Any) -> None:
    """The store is away."""
    del call
    raise CoordinationUnavailable("away")


async def lost_after(call: Any) -> None:
    """The answer is lost on its way."""
    await call()
    raise UnknownOutcome("lost")


@pytest.mark.parametrize("fault", [lost_before, lost_after])
@pytest.mark.parametrize("step", range(1, 6))
async def test_an_interrupted_move_can_be_repeated(
    old: EmbeddedCoordination, new: Any, kit: Any, step: int, fault: Any
) -> None:
    """Whichever step is lost; until the last one there is no cluster in the new store, and the old one is in use."""
    keys = kit.keys

    async def good(call: Any) -> Any:
        return await call()

    new.faults["transact"] = [*[good] * step, fault]
    with pytest.raises(MoveRefused, match="run the command again"):
        await CoordinationMove(old, new, keys, ETCD).run()
    if (step, fault) == (5, lost_after):
        # Nobody knows whether the cluster is there by now: the broker must not go on where it was.
        with pytest.raises(CoordinationMoved, match="finish the move"):
            await check_not_moved(old, keys, Path("data"))
        assert (await CoordinationMove(old, new, keys, ETCD).run()).already
        return
    await check_not_moved(old, keys, Path("data"))
    # The broker goes on where it was: one name more, one changed.
    await put(old, **{keys.producer_name("late"): b'{"v":1}', keys.producer_name("p3"): b'{"v":1,"x":1}'})
    wanted = {**await everything(old)}
    wanted.pop(keys.broker(BrokerId(1)))
    moved = await CoordinationMove(old, new, keys, ETCD).run()
    after = await everything(new)

    assert not moved.already
    assert set(after) == set(wanted)
    assert after[keys.producer_name("p3")] == b'{"v":1,"x":1}'
    assert f"{keys.prefix}moving" not in after


async def test_another_cluster_of_that_name_is_left_alone(
    old: EmbeddedCoordination, new: Any, kit: Any, clock: Any
) -> None:
    """The message names both."""
    other = ClusterRecord(cluster_id="another", feature_level=1, created_us=clock.now_us())
    await put(new, **{kit.keys.cluster: other})
    there = await everything(new)
    with pytest.raises(
        MoveRefused, match=rf"another cluster named test \(another, this one is {kit.cluster_id}"
    ):
        await CoordinationMove(old, new, kit.keys, ETCD).run()

    assert await everything(new) == there
    await check_not_moved(old, kit.keys, Path("data"))


async def test_a_name_reserved_by_another_move_is_left_alone(
    old: EmbeddedCoordination, new: Any, kit: Any
) -> None:
    """Two single brokers of the same cluster name cannot both go to one etcd."""
    reserved = b'{"v":1,"cluster_id":"another","etcd":"x"}'
    await put(new, **{f"{kit.keys.prefix}moving": reserved})
    with pytest.raises(MoveRefused, match="another cluster is being moved"):
        await CoordinationMove(old, new, kit.keys, ETCD).run()

    assert await everything(new) == {f"{kit.keys.prefix}moving": reserved}


async def test_a_store_of_many_brokers_is_not_moved(old: EmbeddedCoordination, new: Any, kit: Any) -> None:
    """Their directories remember lives of that store, and nobody could bring all of them over at once."""
    await put(old, **{kit.keys.partition(TOPIC, PartitionIndex(1)): partition(2, 1)})
    with pytest.raises(MoveRefused, match="2 brokers in one process"):
        await CoordinationMove(old, new, kit.keys, ETCD).run()

    assert await everything(new) == {}


async def test_a_store_without_the_cluster_is_refused(
    store: EmbeddedCoordination, new: Any, kit: Any
) -> None:
    """As with a wrong --cluster."""
    with pytest.raises(MoveRefused, match="holds no cluster named test; name it with --cluster"):
        await CoordinationMove(store, new, kit.keys, ETCD).run()

    assert (await store.transact((), (Get(f"{kit.keys.prefix}moved"),))).reads == (None,)
