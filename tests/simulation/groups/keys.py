"""Keys of groups in the store."""

from __future__ import annotations

from typing import Final

from fairlead_api.identifiers import TopicId
from fairlead_broker.groups import GroupKey, MemberKey, StateKey, TargetKey
from simulator.store import Item, Key, Store

MIRRORED: Final = frozenset({"broker", "topic"})
"""Kinds of keys that every broker watches, without keys of groups, which only their coordinators read."""


def topic_key(name: str) -> Key:
    """Return the key of a topic's id and partitions."""
    return ("topic", name)


def coordinator_key(group: str) -> Key:
    """Return the key that names the coordinator of a group."""
    return ("coordinator", group)


def offsets_key(group: str, topic_id: TopicId, slot: int) -> Key:
    """Return the key of the committed offsets for up to 64 partitions of a topic."""
    return ("offsets", group, topic_id, slot)


def key_of(group: str, key: GroupKey) -> Key:
    """Return the key of a record of the package `fairlead_broker.groups`."""
    match key:
        case StateKey():
            return ("state", group)
        case TargetKey(topic_id):
            return ("target", group, topic_id)
        case MemberKey(member_id):
            return ("member", group, member_id)


def group_items(store: Store, group: str) -> dict[Key, Item]:
    """Return all keys of a group as one list at one revision."""
    return {key: item for key, item in store.items.items() if key[0] not in MIRRORED and key[1] == group}
