"""Stored consumer groups: claims on groups, and writes that succeed only while a claim is valid.

The coordinator of a group in the runtime uses this module. A claim is a put of the group's `coordinator` key.
Every later write compares the mod revision of that key and the claimant's registration. A delayed write under an
earlier claim therefore cannot succeed, even if the same broker claims the group again after a lost answer
(protocol section 5, rule 1).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from fairlead_api.identifiers import BrokerEpoch, BrokerId, Revision, TopicId
from fairlead_broker.coordination.protocol import (
    OPERATION_OVERHEAD_BYTES,
    OPERATIONS_MAX,
    PAGE_KEYS_MAX,
    REQUEST_BYTES_MAX,
    Coordination,
    CoordinationError,
    Page,
)
from fairlead_broker.groups import GroupChange, GroupKey, MemberKey, StateKey, TargetKey
from fairlead_broker.groups.classic.messages import ClassicChange
from fairlead_broker.registry.group_records import (
    ClassicGroupRecord,
    ClassicMemberRecord,
    CoordinatorRecord,
    GroupRecord,
    MemberRecord,
    OffsetsRecord,
    TargetRecord,
)
from fairlead_broker.registry.keys import (
    FoundClassic,
    FoundClassicMember,
    FoundMember,
    FoundOffsets,
    FoundState,
    FoundTarget,
    GroupKeys,
    Keys,
    after_group,
    all_groups,
    group_of,
)
from fairlead_broker.registry.records import Record, RecordUnreadable, decode, encode
from fairlead_broker.registry.store_writes import (
    Compare,
    CreateRevision,
    Delete,
    Get,
    KeyValue,
    Operation,
    Put,
    Relation,
    TransactionResult,
    created_at,
    unchanged_since,
)

UNDER_WAY_MAX: Final = 16
"""Maximum number of concurrent calls for groups. Further calls would only wait in the store's queue and delay the
keep-alives of the broker's lease.
"""
PORTION_BYTES_MAX: Final = REQUEST_BYTES_MAX - 4096
"""Maximum bytes of the operations in one transaction. The rest of etcd's limit is reserved for the compares."""

R = TypeVar("R", bound=Record)
Block: TypeAlias = tuple[TopicId, int]
"""A topic, and the number of a block of 64 partitions that share one offsets record."""


class ClaimLost(CoordinationError):
    """The claim of the group or the registration of this incarnation has ended, so nothing was written."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A group's claim as read from the store.

    The caller checks whether the claimant's incarnation is still registered.
    """

    broker: BrokerId
    broker_epoch: BrokerEpoch
    revision: Revision
    """Mod revision of the `coordinator` key."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Right to write a group, valid until the registration ends or the claim is released or replaced."""

    group: str
    broker: BrokerId
    broker_epoch: BrokerEpoch
    revision: Revision


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """All stored records of a group except its claim."""

    state: GroupRecord | None = None
    targets: Mapping[TopicId, TargetRecord] = field(default_factory=dict)
    members: Mapping[str, MemberRecord] = field(default_factory=dict)
    offsets: Mapping[Block, OffsetsRecord] = field(default_factory=dict)
    classic: ClassicGroupRecord | None = None
    classic_members: Mapping[str, ClassicMemberRecord] = field(default_factory=dict)

    @property
    def is_absent(self) -> bool:
        """Whether the group does not exist."""
        found = self.targets or self.members or self.offsets or self.classic or self.classic_members
        return self.state is None and not found


