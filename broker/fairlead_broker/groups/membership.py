"""Admission and removal of a group's members, and the conditions for joining and leaving.

The module changes the tentative roster of a turn. A change of members or subscriptions sets `unsettled`, so that
the turn computes a new group epoch and a new target. A refused request raises a problem of the catalogue before
the roster is changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Final, TypeAlias

import msgspec

from fairlead_api.bodies.group_requests import REBALANCE_TIMEOUT_MS_DEFAULT, SESSION_TIMEOUT_MS_DEFAULT
from fairlead_api.problems import ProblemError
from fairlead_broker.groups import rules
from fairlead_broker.groups.assignors import check_assignor
from fairlead_broker.groups.messages import (
    AWAY_EPOCH,
    JOIN_EPOCH,
    Heartbeat,
    Leave,
    Subscription,
    member_not_found,
)
from fairlead_broker.groups.roster import Roster
from fairlead_broker.groups.subscriptions import PATTERNS_MAX, SubscribedTopics, check_pattern
from fairlead_broker.registry.group_records import MemberRecord, TargetRecord

MEMBERS_MAX: Final = 1_000
"""Maximum number of members in a group: a new coordinator must load the key of each member."""
PARTITIONS_MAX: Final = 10_000
"""Maximum number of partitions that a group may consume: a target is computed in one turn of the event loop."""

Consumed: TypeAlias = tuple[tuple[str, ...], str | None]
"""Topic names and topic pattern of a subscription."""

_NEWCOMER = MemberRecord(
    session_timeout_ms=SESSION_TIMEOUT_MS_DEFAULT,
    rebalance_timeout_ms=REBALANCE_TIMEOUT_MS_DEFAULT,
    epoch=JOIN_EPOCH,
    previous_epoch=JOIN_EPOCH,
)


class Membership:
    """Addition, change and removal of members during one turn."""

    __slots__ = (
        "_heartbeats_missed",
        "_name",
        "_roster",
        "_subscribed",
        "_subscriptions",
        "_wanted",
        "unsettled",
    )

    def __init__(
        self,
        name: str,
        roster: Roster,
        subscribed: SubscribedTopics,
        heartbeats_missed: Callable[[str], float],
    ) -> None:
        self._name = name
        self._roster = roster
        self._subscribed = subscribed
        self._heartbeats_missed = heartbeats_missed
        self._subscriptions: Counter[Consumed] | None = None
        """Number of members by subscription, counted at the first use and then kept up to date."""
        self._wanted: set[str] = set()
        """Topics to which the members are subscribed. The set may include topics of subscriptions that were dropped in
        this turn.
        """
        self.unsettled = False
        """Whether the group requires a new target."""

    def admit(self, heartbeat: Heartbeat) -> None:
        """Handle a heartbeat: add the member if it joins, and update its subscription.

        Raises `member_not_found`, `member_fenced`, `instance_fenced`, `group_too_large`, `invalid_pattern`,
        `malformed_request`, or `forbidden` for a member of another principal.
        """
        member_id, record = heartbeat.member_id, self._roster.members.get(heartbeat.member_id)
        if record is not None:
            rules.check_principal(self._name, member_id, record, heartbeat.principal)
            rules.check_member_epoch(record, heartbeat)
            self._check_instance(record, heartbeat)
            joins = heartbeat.member_epoch == JOIN_EPOCH
            changed = self._subscribe(record, heartbeat.subscription, joins=joins)
            self._roster.put_member(member_id, _belonging(changed, heartbeat.principal))
        elif heartbeat.member_epoch == JOIN_EPOCH:
            self._join(member_id, heartbeat.subscription or Subscription(), heartbeat.principal)
        else:
            raise self.not_found(member_id)

    def leave(self, leaving: Leave) -> None:
        """Remove a leaving member.

        Raises `member_not_found`, `member_fenced` if the member's epoch differs, or `forbidden` for a member of another
        principal.
        """
        record = self._roster.members.get(leaving.member_id)
        if record is None:
            raise self.not_found(leaving.member_id)
        rules.check_principal(self._name, leaving.member_id, record, leaving.principal)
        if leaving.member_epoch not in {None, record.epoch, record.previous_epoch}:
            detail = f"member {leaving.member_id} has epoch {record.epoch}, but left with epoch {leaving.member_epoch}"
            raise ProblemError("member_fenced", detail, data={"member_id": leaving.member_id})
        if leaving.static and record.instance_id is not None:
            away = msgspec.structs.replace(
                record, epoch=AWAY_EPOCH, previous_epoch=AWAY_EPOCH, assigned={}, revoking={}
            )
            self._roster.put_member(leaving.member_id, away)
        else:
            self.put_out(leaving.member_id)

    def put_out(self, member_id: str) -> None:
        """Remove a member that left or stopped sending heartbeats, so that its later requests are refused."""
        if self._subscriptions is not None:
            self._subscriptions[_consumed(self._roster.members[member_id])] -= 1
        self._roster.remove_member(member_id)
        self.unsettled = True

    # -- joining

    def _join(self, member_id: str, subscription: Subscription, principal: str | None) -> None:
        holder_id = self._roster.instances.get(subscription.instance_id or "")
        if holder_id is not None:
            self._take_place(holder_id, member_id, subscription, principal)
            return
        if len(self._roster.members) >= MEMBERS_MAX:
            reason = f"it has {MEMBERS_MAX} members, which is the limit"
            raise self._too_large(reason, MEMBERS_MAX)
        newcomer = msgspec.structs.replace(
            _NEWCOMER, instance_id=subscription.instance_id, principal=principal
        )
        self._roster.put_member(member_id, self._subscribe(newcomer, subscription, joins=True))
        self.unsettled = True

    def _take_place(
        self, holder_id: str, member_id: str, subscription: Subscription, principal: str | None
    ) -> None:
        """Replace a static member with a new member that has the same instance id.

        The target stays valid if the new member's subscription equals that of the replaced member.
        """
        holder = self._roster.members[holder_id]
        rules.check_principal(self._name, holder_id, holder, principal)
        if not rules.may_take_place(holder, self._heartbeats_missed(holder_id)):
            raise _instance_fenced(holder.instance_id, holder_id)
        place = msgspec.structs.replace(
            holder, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH, assigned={}, revoking={}
        )
        newcomer = self._subscribe(_belonging(place, principal), subscription, joins=True)
        self._roster.remove_member(holder_id)
        self._roster.put_member(member_id, newcomer)
        self._roster.replace_targets(
            {
                topic_id: _with_new_name(record, holder_id, member_id)
                for topic_id, record in self._roster.targets.items()
            }
        )

    def _check_instance(self, record: MemberRecord, heartbeat: Heartbeat) -> None:
        """Refuse a heartbeat whose instance id differs from the member's instance id."""
        named = heartbeat.subscription.instance_id if heartbeat.subscription is not None else None
        if named is not None and named != record.instance_id:
            before = "without an instance id" if record.instance_id is None else f"as {record.instance_id}"
            detail = (
                f"member {heartbeat.member_id} joined {before} and now joins as static instance {named}; leave first, "
                "or join under another member id"
            )
            raise ProblemError("instance_fenced", detail, data={"instance_id": named})

    # -- subscribing

    def _subscribe(
        self, record: MemberRecord, subscription: Subscription | None, *, joins: bool
    ) -> MemberRecord:
        """Return the member's record with its new subscription, or raise a problem if the subscription is refused."""
        if subscription is None:
            return record
        if joins and subscription.topics is None and not subscription.pattern:
            raise ProblemError("malformed_request", "a joining member must send `topics` or `topic_pattern`")
        changed = _merged(_unsaid(record) if joins else record, subscription)
        if changed == record:
            return record
        if changed.assignor is not None:
            check_assignor(changed.assignor)
        if (changed.topics, changed.topic_pattern) != (record.topics, record.topic_pattern):
            self._check_pattern(changed.topic_pattern, record.topic_pattern)
            self._check_partitions(record, changed)
            self.unsettled = True
        return changed

    def _check_pattern(self, pattern: str | None, before: str | None) -> None:
        if pattern is None or pattern == before:
            return
        check_pattern(pattern)
        used = Counter(record.topic_pattern for record in self._roster.members.values())
        # A member that changes its pattern no longer uses its previous pattern.
        used[before] -= 1
        others = {each for each, members in used.items() if members > 0 and each is not None}
        if pattern not in others and len(others) >= PATTERNS_MAX:
            reason = f"its members use {PATTERNS_MAX} different patterns, which is the limit"
            raise self._too_large(reason, PATTERNS_MAX)

    def _check_partitions(self, before: MemberRecord, changed: MemberRecord) -> None:
        """Refuse a subscription that would make the group exceed its partition limit.

        The partition limit is not enforced when topics gain partitions later.
        """
        if self._subscriptions is None:
            self._subscriptions = Counter(map(_consumed, self._roster.members.values()))
            self._wanted = self._topics_of(self._subscriptions)
        wanted = self._subscribed.resolve(*_consumed(changed))
        if not wanted <= self._wanted and self._partitions(self._wanted | wanted) > PARTITIONS_MAX:
            others = self._topics_of(self._subscriptions - Counter([_consumed(before)]))
            total = self._partitions(others | wanted)
            if total > PARTITIONS_MAX:
                reason = f"it would consume {total} partitions; the limit is {PARTITIONS_MAX}"
                raise self._too_large(reason, PARTITIONS_MAX)
            self._wanted = others
        self._wanted |= wanted
        self._subscriptions[_consumed(before)] -= 1
        self._subscriptions[_consumed(changed)] += 1

    def _topics_of(self, subscriptions: Counter[Consumed]) -> set[str]:
        return set().union(*(self._subscribed.resolve(*each) for each in subscriptions))

    def _partitions(self, names: AbstractSet[str]) -> int:
        return sum(self._subscribed.topics[name].partitions for name in names)

    # -- refusals

    def not_found(self, member_id: str) -> ProblemError:
        """Return the problem for a member that is not in the group."""
        return member_not_found(self._name, member_id)

    def _too_large(self, reason: str, limit: int) -> ProblemError:
        detail = f"group {self._name} is too large: {reason}"
        return ProblemError("group_too_large", detail, data={"limit": limit})


