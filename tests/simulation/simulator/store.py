"""A coordination store that decides like etcd and fails as etcd may.

The store has keys with create and mod revisions, transactions, leases that end early or late, and watches that lag, are
cancelled and repeat events. Outcomes remain unknown, as in practice: a request or its answer is lost, or the request is
carried out long after its sender gave up. Values are record objects, and the store does not inspect them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from fairlead_api.identifiers import Revision
from fairlead_broker.registry.metadata import Versioned
from simulator.schedule import Schedule

Key: TypeAlias = tuple[Any, ...]
"""Kind and name of an item in the store."""
Item: TypeAlias = Versioned[Any]
Change: TypeAlias = tuple[Key, Item | None, Item | None]
"""Key with its previous and new value."""
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
    """A condition of a transaction: the create or mod revision of a key, 0 for an absent key."""

    key: Key
    revision: int
    created: bool = False


@dataclass(slots=True)
class Transaction:
    """Compares, and the operations that depend on them."""

    compares: tuple[Compare, ...]
    puts: tuple[tuple[Key, Any, int | None], ...] = ()
    """Key, value and lease of each put of the transaction."""
    deletes: tuple[Key, ...] = ()


@dataclass(slots=True)
class Watch:
    """A client that receives every change in order."""

    deliver: Callable[[Revision, tuple[tuple[Key, Item | None], ...]], None]
    lag: Callable[[], float | None]
    """Function that draws the delay of the next event, or returns None to break the watch."""
    broken: Callable[[], None]
    due: float = 0.0
    alive: bool = True


@dataclass(slots=True)
class Lease:
    """A lease: the time at which it ends, and the keys that are deleted with it."""

    ends_at: float
    keys: set[Key] = field(default_factory=set)


class Store:
    """The contents of the coordination store."""

    def __init__(
        self,
        schedule: Schedule,
        written: Callable[[Revision, list[Change]], None],
        mirrored: frozenset[str] = frozenset({"broker", "partition", "controller"}),
    ) -> None:
        """Start empty; `written` gets the changes of each revision; `mirrored` are kinds of keys that brokers watch."""
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
        """Execute a transaction, and return whether every compare held and the store's revision."""
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
        """Return the keys that brokers mirror, at one revision."""
        return self.revision, {key: item for key, item in self.items.items() if key[0] in self._mirrored}

    # -- leases

    def grant(self, lease: int, seconds: float) -> None:
        """Grant a lease."""
        self.leases[lease] = Lease(self._schedule.now + seconds)
        self._schedule.after(seconds, self._check_lease, lease)

    def keep_alive(self, lease: int, seconds: float) -> bool:
        """Renew a lease, and return False if the lease has expired."""
        held = self.leases.get(lease)
        if held is None:
            return False
        held.ends_at = max(held.ends_at, self._schedule.now + seconds)
        return True

    def prolong(self, seconds: float) -> None:
        """Extend every lease, as etcd does when it elects a leader."""
        for lease in self.leases.values():
            lease.ends_at += seconds

    def revoke(self, lease: int) -> None:
        """Revoke a lease and its keys."""
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
        """Send every change after a revision to a client, including future changes."""
        self._watches[watcher] = watch
        for event in self._history:
            if event[0] > since:
                self._notify(watcher, event)

    def unwatch(self, watcher: Hashable) -> None:
        """Stop sending changes to a client."""
        watch = self._watches.pop(watcher, None)
        if watch is not None:
            watch.alive = False

    def replay(self, watcher: Hashable, events: int) -> None:
        """Send already delivered events to a client again, as a resumed watch does."""
        if watcher in self._watches:
            for event in self._history[-events:]:
                self._notify(watcher, event)

    def cancel_watch(self, watcher: Hashable) -> None:
        """Cancel a watch, and notify its client."""
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
        # Each event is delivered strictly later than the previous one, because events of one watch never overtake each
        # other.
        watch.due = max(watch.due + 1e-6, self._schedule.now + lag)
        self._schedule.after(watch.due - self._schedule.now, self._deliver, watch, event)

    def _deliver(self, watch: Watch, event: tuple[Revision, tuple[tuple[Key, Item | None], ...]]) -> None:
        if watch.alive:
            watch.deliver(*event)