class GroupStore:
    """Access to stored groups. Methods raise `CoordinationUnavailable`; reads may also raise `RecordUnreadable`."""

    def __init__(self, coordination: Coordination, keys: Keys) -> None:
        self._coordination = coordination
        self._keys = keys
        self._room = asyncio.Semaphore(UNDER_WAY_MAX)

    # -- claims

    async def holder(self, group: str) -> Holder | None:
        """Return the last claim of a group, or None if there is no claim."""
        [item] = (await self._transact((), (Get(self.of(group).coordinator),))).reads
        return None if item is None else _holder(item)

    async def claim(
        self, group: str, found: Holder | None, broker: BrokerId, broker_epoch: BrokerEpoch
    ) -> Claim | None:
        """Claim a group. Returns None if the holder that was read, or this broker's registration, has changed.

        A holder other than this incarnation must no longer be registered. A new claim of this incarnation ends its
        earlier claim. After `UnknownOutcome` the caller reads the holder and claims the group again, even if the holder
        is this incarnation.
        """
        key = self.of(group).coordinator
        compares: list[Compare] = [
            unchanged_since(key, found.revision if found else 0),
            created_at(self._keys.broker(broker), broker_epoch),
        ]
        if found is not None and (found.broker, found.broker_epoch) != (broker, broker_epoch):
            held = self._keys.broker(found.broker)
            compares.append(CreateRevision(held, Relation.NOT_EQUAL, found.broker_epoch))
        record = CoordinatorRecord(broker=broker, broker_epoch=broker_epoch)
        result = await self._transact(compares, (Put(key, encode(record)),))
        return Claim(group, broker, broker_epoch, result.revision) if result.succeeded else None

    async def release(self, claim: Claim) -> None:
        """Release the group for other brokers. A lost claim is not an error. Raises `UnknownOutcome`."""
        key = self.of(claim.group).coordinator
        await self._transact((unchanged_since(key, claim.revision),), (Delete(key),))

    # -- stored records

    async def exists(self, group: str) -> bool:
        """Return whether the store contains any key of a group other than its claim."""
        keys = self.of(group)
        page = await self._list(keys.prefix, limit=2)
        return any(item.key != keys.coordinator for item in page.items)

    async def load(self, claim: Claim) -> StoredGroup:
        """Read a whole group. The group must be claimed, so that no write by another broker can succeed."""
        keys = self.of(claim.group)
        state: GroupRecord | None = None
        targets: dict[TopicId, TargetRecord] = {}
        members: dict[str, MemberRecord] = {}
        offsets: dict[Block, OffsetsRecord] = {}
        classic: ClassicGroupRecord | None = None
        classic_members: dict[str, ClassicMemberRecord] = {}
        for item in await self._items(keys.prefix):
            match keys.parse(item.key):
                case FoundState():
                    state = _read(item, GroupRecord)
                case FoundTarget(topic_id):
                    targets[topic_id] = _read(item, TargetRecord)
                case FoundMember(member_id):
                    members[member_id] = _read(item, MemberRecord)
                case FoundOffsets(topic_id, block):
                    offsets[topic_id, block] = _read(item, OffsetsRecord)
                case FoundClassic():
                    classic = _read(item, ClassicGroupRecord)
                case FoundClassicMember(member_id):
                    classic_members[member_id] = _read(item, ClassicMemberRecord)
                case _:
                    continue
        return StoredGroup(state, targets, members, offsets, classic, classic_members)

    async def write(self, claim: Claim, operations: Sequence[Operation]) -> None:
        """Run write operations in one transaction, if the claim is still valid.

        Raises `ClaimLost`, `TransactionTooLarge` or `UnknownOutcome`. After `UnknownOutcome` a caller claims the
        group again before the next write.
        """
        if not (await self._transact(self._compares(claim), operations)).succeeded:
            raise _claim_lost(claim)

    async def write_if(
        self, claim: Claim, operations: Sequence[Operation], compares: Sequence[Compare]
    ) -> Revision | None:
        """Run write operations in one transaction, if the claim is still valid and every compare succeeds.

        Returns the revision of the write, or None if the claim is valid and a compare failed, in which case nothing was
        written. Raises the errors of `write`.
        """
        own, registration = self.of(claim.group).coordinator, self._keys.broker(claim.broker)
        result = await self._transact(
            (*self._compares(claim), *compares), operations, (Get(own), Get(registration))
        )
        if result.succeeded:
            return result.revision
        claimed, registered = result.reads
        if (
            claimed is None
            or claimed.mod_revision != claim.revision
            or registered is None
            or int(registered.create_revision) != claim.broker_epoch
        ):
            raise _claim_lost(claim)
        return None

    async def write_offsets(self, claim: Claim, blocks: Mapping[Block, OffsetsRecord | None]) -> None:
        """Write offsets records, and delete the records given as None, in as few transactions as their sizes allow.

        Raises the errors of `write`. Earlier transactions of the call may have succeeded before an error.
        """
        for portion in portions(self.offset_operations(claim.group, blocks)):
            await self.write(claim, portion)

    def offset_operations(
        self, group: str, blocks: Mapping[Block, OffsetsRecord | None]
    ) -> Iterator[Operation]:
        """Return the operations that write or delete these offsets records."""
        keys = self.of(group)
        for (topic_id, block), record in blocks.items():
            key = keys.offsets_block(topic_id, block)
            yield Delete(key) if record is None else Put(key, encode(record))

    async def delete(self, claim: Claim) -> None:
        """Delete the records of a group, and its claim last.

        An interrupted deletion leaves a smaller group, which can be deleted again. Raises the errors of `write`.
        """
        keys = self.of(claim.group)
        found = [item.key for item in await self._items(keys.prefix) if item.key != keys.coordinator]
        # The state and the claim are deleted after the records that they describe.
        found.sort(key=lambda key: key == keys.state)
        for portion in portions(Delete(key) for key in (*found, keys.coordinator)):
            await self.write(claim, portion)

    async def names(
        self, after: str | None, limit: int
    ) -> tuple[list[tuple[str, Holder | None]], str | None]:
        """List groups with their claims, in key order. Also returns `after` for the next page.

        The call reads at most three keys per group, regardless of the group's size. Claims without a group are left
        out.
        """
        found: list[tuple[str, Holder | None]] = []
        prefix = all_groups(self._keys)
        at = None if after is None else after_group(self._keys, after)
        while True:
            page = await self._list(prefix, after=at, limit=2)
            group = group_of(self._keys, page.items[0].key) if page.items else None
            if group is None:
                return found, None
            if len(found) == limit:
                return found, found[-1][0]
            first, *others = page.items
            keys = self.of(group)
            if first.key.startswith(keys.classic):
                # The records of classic members precede the claim.
                claims = (await self._list(keys.coordinator, limit=1)).items
                found.append((group, _readable_holder(claims[0]) if claims else None))
            elif first.key != keys.coordinator:
                found.append((group, None))
            elif any(group_of(self._keys, item.key) == group for item in others):
                found.append((group, _readable_holder(first)))
            at = after_group(self._keys, group)

    def of(self, group: str) -> GroupKeys:
        """Return the keys of a group."""
        return GroupKeys(self._keys, group)

    def _compares(self, claim: Claim) -> tuple[Compare, ...]:
        """Return the compares that succeed only while a claim is valid."""
        return (
            unchanged_since(self.of(claim.group).coordinator, claim.revision),
            created_at(self._keys.broker(claim.broker), claim.broker_epoch),
        )

    async def _transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> TransactionResult:
        async with self._room:
            return await self._coordination.transact(compares, operations, failure)

    async def _list(
        self,
        prefix: str,
        *,
        revision: Revision | None = None,
        after: str | None = None,
        limit: int = PAGE_KEYS_MAX,
    ) -> Page:
        async with self._room:
            return await self._coordination.list(prefix, revision=revision, after=after, limit=limit)

    async def _items(self, prefix: str) -> list[KeyValue]:
        page = await self._list(prefix)
        items = list(page.items)
        while page.next is not None:
            page = await self._list(prefix, revision=page.revision, after=page.next)
            items += page.items
        return items


