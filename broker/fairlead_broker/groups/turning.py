"""One turn of a group on a tentative roster: admission, timeouts, target, and then the next step of each member.

All events are admitted before the target is computed, so that a hundred joins cause only one target, which can
assign released partitions to other members.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead_api.problems import ProblemError
from fairlead_broker.groups import rules
from fairlead_broker.groups.assignors import Place
from fairlead_broker.groups.changes import GroupChange
from fairlead_broker.groups.holdings import Holding, common, together, without
from fairlead_broker.groups.membership import Membership
from fairlead_broker.groups.messages import (
    GroupEvent,
    Heartbeat,
    Leave,
    Left,
    Reply,
)
from fairlead_broker.groups.pacing import KnownAssignments, Pacing, answered
from fairlead_broker.groups.reconciliation import note_release, reconcile
from fairlead_broker.groups.roster import WrittenRoster
from fairlead_broker.groups.subscriptions import SubscribedTopics
from fairlead_broker.groups.targeting import (
    compute_target,
    consumed_topics,
    covers,
    empty_target,
    raise_epoch,
)
from fairlead_broker.registry.group_records import MemberRecord


class GroupTurn:
    """One turn of a group. After `decide`, `change` returns the change that the caller must write."""

    __slots__ = ("_granted", "_known", "_membership", "_now", "_pacing", "_roster", "_subscribed", "_written")

    def __init__(
        self,
        name: str,
        written: WrittenRoster,
        subscribed: SubscribedTopics,
        pacing: Pacing,
        known: KnownAssignments,
        now: float,
    ) -> None:
        self._known = known
        self._written = written
        self._roster = written.copy()
        self._subscribed = subscribed
        self._pacing = pacing
        self._now = now
        self._membership = Membership(name, self._roster, subscribed, self._heartbeats_missed)
        self._granted: dict[Place, str] = {}
        """Partitions granted in this turn."""

    def decide(self, events: Sequence[GroupEvent], now_us: int, *, may_target: bool) -> tuple[Reply, ...]:
        """Handle all events and expired timeouts. A new target is computed only if `may_target` is set."""
        admitted = [self._admit(event) for event in events]
        self._put_out_silent_and_overdue()
        self._settle(now_us, may_target=may_target)
        return tuple(reply or self._step(event) for event, reply in zip(events, admitted, strict=True))

    def change(self) -> GroupChange | None:
        """Return the change to be written, or None if no record changes."""
        return self._roster.difference(self._written)

    def _admit(self, event: GroupEvent) -> Reply | None:
        """Admit an event. Returns None for an accepted heartbeat, which is answered after all events are admitted."""
        try:
            return self._let_in(event)
        except ProblemError as problem:
            return problem.with_traceback(None)

    def _let_in(self, event: GroupEvent) -> Reply | None:
        if isinstance(event, Leave):
            self._membership.leave(event)
            away = self._roster.members.get(event.member_id)
            if away is not None:
                self._pacing.on_heartbeat(event.member_id, away, self._now)
            return Left()
        self._membership.admit(event)
        released = note_release(self._roster.members[event.member_id], event)
        self._roster.put_member(event.member_id, released)
        self._pacing.on_heartbeat(event.member_id, released, self._now)
        self._known.note(event, self._written.members.get(event.member_id))
        return None

    def _put_out_silent_and_overdue(self) -> None:
        for member_id in self._pacing.silent(self._now):
            if member_id in self._roster.members:
                self._membership.put_out(member_id)
            elif member_id not in self._written.members:
                # The deadlines of a member that left in this turn are dropped when the turn is written. If the turn is
                # not written, the member counts as silent again.
                self._pacing.forget(member_id)
        for member_id in self._pacing.overdue(self._now):
            record = self._roster.members.get(member_id)
            if record is not None and record.revoking:
                self._membership.put_out(member_id)

    def _settle(self, now_us: int, *, may_target: bool) -> None:
        """Update the group epoch and the target for the current members."""
        roster, group = self._roster, self._roster.group
        if not roster.members:
            if roster.targets:
                roster.replace_targets({})
            if group is not None and group.emptied_us is None:
                roster.group = empty_target(raise_epoch(group, roster.epoch_ahead(), now_us), now_us)
            return
        ahead = roster.epoch_ahead()
        if group is None or group.epoch < ahead or self._membership.unsettled or self._target_is_stale():
            group = roster.group = raise_epoch(group, ahead, now_us)
        if group.epoch != group.target_epoch and may_target:
            compute_target(roster, group, self._subscribed)

    def _target_is_stale(self) -> bool:
        """Return whether the target does not match the topics or members, although no new target is due."""
        roster = self._roster
        assert roster.group is not None, "the group has a state record"
        if roster.group.epoch != roster.group.target_epoch:
            return False
        return not covers(roster.targets, consumed_topics(roster, self._subscribed), roster.members)

    def _step(self, event: GroupEvent) -> Reply:
        """Advance the member one step towards its target, and return the reply to its heartbeat."""
        assert isinstance(event, Heartbeat), "a leave is answered on admission"
        roster, group = self._roster, self._roster.group
        before = roster.members.get(event.member_id)
        if before is None or group is None:
            return self._membership.not_found(event.member_id)
        try:
            # The epoch is checked again, since an earlier event of this turn may have changed the member.
            rules.check_member_epoch(before, event)
        except ProblemError as problem:
            return problem.with_traceback(None)
        target = roster.target_of(event.member_id)
        if group.epoch != group.target_epoch:
            target = self._of_now(before, target)
        owners = (self._written.owners, self._granted)
        after = reconcile(before, event, target, group.target_epoch, owners)
        for topic_id, partitions in without(after.assigned, before.assigned).items():
            for partition in partitions:
                self._granted[topic_id, partition] = event.member_id
        roster.put_member(event.member_id, after)
        hasty = group.epoch != group.target_epoch or not roster.at_rest(event.member_id, after)
        interval = self._pacing.interval_ms(event.member_id, after, self._now, hasty=hasty)
        full = before.assigned != after.assigned or self._known.needs_assignment(event, after)
        return answered(after, interval, full=full)

    def _of_now(self, record: MemberRecord, target: Holding) -> Holding:
        """Return a member's target without the topics that the member no longer consumes.

        A member must not receive records of a topic that it has stopped consuming. The next target removes the member's
        partitions of topics outside its subscription.
        """
        names = self._subscribed.resolve(record.topics, record.topic_pattern)
        consumed = {self._subscribed.topics[name].topic_id for name in names}
        wanted = {topic_id: places for topic_id, places in target.items() if topic_id in consumed}
        return together(wanted, common(record.assigned, target))

    def _heartbeats_missed(self, member_id: str) -> float:
        return self._pacing.heartbeats_missed(member_id, self._roster.members[member_id], self._now)
