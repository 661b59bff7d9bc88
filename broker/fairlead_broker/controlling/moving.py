"""Move coordination from the embedded store of one broker to etcd: every key once, in steps that can be repeated.

Called by `fairlead cluster move-coordination`; a broker reads the mark of a finished move at its start. The cluster's
own record is written last: before that write no broker finds a cluster in etcd, and the broker can continue with the
embedded store (protocol section 3, rule 9). The keys of many topics do not fit into one transaction of etcd.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from fairlead_api.identifiers import BrokerEpoch, BrokerId
from fairlead_broker.coordination.protocol import (
    OPERATION_OVERHEAD_BYTES,
    Coordination,
    CoordinationError,
    CoordinationUnavailable,
    UnknownOutcome,
)
from fairlead_broker.registry.keys import BrokerKey, ControllerKey, GroupKeys, Keys, PartitionKey, group_of
from fairlead_broker.registry.records import ClusterRecord, InSync, PartitionRecord, Record, decode, encode
from fairlead_broker.registry.transactions import (
    Compare,
    Delete,
    Get,
    Operation,
    Put,
    absent,
    has_value,
)

STEP_KEYS: Final = 60
"""Keys of one transaction, as for the controller."""
STEP_BYTES: Final = 512 << 10
"""Bytes of one transaction, well below etcd's limit."""
EARLIER: Final = BrokerEpoch(0)
"""Broker epochs are revisions of the store. Those of the old one mean nothing in the new one, so that the lives that
records name become one that is before all others; the single broker holds everything whatever its number was."""

Changes: TypeAlias = Mapping[str, bytes | None]


class MovedRecord(Record, frozen=True, kw_only=True):
    """`moved` in the old store, `moving` in the new one: whose keys these are, and where they went."""

    cluster_id: str
    etcd: str


class MoveRefused(CoordinationError):
    """The move cannot be made as asked; nothing that was served before has changed."""


class MoveInDoubt(MoveRefused):
    """The answer to a step was lost: it may have been the last one. The command has to be run again."""


class CoordinationMoved(CoordinationError):
    """The store is not the cluster's any more."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What a move did."""

    cluster_id: str
    keys: int
    """Keys that the new store holds now."""
    already: bool
    """Whether an earlier attempt had copied everything."""


async def check_not_moved(store: Coordination, keys: Keys, data: Path) -> None:
    """Raise `CoordinationMoved` if the truth of this store's cluster lives in etcd now."""
    [item] = (await store.transact((), (Get(_moved_key(keys)),))).reads
    if item is not None:
        moved = decode(item.key, item.value, MovedRecord)
        message = (
            f"the coordination of cluster {keys.cluster_name} was moved from {data} to etcd; start the broker with: "
            f"--etcd {moved.etcd} (and where etcd does not know the cluster, finish the move: fairlead cluster "
            f"move-coordination --from {data} --etcd {moved.etcd})"
        )
        raise CoordinationMoved(message)


