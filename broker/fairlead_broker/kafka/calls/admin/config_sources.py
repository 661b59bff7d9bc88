"""Entries of configurations with Kafka's numbers for sources and types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from fairlead_api.configuration import KEYS, ConfigEntry, ConfigSource, ConfigType

DEFAULT_SOURCE: Final = 5
SOURCES: Final[Mapping[ConfigSource, int]] = {
    ConfigSource.TOPIC: 1,
    ConfigSource.BROKER: 2,
    ConfigSource.CLUSTER: 3,
    ConfigSource.DEFAULT: DEFAULT_SOURCE,
}
"""Number of each source from which a value can come, as Kafka's clients see it."""
TYPES: Final[Mapping[ConfigType, int]] = {
    ConfigType.BOOLEAN: 1,
    ConfigType.STRING: 2,
    ConfigType.INT: 3,
    ConfigType.LONG: 5,
    ConfigType.DOUBLE: 6,
}
LIST_TYPE: Final = 7
LIST_KEYS: Final = frozenset({"cleanup.policy"})
"""Keys whose value is a list, to which clients can add elements."""


def type_of(name: str) -> int:
    """Return Kafka's number for the type of a key."""
    return LIST_TYPE if name in LIST_KEYS else TYPES[KEYS[name].type]


def is_read_only(name: str) -> bool:
    """Return whether a key is read only when a broker starts."""
    return not KEYS[name].dynamic


def shown_entries(entries: Mapping[str, ConfigEntry]) -> Iterator[tuple[str, ConfigEntry]]:
    """Yield the entries by name, without the keys that have no meaning for the topic."""
    return ((name, entry) for name, entry in sorted(entries.items()) if entry.source in SOURCES)
