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
from fairlead_broker.registry.store_writes import Get, Put
from refusals import raises

TOPIC = TopicId("00000001-0000-4000-8000-000000000000")
ETCD = "http://127.0.0.1:2379"
EMPTY_CONFIG = encode(ConfigRecord(values={}))


@pytest.fixture
async def new(tmp_path: Path, clock: Any, kit: Any) -> AsyncIterator[Any]:
    """Yield the target store, once for each kind of store."""
    async with await EmbeddedCoordination.open(tmp_path / "new.sqlite", clock) as opened:
        yield kit.unreliable(opened)


def partition(*brokers: int) -> PartitionRecord:
    """Return a partition with the given replicas, led by the first."""
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
    """Write each value to the store under its key."""
    for key, value in values.items():
        await store.transact((), (Put(key, value if isinstance(value, bytes) else encode(value)),))


async def everything(store: Coordination) -> dict[str, bytes]:
    """Return every key and value of a store."""
    page = await store.list("/")
    found = {item.key: item.value for item in page.items}
    while page.next is not None:
        page = await store.list("/", revision=page.revision, after=page.next)
        found.update((item.key, item.value) for item in page.items)
    return found


@pytest.fixture
async def old(store: EmbeddedCoordination, kit: Any, clock: Any) -> EmbeddedCoordination:
    """Return a store with one partition and with more producer names than fit into one transaction."""
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
    """A move copies every key except registrations, resets broker epochs to 0, and marks the old store as moved."""
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
    with raises(CoordinationMoved, ETCD):
        await check_not_moved(old, keys, Path("data"))


async def test_claims_on_groups_end_with_the_broker_that_held_them(
    old: EmbeddedCoordination, new: Any, kit: Any
) -> None:
    """Claims on groups are not moved, because their broker epochs are revisions of the old store."""
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
    """A repeated move changes nothing, because the cluster may already be in use."""
    await CoordinationMove(old, new, kit.keys, ETCD).run()
    await put(new, **{kit.keys.cluster_config: encode(ConfigRecord(values={"num.partitions": "7"}))})
    there = await everything(new)
    moved = await CoordinationMove(old, new, kit.keys, ETCD).run()

    assert moved.already
    assert await everything(new) == there


async def lost_before(call: Any) -> None:
    """Fail without calling the store."""
    del call
    raise CoordinationUnavailable("away")


async def lost_after(call: Any) -> None:
    """Call the store and lose the answer."""
    await call()
    raise UnknownOutcome("lost")


@pytest.mark.parametrize("fault", [lost_before, lost_after])
@pytest.mark.parametrize("step", range(1, 6))
async def test_an_interrupted_move_can_be_repeated(
    old: EmbeddedCoordination, new: Any, kit: Any, step: int, fault: Any
) -> None:
    """An interrupted move can be retried after any step, and the old store is in use until the last step."""
    keys = kit.keys

    async def good(call: Any) -> Any:
        return await call()

    new.faults["transact"] = [*[good] * step, fault]
    with pytest.raises(MoveRefused):
        await CoordinationMove(old, new, keys, ETCD).run()
    if (step, fault) == (5, lost_after):
        # The outcome of the last step is unknown, so the broker must not continue on the old store.
        with pytest.raises(CoordinationMoved):
            await check_not_moved(old, keys, Path("data"))
        assert (await CoordinationMove(old, new, keys, ETCD).run()).already
        return
    await check_not_moved(old, keys, Path("data"))
    # The broker continues on the old store, with one name added and one changed.
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
    """Another cluster of the same name in the new store is not overwritten, and the refusal names both ids."""
    other = ClusterRecord(cluster_id="another", feature_level=1, created_us=clock.now_us())
    await put(new, **{kit.keys.cluster: other})
    there = await everything(new)
    with raises(MoveRefused, kit.cluster_id):
        await CoordinationMove(old, new, kit.keys, ETCD).run()

    assert await everything(new) == there
    await check_not_moved(old, kit.keys, Path("data"))


async def test_a_name_reserved_by_another_move_is_left_alone(
    old: EmbeddedCoordination, new: Any, kit: Any
) -> None:
    """A cluster name that is reserved by another move is refused, because both clusters would share one etcd."""
    reserved = b'{"v":1,"cluster_id":"another","etcd":"x"}'
    await put(new, **{f"{kit.keys.prefix}moving": reserved})
    with pytest.raises(MoveRefused):
        await CoordinationMove(old, new, kit.keys, ETCD).run()

    assert await everything(new) == {f"{kit.keys.prefix}moving": reserved}


async def test_a_store_of_many_brokers_is_not_moved(old: EmbeddedCoordination, new: Any, kit: Any) -> None:
    """A store of several brokers is not moved, because their directories have broker epochs of this store."""
    await put(old, **{kit.keys.partition(TOPIC, PartitionIndex(1)): partition(2, 1)})
    with raises(MoveRefused, 2):
        await CoordinationMove(old, new, kit.keys, ETCD).run()

    assert await everything(new) == {}


async def test_a_store_without_the_cluster_is_refused(
    store: EmbeddedCoordination, new: Any, kit: Any
) -> None:
    """A store that does not contain the named cluster is not moved."""
    with raises(MoveRefused, "test", "--cluster"):
        await CoordinationMove(store, new, kit.keys, ETCD).run()

    assert (await store.transact((), (Get(f"{kit.keys.prefix}moved"),))).reads == (None,)
