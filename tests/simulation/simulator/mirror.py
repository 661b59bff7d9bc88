"""A broker's copy of the store: a list, a watch, and another list after every break."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from fairlead_api.identifiers import Revision
from simulator.network import STORE
from simulator.store import Item, Key, Watch

if TYPE_CHECKING:
    from simulator.broker import Broker

AGAIN_SECONDS = 0.3


class Mirror:
    """The contents of the store as one process of a broker sees them."""

    def __init__(self, broker: Broker) -> None:
        """Start with an empty copy."""
        self.revision = Revision(0)
        self.tables: defaultdict[str, dict[Any, Item]] = defaultdict(dict)
        """Items by kind of key, then by the remaining part of the key."""
        self.brokers = self.tables["broker"]
        self.partitions = self.tables["partition"]
        self._broker = broker
        self._watcher = (broker.number, broker.life)

    @property
    def controller(self) -> Item | None:
        """The controller's key."""
        return self.tables["controller"].get(0)

    def list(self) -> None:
        """Read everything at one revision, then watch the later changes."""
        broker = self._broker
        broker.world.store.unwatch(self._watcher)
        broker.ask_store(broker.world.store.snapshot, self._listed)

    def close(self) -> None:
        """End the watch."""
        self._broker.world.store.unwatch(self._watcher)

    def _listed(self, answer: tuple[Revision, dict[Key, Item]] | None) -> None:
        if answer is None:
            self._broker.after(AGAIN_SECONDS, self.list)
            return
        revision, items = answer
        if revision >= self.revision:
            known = [(kind, number) for kind, table in self.tables.items() for number in table]
            gone = [(key, None) for key in known if key not in items]
            self.apply(revision, (*gone, *items.items()))
        self.watch()

    def watch(self) -> None:
        """Watch the changes after the known revision."""
        watch = Watch(self._receive, self._lag, self._broken)
        self._broker.world.store.watch(self._watcher, watch, self.revision)

    def _lag(self) -> float | None:
        network = self._broker.world.network
        if (STORE, self._broker.number) in network.cut or not network.passes(STORE, self._broker.number):
            return None
        return network.delay() + max(0.0, self._broker.stalled_until - self._broker.world.now)

    def _broken(self) -> None:
        self._broker.after(AGAIN_SECONDS, self.resume)

    def resume(self) -> None:
        """Continue after a break with another list, which includes the missed changes (trap 19 of the known traps)."""
        self.list()

    def _receive(self, revision: Revision, changes: tuple[tuple[Key, Item | None], ...]) -> None:
        self._broker.receive(self.watched, revision, changes)

    def watched(self, revision: Revision, changes: tuple[tuple[Key, Item | None], ...]) -> None:
        """Apply an event from the watch unless it is known, because a resumed watch repeats events."""
        if revision > self.revision:
            self.apply(revision, changes)

    def apply(self, revision: Revision, changes: tuple[tuple[Key, Item | None], ...]) -> None:
        """Apply all changes before any decision is made."""
        self.revision = revision
        self._broker.mirrored([key for key, item in changes if self._set(key, item)])

    def _set(self, key: Key, item: Item | None) -> bool:
        """Set or delete one item, and return whether the item has changed."""
        kind, number = key
        table = self.tables[kind]
        before = table.get(number)
        if item is None:
            table.pop(number, None)
            return before is not None
        table[number] = item
        return before is None or before.mod_revision != item.mod_revision
