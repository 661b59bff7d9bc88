"""Keys of classic groups in the store, in addition to those of `groups.keys`."""

from __future__ import annotations

from simulator.store import Key


def group_key(group: str) -> Key:
    """Return the key of a group's generation."""
    return ("classic", group)


def member_key(group: str, member_id: str) -> Key:
    """Return the key of a member."""
    return ("classic member", group, member_id)
