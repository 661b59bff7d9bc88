"""Claims on groups, writes that require a claim, and lists of groups."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairlead_api.identifiers import BrokerEpoch, BrokerId, Offset, Revision, TimestampUs, TopicId
from fairlead_broker.clock import SystemClock
from fairlead_broker.coordination.embedded import EmbeddedCoordination
from fairlead_broker.coordination.group_store import (
    Claim,
    ClaimLost,
    GroupStore,
    change_pieces,
    portions,
    size_of,
)
from fairlead_broker.groups import GroupChange, GroupKey, GroupValue, MemberKey, StateKey, TargetKey
from fairlead_broker.registry.group_records import (
    GroupRecord,
    MemberRecord,
    OffsetEntry,
    OffsetsRecord,
    TargetRecord,
)
from fairlead_broker.registry.keys import GroupKeys, Keys
from fairlead_broker.registry.store_writes import Delete, Operation, Put
from refusals import raises

KEYS = Keys("test")
T = TopicId("1b4e28ba-2fa1-4d3b-a3f5-ef19b5a7633b")
ONE, TWO = BrokerId(1), BrokerId(2)
STATE = GroupRecord(epoch=1, assignor="uniform", created_us=TimestampUs(5))
MEMBER = MemberRecord(session_timeout_ms=1000, rebalance_timeout_ms=1000, epoch=1, previous_epoch=0)
OFFSETS = OffsetsRecord(entries=(OffsetEntry(partition=1, offset=Offset(7), committed_us=TimestampUs(9)),))


class Brokers:
    """Registrations of brokers, without the brokers themselves."""

    def __init__(self, coordination: EmbeddedCoordination) -> None:
        self.coordination = coordination

    async def register(self, broker: BrokerId) -> BrokerEpoch:
        """Register a new incarnation of a broker and end the previous one."""
        key = KEYS.broker(broker)
        await self.coordination.transact((), (Delete(key),))
        return BrokerEpoch((await self.coordination.transact((), (Put(key, b"{}"),))).revision)

    async def leave(self, broker: BrokerId) -> None:
        """End the registration of a broker."""
        await self.coordination.transact((), (Delete(KEYS.broker(broker)),))


@pytest.fixture
async def coordination(tmp_path: Path) -> AsyncIterator[EmbeddedCoordination]:
    """Yield an embedded store."""
    async with await EmbeddedCoordination.open(tmp_path / "store", SystemClock()) as opened:
        yield opened


@pytest.fixture
def store(coordination: EmbeddedCoordination) -> GroupStore:
    """Return groups in the embedded store."""
    return GroupStore(coordination, KEYS)


@pytest.fixture
def brokers(coordination: EmbeddedCoordination) -> Brokers:
    """Return brokers that can claim groups."""
    return Brokers(coordination)


async def claimed(store: GroupStore, broker: BrokerId, epoch: BrokerEpoch, group: str = "etl") -> Claim:
    """Claim a group that no broker has claimed."""
    claim = await store.claim(group, await store.holder(group), broker, epoch)
    assert claim is not None
    return claim


def put_state(group: str = "etl") -> Put:
    """Return a write to a group's state."""
    return Put(GroupKeys(KEYS, group).state, b'{"v":1,"epoch":1,"assignor":"uniform","created_us":5}')


async def test_a_claim_holds_until_its_holder_is_gone(store: GroupStore, brokers: Brokers) -> None:
    """A claim is valid until its broker's registration ends; then another broker's claim fences the first broker."""
    one, two = await brokers.register(ONE), await brokers.register(TWO)
    first = await claimed(store, ONE, one)
    assert await store.claim("etl", await store.holder("etl"), TWO, two) is None
    await store.write(first, (put_state(),))
    await brokers.leave(ONE)
    second = await claimed(store, TWO, two)

    with raises(ClaimLost, "etl"):
        await store.write(first, (put_state(),))
    await store.write(second, (put_state(),))


async def test_another_life_of_the_holder_does_not_hold(store: GroupStore, brokers: Brokers) -> None:
    """A claim is not valid for a later incarnation of its broker."""
    one, two = await brokers.register(ONE), await brokers.register(TWO)
    first = await claimed(store, ONE, one)
    anew = await brokers.register(ONE)

    with pytest.raises(ClaimLost):
        await store.write(first, (put_state(),))
    assert await store.claim("etl", await store.holder("etl"), ONE, one) is None
    assert (await claimed(store, TWO, two)).broker == TWO
    assert await store.claim("etl", await store.holder("etl"), ONE, anew) is None


async def test_a_second_claim_fences_writes_in_flight(store: GroupStore, brokers: Brokers) -> None:
    """A second claim by the same broker fences writes under the first claim, which may still be in flight."""
    one = await brokers.register(ONE)
    first = await claimed(store, ONE, one)
    second = await claimed(store, ONE, one)

    with pytest.raises(ClaimLost):
        await store.write(first, (put_state(),))
    await store.write(second, (put_state(),))
    assert second.revision > first.revision


async def test_what_was_read_must_still_stand(store: GroupStore, brokers: Brokers) -> None:
    """A claim fails if the claim that it replaces was changed after it was read."""
    one, two = await brokers.register(ONE), await brokers.register(TWO)
    assert await store.claim("etl", None, ONE, one) is not None
    assert await store.claim("etl", None, TWO, two) is None
    assert await store.claim("etl", None, BrokerId(3), BrokerEpoch(99)) is None


