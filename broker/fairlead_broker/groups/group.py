"""The state machine of one consumer group, which handles events and applies changes after they are written.

The coordinator's task passes all waiting events to `turn`, writes the returned change, calls `commit` when the
write is known to have succeeded, and sends the replies. If a write fails or its outcome is unknown, the
coordinator drops the group, and its next coordinator loads the group from the store. The state machine is
pure: the time is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final

from fairlead_api.identifiers import PartitionIndex, TimestampUs, TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.groups import rules
from fairlead_broker.groups.assignors import UNIFORM
from fairlead_broker.groups.changes import GroupChange, GroupRecords, MemberKey, TargetKey
from fairlead_broker.groups.holdings import as_partitions
from fairlead_broker.groups.membership import Consumed, consumed_after
from fairlead_broker.groups.messages import (
    GroupEvent,
    Heartbeat,
    HeartbeatReply,
    Partitions,
    Reply,
    Subscription,
    member_not_found,
)
from fairlead_broker.groups.pacing import KnownAssignments, Pacing, answered
from fairlead_broker.groups.roster import WrittenRoster
from fairlead_broker.groups.subscriptions import SubscribedTopics, Topics
from fairlead_broker.groups.targeting import empty_target
from fairlead_broker.groups.turning import GroupTurn
from fairlead_broker.registry.group_records import GroupRecord, MemberRecord

ASSIGNMENT_INTERVAL_SECONDS: Final = 1.0
"""Minimum seconds between two targets, so that a hundred members that join at once cause few computations."""


class GroupState(StrEnum):
    """State of a group."""

    EMPTY = "empty"
    """The group has no members, but may have committed offsets."""
    ASSIGNING = "assigning"
    """A new target must be computed."""
    RECONCILING = "reconciling"
    """Some members have yet to release or receive partitions."""
    STABLE = "stable"
    DEAD = "dead"
    """The coordination store has no records of the group."""


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member as described by its record."""

    member_id: str
    instance_id: str | None
    rack: str | None
    member_epoch: int
    topics: frozenset[str]
    """Names of the existing topics that the member consumes, by name or by pattern."""
    topic_pattern: str | None
    assigned: Partitions
    revoking: Partitions
    target: Partitions


@dataclass(frozen=True, slots=True)
class Turn:
    """Result of `Group.turn`: the change to write, and the replies to the events."""

    change: GroupChange | None
    """Change to be written and then committed, or None if the replies can be sent immediately."""
    replies: tuple[Reply, ...]
    """Replies to the events, in the same order."""
    now: float
    """Time of the decision, in monotonic seconds."""


