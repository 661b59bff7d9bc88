"""A coordination store that decides like etcd and misbehaves as etcd may.

Keys with create and mod revisions, transactions, leases that end early or late, watches that lag, are cancelled and
repeat what was seen. What a client cannot know stays unknown: a request or its answer gets lost, or the request is
carried out long after its sender gave up. Values are the records themselves: nothing here reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from fairlead_api.identifiers import Revision
from fairlead_broker.registry.metadata import Versioned
from simulator.schedule import Schedule

Key: TypeAlias = tuple[Any, ...]
"""A kind and what tells it from others of its kind."""
Item: TypeAlias = Versioned[Any]
Change: TypeAlias = tuple[Key, Item | None, Item | None]
"""A key with what it held before and after."""
CONTROLLER: Final[Key] = ("controller", 0)
ABSENT: Final = Revision(0)


def broker_key(broker: int) -> Key:
    """Return the key of a registration."""
    return ("broker", broker)


def partition_key(partition: int) -> Key:
    """Return the key of a partition's record."""
    return ("partition", partition)


@dataclass(frozen=True, slots=True)
class Compare:
    """What must hold for a transaction: the create or mod revision of a key, 0 for a key that is not there."""

    key: Key
    revision: int
    created: bool = False


@dataclass(slots=True)
class Transaction:
    """Compares and what follows from them."""

    compares: tuple[Compare, ...]
    puts: tuple[tuple[Key, Any, int | None], ...] = ()
    """Key, value, lease."""
    deletes: tuple[Key, ...] = ()


@dataclass(slots=True)
class Watch:
    """One client that hears of every change, in order."""

    deliver: Callable[[Revision, tuple[tuple[Key, Item | None], ...]], None]
    lag: Callable[[], float | None]
    """Draw how late the next event comes; None breaks the watch."""
    broken: Callable[[], None]
    due: float = 0.0
    alive: bool = True


@dataclass(slots=True)
class Lease:
    """Keys that end with their holder."""

    ends_at: float
    keys: set[Key] = field(default_factory=set)


class Store:
    """The truth of the cluster."""

    def __init__(
        self,
        schedule: Schedule,
        written: Callable[[Revision, list[Change]], None],
        mirrored: frozenset[str] = frozenset({"broker", "partition", "controller"}),
    ) -> None:
        """Begin empty. `written` gets the changes of each revision; `mirrored`: kinds of keys that brokers watch."""
        self.revision = Revision(1)
        self.items: dict[Key, Item] = {}
        self.leases: dict[int, Lease] = {}
        self.available = True
        self._schedule = schedule
        self._written = written
        self._mirrored = mirrored
        self._watches: dict[Hashable, Watch] = {}
        self._history: list[tuple[Revision, tuple[tuple[Key, Item | None], ...]]] = []

    # -- transactions

    def transact(self, transaction: Transaction) -> tuple[bool, Revision]:
        """Carry out a transaction; answer whether every compare held, and the store's revision."""
        for compare in transaction.compares:
            item = self.items.get(compare.key)
            found = 0 if item is None else item.create_revision if compare.created else item.mod_revision
            if found != compare.revision:
                return False, self.revision
        if any(lease is not None and lease not in self.leases for _, _, lease in transaction.puts):
            return False, self.revision
        self._write(transaction.puts, transaction.deletes)
        return True, self.revision

    def _write(self, puts: Iterable[tuple[Key, Any, int | None]], deletes: Iterable[Key]) -> None:
        revision = Revision(self.revision + 1)
        changes: list[tuple[Key, Item | None]] = []
        for key, value, lease in puts:
            before = self.items.get(key)
            created = revision if before is None else before.create_revision
            changes.append((key, Versioned(value, created, revision)))
            if lease is not None:
                self.leases[lease].keys.add(key)
        changes.extend((key, None) for key in deletes if key in self.items)
        if not changes:
            return
        self.revision = revision
        made: list[Change] = []
        for key, item in changes:
            made.append((key, self.items.pop(key, None), item))
            if item is not None:
                self.items[key] = item
        self._written(revision, made)
        event = (revision, tuple(each for each in changes if each[0][0] in self._mirrored))
        if event[1]:
            self._history.append(event)
            for watcher in list(self._watches):
                self._notify(watcher, event)

    def snapshot(self) -> tuple[Revision, dict[Key, Item]]:
        """Return what brokers mirror, at one revision."""
        return self.revision, {key: item for key, item in self.items.items() if key[0] in self._mirrored}

    # -- leases

    def grant(self, lease: int, seconds: float) -> None:
        """Begin a lease."""
        self.leases[lease] = Lease(self._schedule.now + seconds)
        self._schedule.after(seconds, self._check_lease, lease)

    def keep_alive(self, lease: int, seconds: float) -> bool:
        """Let a lease last longer; False if it has ended."""
        held = self.leases.get(lease)
        if held is None:
            return False
        held.ends_at = max(held.ends_at, self._schedule.now + seconds)
        return True

    def prolong(self, seconds: float) -> None:
        """Let every lease end late, as an election of etcd does."""
        for lease in self.leases.values():
            lease.ends_at += seconds

    def revoke(self, lease: int) -> None:
        """End a lease with its keys."""
        held = self.leases.pop(lease, None)
        if held is not None:
            self._write((), sorted(held.keys))

    def _check_lease(self, lease: int) -> None:
        held = self.leases.get(lease)
        if held is None:
            return
        if held.ends_at > self._schedule.now:
            self._schedule.after(held.ends_at - self._schedule.now, self._check_lease, lease)
        else:
            self.revoke(lease)

    # -- watches

    def watch(self, watcher: Hashable, watch: Watch, since: Revision) -> None:
        """Tell of every change behind a revision, from now on and of those that have been."""
        self._watches[watcher] = watch
        for event in self._history:
            if event[0] > since:
                self._notify(watcher, event)

    def unwatch(self, watcher: Hashable) -> None:
        """Tell a client nothing more."""
        watch = self._watches.pop(watcher, None)
        if watch is not None:
            watch.alive = False

    def replay(self, watcher: Hashable, events: int) -> None:
        """Tell a client once more what it was told already, as after a resumed watch."""
        if watcher in self._watches:
            for event in self._history[-events:]:
                self._notify(watcher, event)

    def cancel_watch(self, watcher: Hashable) -> None:
        """Cancel a watch and say so."""
        watch = self._watches.get(watcher)
        if watch is not None:
            self.unwatch(watcher)
            watch.broken()

    def _notify(self, watcher: Hashable, event: tuple[Revision, tuple[tuple[Key, Item | None], ...]]) -> None:
        watch = self._watches.get(watcher)
        if watch is None:
            return
        lag = watch.lag()
        if lag is None:
            self.unwatch(watcher)
            watch.broken()
            return
        # Strictly later than the one before: the events of one watch never overtake each other.
        watch.due = max(watch.due + 1e-6, self._schedule.now + lag)
        self._schedule.after(watch.due - self._schedule.now, self._deliver, watch, event)

    def _deliver(self, watch: Watch, event: tuple[Revision, tuple[tuple[Key, Item | None], ...]]) -> None:
        if watch.alive:
            watch.deliver(*event)