async def test_a_released_group_is_free(store: GroupStore, brokers: Brokers) -> None:
    """A released group is free, and a second release does not affect the next claim."""
    one, two = await brokers.register(ONE), await brokers.register(TWO)
    first = await claimed(store, ONE, one)
    await store.release(first)
    assert await store.holder("etl") is None
    second = await claimed(store, TWO, two)
    await store.release(first)

    holder = await store.holder("etl")
    assert holder is not None
    assert (holder.broker, holder.broker_epoch, holder.revision) == (TWO, two, second.revision)


async def test_a_group_is_loaded_as_it_was_written(store: GroupStore, brokers: Brokers) -> None:
    """A group is loaded as it was written, and all its records are deleted with it."""
    claim = await claimed(store, ONE, await brokers.register(ONE))
    assert not await store.exists("etl")
    assert (await store.load(claim)).is_absent
    target = TargetRecord(epoch=1, members={"m": (0,)})
    change = GroupChange({StateKey(): STATE, TargetKey(T): target, MemberKey("m"): MEMBER}, frozenset())
    for piece in change_pieces(store.of("etl"), change):
        await store.write(claim, piece)
    await store.write_offsets(claim, {(T, 0): OFFSETS, (T, 1): OFFSETS})
    await store.write_offsets(claim, {(T, 1): None})
    await store.write(claim, (Put(store.of("etl").prefix + "later", b"?"),))

    found = await store.load(claim)
    assert (found.state, found.targets, found.members) == (STATE, {T: target}, {"m": MEMBER})
    assert found.offsets == {(T, 0): OFFSETS}
    assert await store.exists("etl")
    await store.delete(claim)
    assert not await store.exists("etl")
    assert await store.holder("etl") is None
    with pytest.raises(ClaimLost):
        await store.write(claim, ())


async def test_a_large_group_is_loaded_and_deleted_in_parts(store: GroupStore, brokers: Brokers) -> None:
    """A large group is loaded in several pages and deleted in several transactions."""
    claim = await claimed(store, ONE, await brokers.register(ONE))
    puts: dict[GroupKey, GroupValue] = {MemberKey(f"m{at}"): MEMBER for at in range(1_100)}
    pieces = change_pieces(store.of("etl"), GroupChange({**puts, StateKey(): STATE}, frozenset()))
    for piece in pieces:
        await store.write(claim, piece)

    assert len(pieces) == 9
    assert len((await store.load(claim)).members) == 1_100
    await store.delete(claim)
    assert not await store.exists("etl")


async def test_lists_skip_through_groups(store: GroupStore, brokers: Brokers) -> None:
    """Groups are listed by name in pages, with their claims, and without claims that have no group."""
    one = await brokers.register(ONE)
    for name in ("a", "a-b", "b", "c"):
        await store.write(await claimed(store, ONE, one, name), (put_state(name),))
    classic, left = [await claimed(store, ONE, one, name) for name in ("d", "e")]
    for claim in (classic, left):
        await store.write(claim, (Put(store.of(claim.group).classic, b"{}"),))
    await store.release(left)
    await claimed(store, ONE, one, "nothing")
    unclaimed = await claimed(store, ONE, one, "z")
    await store.write(unclaimed, (put_state("z"),))
    await store.release(unclaimed)

    names: list[tuple[str, BrokerId | None]] = []
    after: str | None = None
    while True:
        page, after = await store.names(after, 2)
        names += [(name, holder.broker if holder else None) for name, holder in page]
        if after is None:
            break
    named = [("a-b", ONE), ("a", ONE), ("b", ONE), ("c", ONE), ("d", ONE), ("e", None), ("z", None)]
    assert names == named


def test_changes_are_divided_by_operations_and_bytes() -> None:
    """A change is divided in order into portions with limited operations and bytes.

    An operation that exceeds the size of a portion gets a separate portion.
    """
    operations: list[Operation] = [
        Put(f"k{at}", bytes(size)) for at, size in enumerate((10, 500, 10, 10, 10))
    ]

    assert [len(piece) for piece in portions(operations, operations_max=2)] == [2, 2, 1]
    by_bytes = list(portions(operations, bytes_max=size_of(operations[0]) * 2))
    assert [len(piece) for piece in by_bytes] == [1, 1, 2, 1]
    assert [each for piece in by_bytes for each in piece] == operations
    assert list(portions(())) == []


def test_a_change_is_divided_until_each_part_fits() -> None:
    """A change is divided until each portion fits: deleted members first, and the state last."""
    keys = GroupKeys(KEYS, "etl")
    change = GroupChange(
        {StateKey(): STATE, TargetKey(T): TargetRecord(epoch=1, members={}), MemberKey("b"): MEMBER},
        frozenset({MemberKey("a")}),
    )

    assert len(change_pieces(keys, change)) == 1
    alone = change_pieces(keys, change, bytes_max=1)
    assert [piece[0].key for piece in alone] == [
        keys.member("a"),
        keys.member("b"),
        keys.target(T),
        keys.state,
    ]


async def test_a_write_says_what_it_compares(store: GroupStore, brokers: Brokers) -> None:
    """A write under a claim whose revision never existed writes nothing."""
    one = await brokers.register(ONE)
    claim = await claimed(store, ONE, one)
    never = Claim("etl", ONE, one, Revision(claim.revision + 1_000))

    with pytest.raises(ClaimLost):
        await store.write(never, (put_state(),))
    assert not await store.exists("etl")