class Group:
    """State machine of one group.

    `turn` makes decisions without changing the written records; `commit` applies a written change.
    """

    __slots__ = (
        "_known",
        "_must_look",
        "_pacing",
        "_quiet_until",
        "_resting",
        "_roster",
        "_subscribed",
        "_target_made_at",
        "_undecided",
        "name",
    )

    def __init__(self, name: str, records: GroupRecords, now: float) -> None:
        self.name = name
        self._roster = WrittenRoster(records)
        self._subscribed = SubscribedTopics()
        self._pacing = Pacing(self._roster.members, now)
        self._target_made_at = -inf
        self._known = KnownAssignments()
        self._resting: set[str] = set()
        """Members known to have exactly their target partitions. If the target or record of a member changes, the
        member is removed from this set.
        """
        self._undecided: Turn | None = None
        """Turn whose change may be in the store, but has not been committed."""
        self._must_look = True
        """Whether topics may have changed since the last written turn."""
        self._quiet_until = -inf
        """Time before which no decision is due. A heartbeat of a settled member never makes a decision due earlier."""

    def rest(self, interval_ms: int) -> None:
        """Set the heartbeat interval of settled members, in milliseconds (see `pacing.rest_interval_ms`)."""
        self._pacing.rest_ms = interval_ms

    # -- deciding

    def turn(self, events: Sequence[GroupEvent], topics: Topics, now: float, now_us: int) -> Turn:
        """Handle the events in order, then expired sessions and rebalance timeouts; then compute a due target.

        `now` is in monotonic seconds, `now_us` in microseconds since the Unix epoch. If the change of a turn was
        definitely not written, the turn may be dropped, because the next turn decides again.
        """
        replies = [self.reply_at_rest(event, topics, now) for event in events]
        if not self._asks_for_decision(topics, now) and None not in replies:
            return Turn(None, tuple(reply for reply in replies if reply is not None), now)
        self._must_look |= self._subscribed.learn(topics)
        self._quiet_until = -inf
        turning = GroupTurn(self.name, self._roster, self._subscribed, self._pacing, self._known, now)
        decided = turning.decide(events, now_us, may_target=now >= self._next_target_at())
        return self._expect(Turn(turning.change(), decided, now))

    def reply_at_rest(self, event: GroupEvent, topics: Topics, now: float) -> HeartbeatReply | None:
        """Return the reply to an unchanged heartbeat of a settled member, or None if the event requires a turn.

        Nearly all heartbeats are unchanged, so the method must be cheap. The method may be called at any time, even
        while a turn is being written, and changes nothing but the member's session deadline.
        """
        if not isinstance(event, Heartbeat) or self._asks_for_decision(topics, now):
            return None
        record = self._record_at_rest(event)
        if record is None:
            return None
        self._pacing.on_heartbeat(event.member_id, record, now)
        self._known.note(event, record)
        interval = self._pacing.interval_ms(event.member_id, record, now, hasty=self._awaits_target)
        return answered(record, interval, full=self._known.needs_assignment(event, record))

    def founding(self, now: float, now_us: int) -> Turn:
        """Create a group without members, unless it exists, for offset commits by clients that are not members."""
        tentative = self._roster.copy()
        if tentative.group is None:
            time = TimestampUs(now_us)
            tentative.group = GroupRecord(epoch=0, assignor=UNIFORM, emptied_us=time, created_us=time)
        return self._expect(Turn(tentative.difference(self._roster), (), now))

    def emptying(self, now: float, now_us: int) -> Turn:
        """Restart the retention time of a group whose last member of the classic protocol has left.

        A group that does not exist, or that has members, is not changed.
        """
        tentative = self._roster.copy()
        if tentative.group is not None and not tentative.members:
            tentative.group = empty_target(tentative.group, now_us)
        return self._expect(Turn(tentative.difference(self._roster), (), now))

    def dissolution(self, now: float) -> Turn:
        """Delete a group without members, but not its committed offsets. Raises `group_not_empty`."""
        self.check_empty()
        tentative = self._roster.copy()
        tentative.group = None
        tentative.replace_targets({})
        return self._expect(Turn(tentative.difference(self._roster), (), now))

    def commit(self, turn: Turn) -> None:
        """Apply the change of the last turn. The change must be known to be stored."""
        assert turn.change is not None, "a turn without a change needs no commit"
        assert turn is self._undecided, f"group {self.name} commits a turn that is not its last turn"
        self._undecided = None
        self._must_look = False
        self._quiet_until = -inf
        target_epoch = self._target_epoch
        keys = turn.change.puts.keys() | turn.change.deletes
        member_ids = [key.member_id for key in keys if isinstance(key, MemberKey)]
        before = {member_id: self._roster.members.get(member_id) for member_id in member_ids}
        self._roster.apply(turn.change)
        for member_id in member_ids:
            self._replay_member(member_id, before[member_id], turn.now)
        if any(isinstance(key, TargetKey) for key in keys) or self._target_epoch != target_epoch:
            self._resting.clear()
        if self._target_epoch != target_epoch:
            self._target_made_at = turn.now if self._roster.members else -inf

    def deadline(self) -> float | None:
        """Return the monotonic time at which a turn is due even if no event arrives, or None if no turn is due."""
        ends_at = self._next_end()
        return None if ends_at == inf else ends_at

    # -- reading

    @property
    def state(self) -> GroupState:
        """State of the group according to its written records."""
        if self._roster.group is None:
            return GroupState.DEAD
        if not self._roster.members:
            return GroupState.EMPTY
        if self._awaits_target:
            return GroupState.ASSIGNING
        rest = all(self._roster.at_rest(*each) for each in self._roster.members.items())
        return GroupState.STABLE if rest else GroupState.RECONCILING

    @property
    def epoch(self) -> int:
        """Group epoch, or 0 for a dead group."""
        return 0 if self._roster.group is None else self._roster.group.epoch

    @property
    def assignor(self) -> str:
        """Name of the assignor that computed the target."""
        return UNIFORM if self._roster.group is None else self._roster.group.assignor

    @property
    def emptied_us(self) -> TimestampUs | None:
        """Time at which the last member of either protocol left, or None for a group with members and for a dead group.

        While a group has members of the classic protocol, this is an earlier time.
        """
        return None if self._roster.group is None else self._roster.group.emptied_us

    @property
    def member_count(self) -> int:
        """Number of members, including static members that have left and may return."""
        return len(self._roster.members)

    @property
    def members(self) -> Mapping[str, MemberView]:
        """All members by id, in a mapping that is built at each call."""
        return {
            member_id: self._view(member_id, record) for member_id, record in self._roster.members.items()
        }

    def owner(self, topic_id: TopicId, partition: PartitionIndex) -> str | None:
        """Return the member that owns a partition, even if the member must release it."""
        return self._roster.owners.get((topic_id, partition))

    def consumed(self, member_id: str, change: Subscription | None = None) -> Consumed | None:
        """Return the topic names and the topic pattern of a member, after a change by a heartbeat that is not a join.

        Returns None for an unknown member.
        """
        record = self._roster.members.get(member_id)
        return None if record is None else consumed_after(record, change)

    def check_empty(self) -> None:
        """Raise `group_not_empty` if the group has members. Offsets in use cannot be reset or deleted."""
        if self._roster.members:
            detail = f"group {self.name} has {len(self._roster.members)} members"
            raise ProblemError("group_not_empty", detail, data={"group": self.name})

    def check_commit(self, member_id: str | None, member_epoch: int, principal: str | None = None) -> None:
        """Check that an offset commit comes from a member at this epoch that belongs to the caller `principal`.

        Epoch -1, which means that the caller is not a member, is accepted only in a group without members. Raises
        `member_not_found`, `stale_member_epoch`, `member_fenced`, `group_not_empty` or `forbidden`.
        """
        if member_id is None or member_epoch < 0:
            self.check_empty()
            return
        record = self._roster.members.get(member_id)
        if record is None:
            raise member_not_found(self.name, member_id)
        rules.check_principal(self.name, member_id, record, principal)
        rules.check_commit_epoch(member_id, record, member_epoch)

    def check_committed_partition(
        self, member_id: str | None, topic_id: TopicId, partition: PartitionIndex
    ) -> None:
        """Raise `member_fenced` unless the member owns the partitions for which it commits offsets."""
        if member_id is None or not self._roster.members:
            return
        if not rules.may_commit_partition((topic_id, partition), member_id, self._roster.owners):
            detail = f"partition {topic_id}/{partition} is not assigned to member {member_id}"
            raise ProblemError("member_fenced", detail, data={"member_id": member_id})

    # -- inside

    @property
    def _target_epoch(self) -> int:
        return 0 if self._roster.group is None else self._roster.group.target_epoch

    @property
    def _awaits_target(self) -> bool:
        return bool(self._roster.members) and self.epoch != self._target_epoch

    def _next_end(self) -> float:
        target_at = self._next_target_at() if self._awaits_target else inf
        return min(self._pacing.next_end(), target_at)

    def _next_target_at(self) -> float:
        """Return the earliest time at which the next target assignment may be computed."""
        return self._target_made_at + ASSIGNMENT_INTERVAL_SECONDS

    def _asks_for_decision(self, topics: Topics, now: float) -> bool:
        """Return whether the group must decide something although no event has arrived."""
        if self._must_look or topics is not self._subscribed.topics:
            return True
        if now < self._quiet_until:
            return False
        self._quiet_until = self._next_end()
        return self._quiet_until <= now

    def _record_at_rest(self, event: Heartbeat) -> MemberRecord | None:
        record = self._roster.members.get(event.member_id)
        if record is None or event.member_epoch != record.epoch or event.subscription is not None:
            return None
        if event.principal not in (None, record.principal):
            # Only a turn may refuse a different principal, or store the principal of a member that has none.
            return None
        if event.member_id not in self._resting:
            if event.member_epoch <= 0 or not self._roster.at_rest(event.member_id, record):
                return None
            self._resting.add(event.member_id)
        return record

    def _replay_member(self, member_id: str, before: MemberRecord | None, now: float) -> None:
        """Apply a written or deleted member record."""
        record = self._roster.members.get(member_id)
        self._resting.discard(member_id)
        if record is None or before is None or record.assigned != before.assigned:
            self._known.forget(member_id)
        self._pacing.note(member_id, record, None if before is None else before.revoking, now)

    def _expect(self, turn: Turn) -> Turn:
        self._undecided = turn
        if turn.change is None:
            self._must_look = False
        return turn

    def _view(self, member_id: str, record: MemberRecord) -> MemberView:
        return MemberView(
            member_id=member_id,
            instance_id=record.instance_id,
            rack=record.rack,
            member_epoch=record.epoch,
            topics=self._subscribed.resolve(record.topics, record.topic_pattern),
            topic_pattern=record.topic_pattern,
            assigned=as_partitions(record.assigned),
            revoking=as_partitions(record.revoking),
            target=as_partitions(self._roster.target_of(member_id)),
        )
