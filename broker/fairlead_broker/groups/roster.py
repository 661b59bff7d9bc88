"""A group's records and the facts derived from them: members, targets, and owners of partitions.

Two rosters are in use: the written roster, which only `apply` changes, and the tentative copy of a turn. A turn
writes the difference between the two rosters, and no decision of a turn is visible before the write succeeds.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead_api.identifiers import TopicId
from fairlead_broker.groups.assignors import Place
from fairlead_broker.groups.changes import (
    GroupChange,
    GroupKey,
    GroupRecords,
    GroupValue,
    MemberKey,
    StateKey,
    TargetKey,
)
from fairlead_broker.groups.holdings import Holding
from fairlead_broker.groups.messages import AWAY_EPOCH
from fairlead_broker.registry.group_records import GroupRecord, MemberRecord, TargetRecord


class Roster:
    """Members and target of a group."""

    __slots__ = ("_target_of", "group", "instances", "members", "targets")

    def __init__(self, records: GroupRecords) -> None:
        self.group: GroupRecord | None = records.state
        self.members: dict[str, MemberRecord] = dict(records.members)
        self.targets: dict[TopicId, TargetRecord] = dict(records.targets)
        self.instances: dict[str, str] = {}
        """Member ids of static members, by instance id."""
        for member_id, record in records.members.items():
            if record.instance_id is not None:
                self.instances[record.instance_id] = member_id
        self._target_of: dict[str, Holding] | None = None

    def copy(self) -> Roster:
        """Return an independent copy of this roster."""
        copied = Roster(GroupRecords())
        copied.group, copied.members, copied.targets = self.group, dict(self.members), dict(self.targets)
        copied.instances, copied._target_of = dict(self.instances), self._target_of  # same class
        return copied

    # -- reading

    def target_of(self, member_id: str) -> Holding:
        """Return the target partitions of a member."""
        if self._target_of is None:
            self._target_of = {}
            for topic_id, record in self.targets.items():
                for each, partitions in record.members.items():
                    self._target_of.setdefault(each, {})[topic_id] = partitions
        return self._target_of.get(member_id, {})

    def at_rest(self, member_id: str, record: MemberRecord) -> bool:
        """Return whether a member has exactly its target partitions, or is a static member that has left."""
        assert self.group is not None, "a group with members has a record"
        if record.epoch == AWAY_EPOCH:
            return True
        return (
            record.epoch == self.group.target_epoch
            and not record.revoking
            and record.assigned == self.target_of(member_id)
        )

    def epoch_ahead(self) -> int:
        """Return the highest epoch of targets and members, which is above the group's epoch after a partial write."""
        targets = (record.epoch for record in self.targets.values())
        members = (record.epoch for record in self.members.values())
        return max((0, *targets, *members))

    def difference(self, before: Roster) -> GroupChange | None:
        """Return the change from another roster to this roster, or None if the rosters are equal."""
        puts: dict[GroupKey, GroupValue] = {}
        deletes: set[GroupKey] = set()
        for member_id, member in self.members.items():
            if member is not before.members.get(member_id):
                puts[MemberKey(member_id)] = member
        for topic_id, target in self.targets.items():
            if target is not before.targets.get(topic_id):
                puts[TargetKey(topic_id)] = target
        if self.group is None:
            if before.group is not None:
                deletes.add(StateKey())
        elif self.group is not before.group:
            puts[StateKey()] = self.group
        deletes.update(MemberKey(member_id) for member_id in before.members.keys() - self.members.keys())
        deletes.update(TargetKey(topic_id) for topic_id in before.targets.keys() - self.targets.keys())
        return GroupChange(puts, frozenset(deletes)) if puts or deletes else None

    # -- changing

    def put_member(self, member_id: str, record: MemberRecord) -> None:
        """Set the record of a member, unless the record is unchanged."""
        if self.members.get(member_id) != record:
            self.members[member_id] = record
            if record.instance_id is not None:
                self.instances[record.instance_id] = member_id

    def remove_member(self, member_id: str) -> None:
        """Remove a member. The member's partitions remain in the target until the next target is computed."""
        record = self.members.pop(member_id)
        if record.instance_id is not None and self.instances.get(record.instance_id) == member_id:
            del self.instances[record.instance_id]

    def replace_targets(self, targets: Mapping[TopicId, TargetRecord]) -> None:
        """Replace the targets of all members."""
        self.targets = dict(targets)
        self._target_of = None


class WrittenRoster(Roster):
    """Roster of the stored records, with the owner of every partition."""

    __slots__ = ("owners",)

    def __init__(self, records: GroupRecords) -> None:
        super().__init__(records)
        self.owners: dict[Place, str] = {}
        """Owner of each partition that is assigned to a member or that a member must still release."""
        for member_id, record in self.members.items():
            self._own(member_id, record)

    def apply(self, change: GroupChange) -> None:
        """Apply a written change."""
        for key in change.puts.keys() | change.deletes:
            if isinstance(key, MemberKey) and key.member_id in self.members:
                self._disown(key.member_id)
        for key in change.deletes:
            self._delete(key)
        for key, value in change.puts.items():
            self._put(key, value)

    def _delete(self, key: GroupKey) -> None:
        if isinstance(key, MemberKey):
            self.remove_member(key.member_id)
        elif isinstance(key, TargetKey):
            del self.targets[key.topic_id]
            self._target_of = None
        else:
            self.group = None

    def _put(self, key: GroupKey, value: GroupValue) -> None:
        match key, value:
            case StateKey(), GroupRecord():
                self.group = value
            case TargetKey(topic_id), TargetRecord():
                self.targets[topic_id] = value
                self._target_of = None
            case MemberKey(member_id), MemberRecord():
                self.put_member(member_id, value)
                self._own(member_id, value)
            case _:
                message = f"the value of {key} is a {type(value).__name__}"
                raise AssertionError(message)

    def _own(self, member_id: str, record: MemberRecord) -> None:
        for holding in (record.assigned, record.revoking):
            for topic_id, partitions in holding.items():
                for partition in partitions:
                    owner = self.owners.setdefault((topic_id, partition), member_id)
                    assert owner == member_id, f"{topic_id}/{partition} of {owner} was granted to {member_id}"

    def _disown(self, member_id: str) -> None:
        record = self.members[member_id]
        for holding in (record.assigned, record.revoking):
            for topic_id, partitions in holding.items():
                for partition in partitions:
                    del self.owners[topic_id, partition]