def consumed_after(record: MemberRecord, change: Subscription | None) -> Consumed:
    """Return the topic names and the topic pattern of a member after a change by a heartbeat that is not a join."""
    return _consumed(record if change is None else _merged(record, change))


def _consumed(record: MemberRecord) -> Consumed:
    return record.topics, record.topic_pattern


def _belonging(record: MemberRecord, principal: str | None) -> MemberRecord:
    """Return the member's record with this principal as its owner, unless the record already has an owner."""
    if principal is None or record.principal is not None:
        return record
    return msgspec.structs.replace(record, principal=principal)


def _unsaid(record: MemberRecord) -> MemberRecord:
    """Return the record with defaults in all fields that a join sets, since the old values come from an earlier run."""
    return msgspec.structs.replace(
        record,
        rack=None,
        topics=(),
        topic_pattern=None,
        assignor=None,
        session_timeout_ms=SESSION_TIMEOUT_MS_DEFAULT,
        rebalance_timeout_ms=REBALANCE_TIMEOUT_MS_DEFAULT,
    )


def _merged(record: MemberRecord, subscription: Subscription) -> MemberRecord:
    """Return the record with the fields of a subscription. None keeps a value, and an empty string resets it."""
    pattern, rack, assignor = subscription.pattern, subscription.rack, subscription.assignor
    session, rebalance = subscription.session_timeout_ms, subscription.rebalance_timeout_ms
    return msgspec.structs.replace(
        record,
        rack=record.rack if rack is None else rack or None,
        topics=record.topics if subscription.topics is None else tuple(sorted(subscription.topics)),
        topic_pattern=record.topic_pattern if pattern is None else pattern or None,
        assignor=record.assignor if assignor is None else assignor or None,
        session_timeout_ms=record.session_timeout_ms if session is None else session,
        rebalance_timeout_ms=record.rebalance_timeout_ms if rebalance is None else rebalance,
    )


def _with_new_name(record: TargetRecord, before: str, after: str) -> TargetRecord:
    if before not in record.members:
        return record
    members = {after if each == before else each: partitions for each, partitions in record.members.items()}
    return msgspec.structs.replace(record, members=members)


def _instance_fenced(instance_id: str | None, holder_id: str) -> ProblemError:
    detail = f"static instance {instance_id} is in use by member {holder_id}, which is alive"
    return ProblemError("instance_fenced", detail, data={"instance_id": instance_id})