def portions(
    operations: Iterable[Operation],
    operations_max: int = OPERATIONS_MAX,
    bytes_max: int = PORTION_BYTES_MAX,
) -> Iterator[list[Operation]]:
    """Divide operations into portions within the limits of a transaction, keeping the order of the operations.

    An operation that alone exceeds the limits gets its own portion, which the store refuses.
    """
    portion: list[Operation] = []
    taken = 0
    for operation in operations:
        size = size_of(operation)
        if portion and (len(portion) == operations_max or taken + size > bytes_max):
            yield portion
            portion, taken = [], 0
        portion.append(operation)
        taken += size
    if portion:
        yield portion


def size_of(operation: Operation) -> int:
    """Return the number of bytes that an operation adds to a transaction."""
    value = operation.value if isinstance(operation, Put) else b""
    return OPERATION_OVERHEAD_BYTES + len(operation.key) + len(value)


def _claim_lost(claim: Claim) -> ClaimLost:
    return ClaimLost(f"group {claim.group} is no longer coordinated by broker {claim.broker}")


def _holder(item: KeyValue) -> Holder:
    record = _read(item, CoordinatorRecord)
    return Holder(record.broker, record.broker_epoch, item.mod_revision)


def _readable_holder(item: KeyValue) -> Holder | None:
    """Return the claim, or None for an unreadable record, so that a list of groups includes every group."""
    try:
        return _holder(item)
    except RecordUnreadable:
        return None


def _read(item: KeyValue, record_type: type[R]) -> R:
    return decode(item.key, item.value, record_type)


def classic_pieces(
    keys: GroupKeys, change: ClassicChange, emptying: GroupChange | None = None
) -> Sequence[Sequence[Operation]]:
    """Divide the change of a classic group into portions, to be written in this order: the group's record is last.

    If a write was interrupted, the coordinator finds members without the group's record, and lets them join again.
    `emptying`: change that stores the time at which the last member left, written first.
    """
    operations: list[Operation] = [] if emptying is None else _operations(keys, emptying)
    operations += [Delete(keys.classic_member(each)) for each in sorted(change.gone)]
    operations += [Put(keys.classic_member(each), encode(record)) for each, record in change.members.items()]
    operations.append(
        Delete(keys.classic) if change.group is None else Put(keys.classic, encode(change.group))
    )
    return list(portions(operations))


def change_pieces(
    keys: GroupKeys, change: GroupChange, bytes_max: int = PORTION_BYTES_MAX
) -> Sequence[Sequence[Operation]]:
    """Divide a change into portions within the limits of a transaction, to be written in this order.

    A record that alone exceeds the limits gets its own portion, which the store refuses.
    """
    limit = OPERATIONS_MAX
    while True:
        pieces = [_operations(keys, portion) for portion in change.portions(limit)]
        if limit == 1 or all(sum(map(size_of, piece)) <= bytes_max for piece in pieces):
            return pieces
        limit //= 2


def _operations(keys: GroupKeys, change: GroupChange) -> list[Operation]:
    operations: list[Operation] = [
        Put(_key(keys, key), encode(record)) for key, record in change.puts.items()
    ]
    operations += [Delete(_key(keys, key)) for key in sorted(change.deletes, key=str)]
    return operations


def _key(keys: GroupKeys, key: GroupKey) -> str:
    match key:
        case StateKey():
            return keys.state
        case TargetKey(topic_id):
            return keys.target(topic_id)
        case MemberKey(member_id):
            return keys.member(member_id)
