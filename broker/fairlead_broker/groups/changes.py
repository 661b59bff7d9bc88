"""The change that a turn writes to the store, and the records of a group as loaded from the store.

A partition is granted only if it is free in the stored records (`rules.is_free`). A change can therefore be written in
several transactions, each of which leaves valid records. The state record is written last. If other records of a group
have higher epochs than its state record, the group continues above these epochs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

from fairlead_api.identifiers import TopicId
from fairlead_broker.registry.group_records import GroupRecord, MemberRecord, TargetRecord


@dataclass(frozen=True, slots=True)
class StateKey:
    """Key `state` of the group, with a `GroupRecord`."""


@dataclass(frozen=True, slots=True)
class TargetKey:
    """Key `targets/<topic id>` of the group, with a `TargetRecord`."""

    topic_id: TopicId


@dataclass(frozen=True, slots=True)
class MemberKey:
    """Key `members/<member id>` of the group, with a `MemberRecord`."""

    member_id: str


GroupKey: TypeAlias = StateKey | TargetKey | MemberKey
GroupValue: TypeAlias = GroupRecord | TargetRecord | MemberRecord


@dataclass(frozen=True, slots=True)
class GroupRecords:
    """Records of a group as loaded from the store. The fields are empty if the group does not exist."""

    state: GroupRecord | None = None
    targets: Mapping[TopicId, TargetRecord] = field(default_factory=dict)
    members: Mapping[str, MemberRecord] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupChange:
    """Records to be put and keys to be deleted. No key is both put and deleted."""

    puts: Mapping[GroupKey, GroupValue]
    deletes: frozenset[GroupKey]

    def __len__(self) -> int:
        return len(self.puts) + len(self.deletes)

    def portions(self, limit: int) -> Iterator[GroupChange]:
        """Divide the change into parts of at most `limit` keys, to be written in this order.

        Most changes fit into one part, which is written in one transaction.

        The order of the keys is: removed members, records of other members, the target, the state record.
        """
        keys = iter(sorted(self.puts.keys() | self.deletes, key=self._rank))
        while portion := list(islice(keys, limit)):
            puts = {key: self.puts[key] for key in portion if key in self.puts}
            yield GroupChange(puts, frozenset(key for key in portion if key in self.deletes))

    def _rank(self, key: GroupKey) -> tuple[int, str]:
        if isinstance(key, MemberKey):
            return int(key in self.puts), key.member_id
        return (2, key.topic_id) if isinstance(key, TargetKey) else (3, "")
