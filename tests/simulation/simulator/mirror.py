"""A broker's picture of the store, and how it stays true: list, watch, and list again after every break."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead_api.identifiers import BrokerId, Revision
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import BrokerRegistration, PartitionRecord
from simulator.network import STORE
from simulator.store import CONTROLLER, Item, Key, Watch

if TYPE_CHECKING:
    from simulator.broker import Broker

AGAIN_SECONDS = 0.3


class Mirror:
    """What one process of a broker knows of the store."""

    def __init__(self, broker: Broker) -> None:
        """Know nothing."""
        self.revision = Revision(0)
        self.brokers: dict[BrokerId, Versioned[BrokerRegistration]] = {}
        self.partitions: dict[int, Versioned[PartitionRecord]] = {}
        self.controller: Item | None = None
        self._broker = broker
        self._watcher = (broker.number, broker.life)

    def list(self) -> None:
        """Read everything at one revision, then hear of what comes behind it."""
        broker = self._broker
        broker.world.store.unwatch(self._watcher)
        broker.ask_store(self._snapshot, self._listed)

    def close(self) -> None:
        """Hear nothing more."""
        self._broker.world.store.unwatch(self._watcher)

    def _snapshot(self) -> tuple[Revision, dict[Key, Item]]:
        store = self._broker.world.store
        return store.revision, dict(store.items)

    def _listed(self, answer: tuple[Revision, dict[Key, Item]] | None) -> None:
        if answer is None:
            self._broker.after(AGAIN_SECONDS, self.list)
            return
        revision, items = answer
        if revision >= self.revision:
            gone = [key for key in self._keys() if key not in items]
            self.apply(revision, (*((key, None) for key in gone), *items.items()))
        self.watch()

    def watch(self) -> None:
        """Hear of what comes behind the revision that is known."""
        watch = Watch(self._heard, self._lag, self._broken)
        self._broker.world.store.watch(self._watcher, watch, self.revision)

    def _keys(self) -> list[Key]:
        keys: list[Key] = [("broker", number) for number in self.brokers]
        keys.extend(("partition", number) for number in self.partitions)
        if self.controller is not None:
            keys.append(CONTROLLER)
        return keys

    def _lag(self) -> float | None:
        network = self._broker.world.network
        if (STORE, self._broker.number) in network.cut or not network.passes(STORE, self._broker.number):
            return None
        return network.delay() + max(0.0, self._broker.stalled_until - self._broker.world.now)

    def _broken(self) -> None:
        self._broker.after(AGAIN_SECONDS, self.resume)

    def resume(self) -> None:
        """Go on after a break: what was missed is found by listing anew (T19)."""
        self.list()

    def _heard(self, revision: Revision, changes: tuple[tuple[Key, Item | None], ...]) -> None:
        self._broker.receive(self.hear, revision, changes)

    def hear(self, revision: Revision, changes: tuple[tuple[Key, Item | None], ...]) -> None:
        """Take over an event of the watch; one that is known is told once more after a resume."""
        if revision > self.revision:
            self.apply(revision, changes)

    def apply(self, revision: Revision, changes: tuple[tuple[Key, Any], ...]) -> None:
        """Take over changes, all of them before anything is decided."""
        self.revision = revision
        brokers, partitions = False, []
        for (kind, number), item in changes:
            if kind == "broker":
                brokers |= _set(self.brokers, BrokerId(number), item)
            elif kind == "partition":
                if _set(self.partitions, number, item):
                    partitions.append(number)
            else:
                self.controller = item
        self._broker.mirrored(brokers, partitions)


def _set(table: dict[Any, Item], key: Any, item: Item | None) -> bool:
    before = table.get(key)
    if item is None:
        table.pop(key, None)
    else:
        table[key] = item
    return (before is None) != (item is None) or (
        before is not None and item is not None and before.mod_revision != item.mod_revision
    )
