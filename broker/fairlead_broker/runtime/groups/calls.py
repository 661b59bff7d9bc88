"""Conversion of group requests to events, and of the state machine's replies to answers.

Used by `groups`. The module has no state and makes no decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import UNSET

from fairlead_api.bodies.group_answers import (
    AssignedPartitions,
    CommittedOffset,
    GroupDescription,
    HeartbeatAnswer,
    MemberDescription,
)
from fairlead_api.bodies.group_requests import (
    REBALANCE_TIMEOUT_MS_DEFAULT,
    SESSION_TIMEOUT_MS_DEFAULT,
    HeartbeatRequest,
)
from fairlead_api.identifiers import BrokerId, TopicId
from fairlead_api.timestamps import format_timestamp
from fairlead_broker.groups import Group, Heartbeat, HeartbeatReply, MemberView, Partitions, Subscription
from fairlead_broker.registry.group_records import OffsetEntry

TopicName = Callable[[TopicId], str | None]
"""Function that returns the name of an existing topic; None if the topic does not exist."""


def heartbeat_event(member_id: str, request: HeartbeatRequest, principal: str | None = None) -> Heartbeat:
    """Return the event for a member's heartbeat request."""
    owned = None
    if request.owned is not UNSET:
        owned = {TopicId(each.topic_id): frozenset(each.partitions) for each in request.owned}
    return Heartbeat(member_id, request.member_epoch, _subscription(request), owned, principal)


def _subscription(request: HeartbeatRequest) -> Subscription | None:
    """Return the subscription fields that a heartbeat changes; None if the heartbeat changes no field.

    A null in the request stands for the default. In the event, an empty string clears a field, and None leaves the
    field unchanged.
    """
    subscription = Subscription(
        topics=None if request.topics is UNSET else frozenset(request.topics or ()),
        pattern=None if request.topic_pattern is UNSET else request.topic_pattern or "",
        instance_id=request.instance_id or None,
        rack=None if request.rack is UNSET else request.rack or "",
        assignor=None if request.assignor is UNSET else request.assignor or "",
        session_timeout_ms=(
            None
            if request.session_timeout_ms is UNSET
            else request.session_timeout_ms or SESSION_TIMEOUT_MS_DEFAULT
        ),
        rebalance_timeout_ms=(
            None
            if request.rebalance_timeout_ms is UNSET
            else request.rebalance_timeout_ms or REBALANCE_TIMEOUT_MS_DEFAULT
        ),
    )
    return None if subscription == _UNCHANGED and not request.joins else subscription


_UNCHANGED = Subscription()


def heartbeat_answer(reply: HeartbeatReply, name_of: TopicName) -> HeartbeatAnswer:
    """Return the answer to a heartbeat from the group's reply."""
    return HeartbeatAnswer(
        member_epoch=reply.member_epoch,
        heartbeat_interval_ms=reply.heartbeat_interval_ms,
        session_timeout_ms=reply.session_timeout_ms,
        assignment=None if reply.assignment is None else assigned(reply.assignment, name_of),
    )


def assigned(partitions: Partitions, name_of: TopicName) -> list[AssignedPartitions]:
    """Return assigned partitions by topic, without topics that no longer exist."""
    found = (
        AssignedPartitions(topic=name, topic_id=topic_id, partitions=sorted(indexes))
        for topic_id, indexes in partitions.items()
        if indexes and (name := name_of(topic_id)) is not None
    )
    return sorted(found, key=lambda each: each.topic)


def description(group: str, state: Group, coordinator: BrokerId, name_of: TopicName) -> GroupDescription:
    """Return the description of a group and all its members."""
    return GroupDescription(
        group=group,
        state=state.state.value.lower(),  # type: ignore[arg-type]
        epoch=state.epoch,
        assignor=state.assignor,
        coordinator=coordinator,
        members=[_member(view, name_of) for _, view in sorted(state.members.items())],
    )


def _member(view: MemberView, name_of: TopicName) -> MemberDescription:
    return MemberDescription(
        member_id=view.member_id,
        instance_id=view.instance_id,
        member_epoch=view.member_epoch,
        topics=sorted(view.topics),
        topic_pattern=view.topic_pattern,
        rack=view.rack,
        assignment=assigned(view.assigned, name_of),
        revoking=assigned(view.revoking, name_of),
        target=assigned(view.target, name_of),
    )


def committed(entries: Iterable[tuple[TopicId, OffsetEntry]], name_of: TopicName) -> list[CommittedOffset]:
    """Return committed offsets by topic and partition, without topics that no longer exist."""
    found = (
        CommittedOffset(
            topic=name,
            topic_id=topic_id,
            partition=entry.partition,
            offset=entry.offset,
            leader_epoch=entry.leader_epoch,
            metadata=entry.metadata,
            committed_at=format_timestamp(entry.committed_us),
        )
        for topic_id, entry in entries
        if (name := name_of(topic_id)) is not None
    )
    return sorted(found, key=lambda each: (each.topic, each.partition))
