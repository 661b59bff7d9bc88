"""The change that a turn asks to be written, and the form in which a group is loaded.

A partition is granted only if it is free in the records that are already written (`rules.is_free`). So every part of a
change is legal without the others, in any order. The state record comes last, and a group that finds records ahead of
its state record continues above their epochs.
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
    """`state` of the group: a `GroupRecord`."""


@dataclass(frozen=True, slots=True)
class TargetKey:
    """`targets/<topic id>`: a `TargetRecord`."""

    topic_id: TopicId


@dataclass(frozen=True, slots=True)
class MemberKey:
    """`members/<m>`: a `MemberRecord`."""

    member_id: str


GroupKey: TypeAlias = StateKey | TargetKey | MemberKey
GroupValue: TypeAlias = GroupRecord | TargetRecord | MemberRecord


@dataclass(frozen=True, slots=True)
class GroupRecords:
    """A group as it was found in the store; all parts are empty for a group that does not exist."""

    state: GroupRecord | None = None
    targets: Mapping[TopicId, TargetRecord] = field(default_factory=dict)
    members: Mapping[str, MemberRecord] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupChange:
    """Records to be put and keys to be deleted; no key is in both."""

    puts: Mapping[GroupKey, GroupValue]
    deletes: frozenset[GroupKey]

    def __len__(self) -> int:
        return len(self.puts) + len(self.deletes)

    def portions(self, limit: int) -> Iterator[GroupChange]:
        """Divide into changes of at most `limit` keys, to be written one after the other; usually there is one.

        Removed members come first, then the records of other members, then the target, and the state record last.
        """
        keys = iter(sorted(self.puts.keys() | self.deletes, key=self._rank))
        while portion := list(islice(keys, limit)):
            puts = {key: self.puts[key] for key in portion if key in self.puts}
            yield GroupChange(puts, frozenset(key for key in portion if key in self.deletes))

    def _rank(self, key: GroupKey) -> tuple[int, str]:
        if isinstance(key, MemberKey):
            return int(key in self.puts), key.member_id
        return (2, key.topic_id) if isinstance(key, TargetKey) else (3, "")
