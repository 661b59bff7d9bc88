"""A broker's picture of brokers and topics, kept true as the other simulator keeps it: list, watch, list again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead_api.identifiers import BrokerId, Revision
from fairlead_broker.groups import TopicShape
from groups.keys import MIRRORED, topic_key
from simulator.mirror import Mirror
from simulator.store import Item, Key, broker_key

if TYPE_CHECKING:
    from groups.broker import Broker


class GroupMirror(Mirror):
    """What one process of a broker knows: who is registered, and which topics there are."""

    def __init__(self, broker: Broker) -> None:
        """Know nothing."""
        super().__init__(broker)  # type: ignore[arg-type]
        self.topics: dict[str, TopicShape] = {}
        """Replaced, not changed, so that a turn may keep what it saw."""

    def _snapshot(self) -> tuple[Revision, dict[Key, Item]]:
        revision, items = super()._snapshot()
        return revision, {key: item for key, item in items.items() if key[0] in MIRRORED}

    def _keys(self) -> list[Key]:
        return [*map(broker_key, self.brokers), *map(topic_key, self.topics)]

    def apply(self, revision: Revision, changes: tuple[tuple[Key, Any], ...]) -> None:
        """Take over changes, all of them before anything is decided."""
        self.revision = revision
        topics = dict(self.topics)
        for key, item in changes:
            if key[0] == "broker":
                if item is None:
                    self.brokers.pop(BrokerId(key[1]), None)
                else:
                    self.brokers[BrokerId(key[1])] = item
            elif key[0] == "topic":
                if item is None:
                    topics.pop(key[1], None)
                else:
                    topics[key[1]] = item.value
        changed = topics != self.topics
        if changed:
            self.topics = topics
        self._broker.mirrored(changed)  # type: ignore[call-arg]