class CoordinationMove:
    """One move. Both stores are open, and no broker of the cluster runs: the lock of the old one sees to that."""

    def __init__(self, old: Coordination, new: Coordination, keys: Keys, etcd: str) -> None:
        """`etcd`: URLs of the members, in the form of the broker's setting."""
        self._old = old
        self._new = new
        self._keys = keys
        self._etcd = etcd

    async def run(self) -> Moved:
        """Copy, then mark the old store. May be called again after anything it raised.

        Raises `MoveRefused` saying what is in the way.
        """
        source = await _listed(self._old, self._keys.prefix)
        source.pop(_moved_key(self._keys), None)
        cluster = self._cluster_of(source)
        own = encode(MovedRecord(cluster_id=cluster.cluster_id, etcd=self._etcd))
        wanted = {
            key: value for key, value in ((key, self._moved(key, source[key])) for key in source) if value
        }
        already = await self._is_there(cluster)
        if not already:
            await self._claim(cluster, own)
            record = wanted.pop(self._keys.cluster)
            await self._copy(wanted, own)
            await self._finish(record, own)
        else:
            await self._mark(own)
        return Moved(cluster.cluster_id, len(wanted) + 1, already)

    def _cluster_of(self, source: Mapping[str, bytes]) -> ClusterRecord:
        value = source.get(self._keys.cluster)
        if value is None:
            message = f"the store holds no cluster named {self._keys.cluster_name}; name it with --cluster"
            raise MoveRefused(message)
        brokers: set[BrokerId] = set()
        for key, value_of_key in source.items():
            if isinstance(self._keys.parse(key), PartitionKey):
                record = decode(key, value_of_key, PartitionRecord)
                brokers.update(replica.broker for replica in record.replicas)
        if len(brokers) > 1:
            message = (
                f"the store is that of {len(brokers)} brokers in one process (dev up --brokers); only the "
                "coordination of a single broker can be moved"
            )
            raise MoveRefused(message)
        return decode(self._keys.cluster, value, ClusterRecord)

    def _moved(self, key: str, value: bytes) -> bytes | None:
        """The value in the new store; None for what ends with the old broker's life."""
        group = group_of(self._keys, key)
        if group is not None and key == GroupKeys(self._keys, group).coordinator:
            # It names a revision that the new store has not reached; a call about the group would wait for it.
            return None
        match self._keys.parse(key):
            case BrokerKey() | ControllerKey():
                return None
            case PartitionKey():
                return encode(_of_an_earlier_incarnation(decode(key, value, PartitionRecord)))
            case _:
                return value

    async def _is_there(self, cluster: ClusterRecord) -> bool:
        [item] = (await self._new.transact((), (Get(self._keys.cluster),))).reads
        if item is None:
            return False
        found = decode(item.key, item.value, ClusterRecord)
        if found.cluster_id == cluster.cluster_id:
            return True
        message = (
            f"etcd holds another cluster named {self._keys.cluster_name} ({found.cluster_id}, this one is "
            f"{cluster.cluster_id}); use another etcd, or remove that cluster's keys under {self._keys.prefix}"
        )
        raise MoveRefused(message)

    async def _claim(self, cluster: ClusterRecord, own: bytes) -> None:
        """Reserve the name in etcd for this move."""
        key = _moving_key(self._keys)
        result = await self._step((absent(key), absent(self._keys.cluster)), (Put(key, own),), (Get(key),))
        if result is None:
            return
        if result and decode(key, result, MovedRecord).cluster_id == cluster.cluster_id:
            # An earlier attempt of the same move, perhaps by other URLs of the same etcd.
            await self._step((has_value(key, result),), (Put(key, own),))
            return
        message = f"another cluster is being moved to etcd under the name {self._keys.cluster_name}"
        raise MoveRefused(message)

    async def _copy(self, wanted: Mapping[str, bytes], own: bytes) -> None:
        there = await _listed(self._new, self._keys.prefix)
        there.pop(_moving_key(self._keys), None)
        changes: dict[str, bytes | None] = {key: None for key in there if key not in wanted}
        changes.update((key, value) for key, value in wanted.items() if there.get(key) != value)
        for portion in _portions(changes):
            operations = [Delete(key) if value is None else Put(key, value) for key, value in portion.items()]
            await self._guarded(own, operations)

    async def _finish(self, cluster: bytes, own: bytes) -> None:
        """Make the cluster known in the new store. From before that on the old one must not be served from."""
        await self._mark(own)
        try:
            await self._guarded(own, (Put(self._keys.cluster, cluster), Delete(_moving_key(self._keys))))
        except MoveInDoubt:
            raise
        except MoveRefused:
            await self._old.transact((), (Delete(_moved_key(self._keys)),))
            raise

    async def _mark(self, own: bytes) -> None:
        await self._old.transact((), (Put(_moved_key(self._keys), own),))

    async def _guarded(self, own: bytes, operations: Sequence[Operation]) -> None:
        guards = (has_value(_moving_key(self._keys), own), absent(self._keys.cluster))
        refused = await self._step(guards, operations, (Get(self._keys.cluster),))
        if refused is not None:
            message = "another process changed the keys in etcd during the move; run the command again"
            raise MoveRefused(message)

    async def _step(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> bytes | None:
        """Apply; return None, or the value that was read where a compare did not hold (empty without one)."""
        try:
            result = await self._new.transact(compares, success, failure)
        except (UnknownOutcome, CoordinationUnavailable) as error:
            message = f"etcd did not answer ({error}); what was copied stays, run the command again"
            in_doubt = isinstance(error, UnknownOutcome)
            raise (MoveInDoubt if in_doubt else MoveRefused)(message) from error
        if result.succeeded:
            return None
        return next((item.value for item in result.reads if item is not None), b"")


def _of_an_earlier_incarnation(record: PartitionRecord) -> PartitionRecord:
    def earlier(entries: tuple[InSync, ...]) -> tuple[InSync, ...]:
        return tuple(msgspec.structs.replace(entry, broker_epoch=EARLIER) for entry in entries)

    return msgspec.structs.replace(record, leader=None, isr=earlier(record.isr), elr=earlier(record.elr))


def _portions(changes: Changes) -> Iterator[Changes]:
    portion: dict[str, bytes | None] = {}
    nbytes = 0
    for key, value in sorted(changes.items()):
        size = OPERATION_OVERHEAD_BYTES + len(key) + len(value or b"")
        if portion and (len(portion) >= STEP_KEYS or nbytes + size > STEP_BYTES):
            yield portion
            portion, nbytes = {}, 0
        portion[key] = value
        nbytes += size
    if portion:
        yield portion


async def _listed(store: Coordination, prefix: str) -> dict[str, bytes]:
    page = await store.list(prefix)
    listed = {item.key: item.value for item in page.items}
    while page.next is not None:
        page = await store.list(prefix, revision=page.revision, after=page.next)
        listed.update((item.key, item.value) for item in page.items)
    return listed


def _moved_key(keys: Keys) -> str:
    return f"{keys.prefix}moved"


def _moving_key(keys: Keys) -> str:
    return f"{keys.prefix}moving"
