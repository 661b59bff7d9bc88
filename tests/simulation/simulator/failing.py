"""What a broker does when its disk fails it: a sync that fails, a volume without room, a torn tail.

The first failed sync ends all writes of the directory until a restart (T22): what was not synced may be gone though it
can still be read. A full volume refuses for a while. A torn tail is a bad batch with valid ones behind it, which
nobody can tell from damage: out of isr and elr first, then cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fairlead_api.identifiers import Revision
from fairlead_broker.replication.leader_messages import DirectoryFailed
from simulator import guards
from simulator.leading import Leading
from simulator.leaving import AGAIN_SECONDS, Leaving
from simulator.store import Transaction, broker_key

if TYPE_CHECKING:
    from simulator.following import Following


class Failing(Leaving):
    """The part of a broker that knows failing disks."""

    roles: dict[int, Leading | Following]
    failed: bool = False
    """Whether the directory takes no more writes before a restart."""
    full_until: float = 0.0
    """Until then the volume has no room."""
    lease: int

    @property
    def takes_writes(self) -> bool:
        """Whether anything can be appended."""
        return not self.failed and self.world.now >= self.full_until

    def recover(self) -> None:
        """Read the logs at a start: what a failed sync has lost is found now, and torn tails."""
        self.failed = False
        for partition, log in self.disk.logs.items():
            if not self.disk.clean_marker:
                log.forget_high_watermark(self.world.schedule.rng)
            if log.doubtful is not None:
                log.synced, log.doubtful = min(log.synced, log.doubtful), None
                self.world.judge.counts["cells lost"] += log.lose_unsynced(self.world.schedule.rng)
            if log.torn_at is not None:
                self.damaged[partition] = log.torn_at

    def fail_directory(self) -> None:
        """Hear that a sync has failed."""
        if not self.ready or self.failed:
            return
        self.failed = True
        self.disk.boot = -1
        self.doubt_logs()
        for partition, role in list(self.roles.items()):
            if isinstance(role, Leading):
                role.step(DirectoryFailed())
            else:
                self._let_go(partition)
        self._hide_directories()

    def doubt_logs(self) -> None:
        """Let what is not synced be lost at the next start: after an error its pages count as clean."""
        for log in self.disk.logs.values():
            log.doubtful = log.synced if log.doubtful is None else min(log.synced, log.doubtful)

    def _hide_directories(self) -> None:
        """Register the directory no more: what it holds is not to be counted on."""
        key, epoch, lease, store = broker_key(self.number), self.epoch, self.lease, self.world.store

        def hide() -> tuple[bool, Revision]:
            item = store.items.get(key)
            if item is None or item.create_revision != epoch:
                return False, store.revision
            bare = msgspec.structs.replace(item.value, directories=())
            return store.transact(
                Transaction(guards.own_registration(self.number, epoch), ((key, bare, lease),))
            )

        self.ask_store(hide, self._hidden, epoch)

    def _hidden(self, result: tuple[bool, Revision] | None, epoch: int) -> None:
        if result is None and epoch == self.epoch:
            self.after(AGAIN_SECONDS, self._hide_directories)
