"""Keys of the store as groups use it, and the store itself: only brokers and topics are watched."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from fairlead_api.identifiers import Revision, TopicId
from simulator.schedule import Schedule
from simulator.store import Item, Key, Store

Change: TypeAlias = tuple[Key, Item | None, Item | None]
"""A key with what it held before and after."""
MIRRORED: Final = frozenset({"broker", "topic"})
"""Kinds of keys that every broker watches; what is below `groups/` only the coordinator reads."""


def topic_key(name: str) -> Key:
    """Return the key of a topic's shape."""
    return ("topic", name)


def coordinator_key(group: str) -> Key:
    """Return the key that says who coordinates a group."""
    return ("coordinator", group)


def state_key(group: str) -> Key:
    """Return the key of a group's state."""
    return ("state", group)


def target_key(group: str, topic_id: TopicId) -> Key:
    """Return the key of the target for one topic."""
    return ("target", group, topic_id)


def member_key(group: str, member_id: str) -> Key:
    """Return the key of a member's record."""
    return ("member", group, member_id)


def offsets_key(group: str, topic_id: TopicId, slot: int) -> Key:
    """Return the key of the offsets of up to 64 partitions of a topic."""
    return ("offsets", group, topic_id, slot)


class GroupStore(Store):
    """A store that tells the judge of every transaction as a whole, and watchers only of what is mirrored."""

    def __init__(self, schedule: Schedule, written: Callable[[list[Change]], None]) -> None:
        """Begin empty; `written` hears of the changes of each revision: key, before, after."""
        super().__init__(schedule)
        self._written = written
        self._changes: list[Change] = []
        self.changed.append(self._gather)

    def group_items(self, group: str) -> dict[Key, Item]:
        """Return everything of a group, as one list at one revision."""
        return {key: item for key, item in self.items.items() if key[0] not in MIRRORED and key[1] == group}

    def _gather(self, _: Revision, key: Key, before: Item | None, after: Item | None) -> None:
        self._changes.append((key, before, after))

    def _write(self, puts: Iterable[tuple[Key, Any, int | None]], deletes: Iterable[Key]) -> None:
        super()._write(puts, deletes)
        changes, self._changes = self._changes, []
        if changes:
            self._written(changes)

    def _notify(self, watcher: Any, event: tuple[Revision, tuple[tuple[Key, Item | None], ...]]) -> None:
        if any(key[0] in MIRRORED for key, _ in event[1]):
            super()._notify(watcher, event)
