"""How a broker leaves a record before it drops bytes that it distrusts (protocol section 2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fairlead_api.identifiers import BrokerEpoch, BrokerId, Revision
from fairlead_broker.registry.isr import taken_out
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import PartitionRecord
from simulator import guards
from simulator.disk import Disk, Log
from simulator.process import Process
from simulator.store import Compare, Transaction, partition_key

if TYPE_CHECKING:
    from simulator.mirror import Mirror

AGAIN_SECONDS = 0.25


class Leaving(Process):
    """The part of a broker that takes it out of records."""

    disk: Disk
    mirror: Mirror
    epoch: BrokerEpoch
    ready: bool
    damaged: dict[int, int]
    """Partitions whose bytes from an offset on this process distrusts."""
    log: Callable[[int], Log]
    reconcile: Callable[[int], None]
    _let_go: Callable[[int], None]
    _read_again: Callable[[Callable[[dict[int, Versioned[PartitionRecord]]], None]], None]
    _taking_out: set[int]
    _own_write: dict[int, int]

    def find_damage(self, partition: int, offset: int) -> None:
        """Distrust the bytes from an offset on: out of isr and elr first, then drop them."""
        log = self.disk.logs.get(partition)
        if self.ready and log is not None and log.log_start <= offset < log.end:
            self.damaged[partition] = offset
            self.world.note("damage", self.number, offset, log.end)
            self._let_go(partition)
            self._leave_for_damage(partition)

    def _leave_for_damage(self, partition: int) -> None:
        item = self.mirror.partitions.get(partition)
        if item is None or partition not in self.damaged:
            return
        self._take_out(partition, item, lambda: self.drop_damaged(partition))

    def drop_damaged(self, partition: int) -> None:
        """Drop what is distrusted and fetch it anew."""
        offset = self.damaged.pop(partition, None)
        if offset is not None:
            self.log(partition).truncate(offset)
            self.reconcile(partition)

    def _take_out(self, partition: int, item: Versioned[PartitionRecord], then: Callable[[], None]) -> None:
        """Write this broker out of the record; go on when it is, try again until then.

        Where nobody else would be left nothing may be dropped: what is damaged stays and is served as far as it
        can be, and an old copy of a disk waits.
        """
        if partition in self._taking_out:
            return
        if all(replica.broker != self.number for replica in item.value.replicas):
            self.damaged.pop(partition, None)
            self.reconcile(partition)
            return
        record = self.without_this(item.value)
        if record is None:
            if self.damaged.pop(partition, None) is not None:
                torn_at = self.log(partition).torn_at
                if torn_at is not None:
                    self.log(partition).truncate(torn_at)  # never synced: it was never promised
                self.reconcile(partition)
            else:
                self.after(AGAIN_SECONDS, self._try_again, partition, then)
            return
        self._taking_out.add(partition)
        transaction = Transaction(
            (
                Compare(partition_key(partition), item.mod_revision),
                *guards.own_registration(self.number, self.epoch),
            ),
            ((partition_key(partition), record, None),),
        )
        store = self.world.store
        self.ask_store(lambda: store.transact(transaction), self._taken_out, partition, then)

    def without_this(self, record: PartitionRecord) -> PartitionRecord | None:
        """Return the record without this broker, its replica in another generation.

        A directory that the record does not name starts at generation 0, before and after: it is written down here,
        or nothing would tell what was reported before the bytes went from what is reported after.
        """
        return taken_out(record, BrokerId(self.number), self.disk.directory)

    def _taken_out(
        self, result: tuple[bool, Revision] | None, partition: int, then: Callable[[], None]
    ) -> None:
        self._taking_out.discard(partition)
        if result is not None and result[0]:
            self._own_write[partition] = result[1]
            then()
        else:
            self.after(AGAIN_SECONDS, self._try_again, partition, then)

    def _try_again(self, partition: int, then: Callable[[], None]) -> None:
        if not self._has_come_through(partition):
            self._read_again(lambda records: self._take_out_again(partition, records[partition], then))

    def _take_out_again(
        self, partition: int, item: Versioned[PartitionRecord], then: Callable[[], None]
    ) -> None:
        # A new life may have begun while the record was read, and have repaired the replica.
        if not self._has_come_through(partition):
            self._take_out(partition, item, then)

    def _has_come_through(self, partition: int) -> bool:
        """Say whether another attempt has, so that the replica may be in sync again."""
        return self.ready and partition not in self.damaged
