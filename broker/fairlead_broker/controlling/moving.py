"""Moves of coordination data from the embedded store of one broker to etcd, in repeatable steps.

`fairlead cluster move-coordination` runs a move, and a starting broker checks for the mark of a completed move.
The keys of many topics do not fit into one transaction of etcd, so the cluster record is written last: before
this write no broker finds a cluster in etcd, and the broker can continue with the embedded store (protocol
section 3, rule 9).
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
from fairlead_broker.registry.store_writes import (
    Compare,
    Delete,
    Get,
    Operation,
    Put,
    absent,
    has_value,
)

STEP_KEYS: Final = 60
"""Maximum number of keys in one transaction, equal to the controller's limit."""
STEP_BYTES: Final = 512 << 10
"""Maximum size of one transaction in bytes, well below etcd's limit."""
EARLIER: Final = BrokerEpoch(0)
"""Broker epoch that replaces all broker epochs in moved records. Broker epochs are revisions of a store, so the epochs
of the old store have no meaning in the new store. The cluster has only one broker, and every incarnation of this broker
has all records.
"""

Changes: TypeAlias = Mapping[str, bytes | None]


class MovedRecord(Record, frozen=True, kw_only=True):
    """Cluster and etcd of a move: the value of the key `moved` in the old store, and of `moving` in the new store."""

    cluster_id: str
    etcd: str


class MoveRefused(CoordinationError):
    """The move was refused, and the data that brokers serve is unchanged."""


class MoveInDoubt(MoveRefused):
    """The answer to a step of the move, perhaps to the last step, was lost. The move command must be run again."""


class CoordinationMoved(CoordinationError):
    """The coordination data of the store's cluster was moved to etcd."""


@dataclass(frozen=True, slots=True)
class Moved:
    """Result of moving the coordination data to another store."""

    cluster_id: str
    keys: int
    """Number of keys in the new store."""
    already: bool
    """Whether an earlier attempt had already copied all keys."""


async def check_not_moved(store: Coordination, keys: Keys, data: Path) -> None:
    """Raise `CoordinationMoved` if the coordination data of the store's cluster was moved to etcd."""
    [item] = (await store.transact((), (Get(_moved_key(keys)),))).reads
    if item is not None:
        moved = decode(item.key, item.value, MovedRecord)
        message = (
            f"the coordination of cluster {keys.cluster_name} was moved from {data} to etcd; start the broker with: "
            f"--etcd {moved.etcd} (if etcd does not know the cluster yet, finish the move with: fairlead cluster "
            f"move-coordination --from {data} --etcd {moved.etcd})"
        )
        raise CoordinationMoved(message)


class CoordinationMove:
    """A move of coordination data. Both stores are open, and the lock of the old store keeps brokers from using it."""

    def __init__(self, old: Coordination, new: Coordination, keys: Keys, etcd: str) -> None:
        """Prepare a move. `etcd` contains the members' URLs in the format of the broker's setting."""
        self._old = old
        self._new = new
        self._keys = keys
        self._etcd = etcd

    async def run(self) -> Moved:
        """Copy all keys and mark the old store as moved. The call may be repeated after any error.

        Raises `MoveRefused`, which states the reason.
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
            message = (
                f"the store holds no cluster named {self._keys.cluster_name}; give its name with --cluster"
            )
            raise MoveRefused(message)
        brokers: set[BrokerId] = set()
        for key, value_of_key in source.items():
            if isinstance(self._keys.parse(key), PartitionKey):
                record = decode(key, value_of_key, PartitionRecord)
                brokers.update(replica.broker for replica in record.replicas)
        if len(brokers) > 1:
            message = (
                f"the store belongs to {len(brokers)} brokers in one process (dev up --brokers); only the "
                "coordination of a single broker can be moved"
            )
            raise MoveRefused(message)
        return decode(self._keys.cluster, value, ClusterRecord)

    def _moved(self, key: str, value: bytes) -> bytes | None:
        """Return a key's value for the new store, or None for a key that is not moved."""
        group = group_of(self._keys, key)
        if group is not None and key == GroupKeys(self._keys, group).coordinator:
            # A claim contains a revision that the new store has not reached, and calls for the group would wait for
            # this revision.
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
        """Reserve the cluster's name in etcd for this move."""
        key = _moving_key(self._keys)
        result = await self._step((absent(key), absent(self._keys.cluster)), (Put(key, own),), (Get(key),))
        if result is None:
            return
        if result and decode(key, result, MovedRecord).cluster_id == cluster.cluster_id:
            # An earlier attempt at the same move made the reservation, perhaps with different URLs of the same etcd
            # cluster.
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
        """Mark the old store as moved, then write the cluster record to the new store."""
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
        """Apply a step. Returns None if the step succeeded.

        If a compare failed, returns the value that was read, which is empty for a missing key.
        """
        try:
            result = await self._new.transact(compares, success, failure)
        except (UnknownOutcome, CoordinationUnavailable) as error:
            message = f"etcd did not answer ({error}); the copied keys are kept, run the command again"
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
