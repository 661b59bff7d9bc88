"""Conditions for a new target of a group, and the computation of the target.

A target covers every partition of every consumed topic. A coordinator can therefore detect added, deleted and
grown topics by comparing the topics with the target, even directly after taking over the group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from fairlead_api.identifiers import TimestampUs, TopicId
from fairlead_broker.groups.assignors import UNIFORM, Candidate, assign
from fairlead_broker.groups.roster import Roster
from fairlead_broker.groups.subscriptions import SubscribedTopics, TopicShape
from fairlead_broker.registry.group_records import GroupRecord, MemberRecord, TargetRecord


def consumed_topics(roster: Roster, subscribed: SubscribedTopics) -> dict[TopicId, TopicShape]:
    """Return the topics that the group's members consume."""
    subscriptions = {(each.topics, each.topic_pattern) for each in roster.members.values()}
    shapes = (subscribed.topics[name] for each in subscriptions for name in subscribed.resolve(*each))
    return {shape.topic_id: shape for shape in shapes}


def covers(
    targets: Mapping[TopicId, TargetRecord],
    topics: Mapping[TopicId, TopicShape],
    members: Mapping[str, MemberRecord],
) -> bool:
    """Return whether a target covers these topics at their current partition counts, and names only these members.

    A target names other members if a change that replaced a static member was only partly written.
    """
    if not all(members.keys() >= record.members.keys() for record in targets.values()):
        return False
    return {topic_id: sum(map(len, record.members.values())) for topic_id, record in targets.items()} == {
        topic_id: shape.partitions for topic_id, shape in topics.items()
    }


def raise_epoch(group: GroupRecord | None, ahead: int, now_us: int) -> GroupRecord:
    """Return the state record of a group with members, with an epoch above all epochs in the group's records."""
    if group is None:
        return GroupRecord(epoch=ahead + 1, assignor=UNIFORM, created_us=TimestampUs(now_us))
    return msgspec.structs.replace(group, epoch=max(group.epoch, ahead) + 1, emptied_us=None)


def empty_target(group: GroupRecord, now_us: int) -> GroupRecord:
    """Return the state record of a group without members, with an empty target and the start of its retention time."""
    return msgspec.structs.replace(group, target_epoch=group.epoch, emptied_us=TimestampUs(now_us))


def compute_target(roster: Roster, group: GroupRecord, subscribed: SubscribedTopics) -> None:
    """Compute the target of a roster with members for the epoch of `group`."""
    assignor = preferred_assignor(roster.members)
    topics = consumed_topics(roster, subscribed)
    target = assign(
        assignor,
        {member_id: _candidate(record, subscribed) for member_id, record in roster.members.items()},
        topics,
        {topic_id: record.members for topic_id, record in roster.targets.items()},
    )
    targets: dict[TopicId, TargetRecord] = {}
    for topic_id, by_member in target.items():
        members = {member_id: tuple(partitions) for member_id, partitions in by_member.items()}
        before = roster.targets.get(topic_id)
        # If the target of a topic is unchanged, its record object is kept, so that the record is not written again.
        if before is not None and before.members == members:
            targets[topic_id] = before
        else:
            targets[topic_id] = TargetRecord(epoch=group.epoch, members=members)
    roster.replace_targets(targets)
    roster.group = msgspec.structs.replace(group, target_epoch=group.epoch, assignor=assignor)


def preferred_assignor(members: Mapping[str, MemberRecord]) -> str:
    """Return the assignor that most members request, the first by name in a tie, or `uniform` if none is requested."""
    asked = Counter(record.assignor for record in members.values() if record.assignor is not None)
    return min(asked, key=lambda name: (-asked[name], name), default=UNIFORM)


def _candidate(record: MemberRecord, subscribed: SubscribedTopics) -> Candidate:
    names = subscribed.resolve(record.topics, record.topic_pattern)
    topic_ids = frozenset(subscribed.topics[name].topic_id for name in names)
    return Candidate(topic_ids, record.rack, record.instance_id)
