"""The invariants of groups, each a named class of violation.

The judge sees every revision of the store, every decision of a coordinator, and the partitions that each member treats
as its own. The contents of the store are the truth about a group, not the memory of a process.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, Final

from fairlead_api.identifiers import Revision, TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.groups import (
    AWAY_EPOCH,
    GroupChange,
    GroupEvent,
    GroupState,
    Heartbeat,
    HeartbeatReply,
    Leave,
    MemberKey,
    Reply,
    Subscription,
    TargetKey,
    Turn,
)
from fairlead_broker.registry.group_records import GroupRecord, MemberRecord, OffsetsRecord, TargetRecord
from groups.messages import Partition
from groups.plan import Fault
from simulator.judge import EpochsRise, Violation
from simulator.process import STORE_PATIENCE_SECONDS
from simulator.store import Change, Item, Key

if TYPE_CHECKING:
    from groups.coordinator import Coordinator
    from groups.member import Member
    from groups.world import World

ROUNDING_SECONDS: Final = 0.01
SOONEST_MS: Final = 10
"""Shortest heartbeat interval that causes no storm of heartbeats."""
JUST_HEARD: Final = 0.3
"""Fraction of the session timeout for which a member is certainly alive after a heartbeat."""
LONG_SILENT: Final = 0.75
"""Fraction of the session timeout after which a silent static member may be replaced by its next process."""


class TwoOwners(Violation):
    """Two members consume the same partition, each in the epoch that the store has for that member."""


class OneOwnerRecorded(Violation):
    """One revision of the store assigns the same partition to two members."""


class CommittedByOwner(Violation):
    """An offset was stored for a member that does not own the partition at that revision."""


class CommitsKeepOrder(Violation):
    """An offset was overwritten by a member in an older epoch."""


class OffsetsRise(Violation):
    """The new owner of a partition began reading before the committed offset."""


class UnmovedNeverPause(Violation):
    """A member temporarily lost a partition that its target assignment keeps."""


class SessionKept(Violation):
    """A member was removed before its session or its rebalance timeout expired."""


class StaticKeeps(Violation):
    """The return of a static member within its session moved a partition or changed another member."""


class OneInstance(Violation):
    """A static member with a recent heartbeat lost its place to a second process with its instance id."""


class FencedInVain(Violation):
    """A member was fenced although the store has the member in the same epoch."""


class PaceKept(Violation):
    """A member was given a heartbeat interval that is nearly zero or too long for its session."""


class AnswersAreStored(Violation):
    """A member was given an epoch or an assignment that the store does not have."""


@dataclass(slots=True)
class Truth:
    """The part of the store that belongs to one group."""

    state: GroupRecord | None = None
    members: dict[str, MemberRecord] = field(default_factory=dict)
    targets: dict[TopicId, TargetRecord] = field(default_factory=dict)
    claim: int = 0
    """Revision of the coordinator's key."""
    doubted: set[tuple[str, Partition]] = field(default_factory=set)
    """Members and assigned partitions that a target has since taken from them."""
    ever_doubted: set[tuple[str, Partition]] = field(default_factory=set)
    revoking_since: dict[str, float] = field(default_factory=dict)
    """Time at which a member was first ordered to revoke a partition that it still owns."""


def partitions_of(table: dict[TopicId, tuple[int, ...]]) -> set[Partition]:
    """Return the partitions of a record's table, which lists partitions by topic id."""
    return {(topic_id, partition) for topic_id, partitions in table.items() for partition in partitions}


def target_of(targets: dict[TopicId, TargetRecord], member_id: str) -> set[Partition]:
    """Return the partitions of a member's target assignment."""
    return {
        (topic_id, partition)
        for topic_id, target in targets.items()
        for partition in target.members.get(member_id, ())
    }


class Judge:
    """The observer that checks every invariant."""

    def __init__(self, world: World) -> None:
        """Start with an empty store."""
        self._world = world
        self.counts: Counter[str] = Counter()
        self.groups: defaultdict[str, Truth] = defaultdict(Truth)

    # -- the store

    def written(self, _: Revision, changes: list[Change]) -> None:
        """Check the changes in a revision."""
        kinds: defaultdict[str, list[Change]] = defaultdict(list)
        for change in changes:
            kinds[change[0][0]].append(change)
        for key, _, after in kinds["coordinator"]:
            self.groups[key[1]].claim = 0 if after is None else after.mod_revision
        for key, _, after in kinds["state"]:
            self._state(key[1], _value(after))
        for key, _, after in kinds["target"]:
            _put(self.groups[key[1]].targets, key[2], after)
        for key, _, after in kinds["member"]:
            _put(self.groups[key[1]].members, key[2], after)
        for key, before, after in kinds["member"]:
            self._member(key[1], key[2], _value(before), _value(after))
        for group in sorted({key[1] for kind in ("target", "member") for key, _, _ in kinds[kind]}):
            self._owners(group)
        for change in kinds["offsets"]:
            self._offsets(*change)

    def _state(self, group: str, record: GroupRecord | None) -> None:
        truth = self.groups[group]
        before, truth.state = truth.state, record
        if before is not None and record is not None and record.epoch < before.epoch:
            raise EpochsRise(f"group {group}: {before.epoch} to {record.epoch}")

    def _member(
        self, group: str, member_id: str, before: MemberRecord | None, after: MemberRecord | None
    ) -> None:
        truth = self.groups[group]
        if after is None:
            truth.revoking_since.pop(member_id, None)
            return
        if after.revoking:
            truth.revoking_since.setdefault(member_id, self._world.now)
        else:
            truth.revoking_since.pop(member_id, None)
        if before is None:
            return
        if after.epoch == AWAY_EPOCH:
            return  # the member has left and released all partitions
        if after.epoch < before.epoch:
            raise EpochsRise(f"member {member_id}: {before.epoch} to {after.epoch}")
        had, has = partitions_of(before.assigned), partitions_of(after.assigned)
        for partition in has - had:
            truth.doubted.discard((member_id, partition))
        target = target_of(truth.targets, member_id)
        truth.ever_doubted.update((member_id, partition) for partition in had - target)
        for partition in had - has:
            if (member_id, partition) not in truth.doubted and partition in target:
                raise UnmovedNeverPause(f"{partition} of {member_id}, from {before} to {after}")

    def _owners(self, group: str) -> None:
        truth = self.groups[group]
        owners: dict[Partition, str] = {}
        for member_id, record in truth.members.items():
            target = target_of(truth.targets, member_id)
            assigned = partitions_of(record.assigned)
            for partition in assigned | partitions_of(record.revoking):
                other = owners.setdefault(partition, member_id)
                if other != member_id:
                    raise OneOwnerRecorded(f"{partition}: {other} and {member_id}: {truth.members}")
            for partition in assigned - target:
                truth.doubted.add((member_id, partition))
                truth.ever_doubted.add((member_id, partition))
        self._two_owners(group)

    def _offsets(self, key: Key, before: Item | None, after: Item | None) -> None:
        if after is None:
            raise OffsetsRise(f"offsets are gone: {before}")
        _, group, topic_id, _ = key
        truth = self.groups[group]
        record: OffsetsRecord = after.value
        known = {} if before is None else {entry.partition: entry for entry in before.value.entries}
        for entry in record.entries:
            old = known.pop(entry.partition, None)
            if old == entry:
                continue
            member_id, _, epoch = entry.metadata.partition(":")
            writer = truth.members.get(member_id)
            partition = (topic_id, entry.partition)
            owned = writer is not None and partition in (
                partitions_of(writer.assigned) | partitions_of(writer.revoking)
            )
            if writer is None or writer.epoch != int(epoch) or not owned:
                raise CommittedByOwner(f"{partition}: {entry}, but the record is {writer}")
            if old is None:
                continue
            old_member, _, old_epoch = old.metadata.partition(":")
            if int(epoch) < int(old_epoch):
                raise CommitsKeepOrder(f"{partition}: {old} to {entry}")
            if (
                entry.offset < old.offset
                and member_id != old_member
                # A holder whose lease ends early still treats its state as current.
                and Fault.LEASE_EARLY not in self._world.plan.faults
            ):
                raise OffsetsRise(f"{partition}: {old} to {entry}")
        if known:
            raise OffsetsRise(f"offsets of {topic_id} are gone: {known}")

    # -- members

    def owns(self, member: Member) -> None:
        """Check the partitions that a member owns from now on."""
        self._two_owners(member.group)

    def _two_owners(self, group: str) -> None:
        records = self.groups[group].members
        owners: dict[Partition, Member] = {}
        for member in self._world.members.values():
            record = records.get(member.member_id)
            if not member.owned or record is None or record.epoch != member.epoch:
                continue
            for partition in member.owned:
                other = owners.setdefault(partition, member)
                if other is not member:
                    raise TwoOwners(
                        f"{partition}: {other.member_id} and {member.member_id} in {member.epoch}"
                    )

    def member_epoch(self, member: Member, epoch: int) -> None:
        """Check an epoch that a member receives."""
        if member.joined and epoch < member.epoch:
            raise EpochsRise(f"{member.member_id} is told {epoch} after {member.epoch}")

    def gives_up(self, member: Member, lost: set[Partition]) -> None:
        """Check that some target took away the partitions that a member must revoke."""
        doubted = self.groups[member.group].ever_doubted
        for partition in lost:
            self.counts["given up"] += 1
            if (member.member_id, partition) not in doubted:
                raise UnmovedNeverPause(f"{member.member_id} is to give up {partition}, which it was to keep")

    # -- coordinators

    def took_over(self, group: str, revision: Revision) -> None:
        """Record a loaded group."""
        self.counts["take-overs"] += 1
        truth = self.groups[group]
        if revision == truth.claim:
            for member_id in truth.revoking_since:
                truth.revoking_since[member_id] = self._world.now

    def decided(self, coordinator: Coordinator, events: Sequence[GroupEvent], turn: Turn) -> None:
        """Check a decision by the coordinator that has the claim."""
        truth = self.groups[coordinator.name]
        if coordinator.claim_revision != truth.claim:
            return
        self.counts["turns"] += 1
        if turn.change is not None:
            self.counts["changes"] += 1
            self._doubt(truth, turn.change)
            self._removed(coordinator, truth, events, turn)
            self._static(coordinator, truth, events, turn)
        heard_now = {event.member_id for event in events}
        joins = [event for event in events if isinstance(event, Heartbeat) and event.member_epoch == 0]
        for event, reply in zip(events, turn.replies, strict=True):
            # Two processes join at the same time, and the second finds that the first has taken the place.
            if event in joins and len(joins) == 1 and event.subscription is not None:
                places = {
                    place: record
                    for place, record in truth.members.items()
                    if record.instance_id is not None
                    and record.instance_id == event.subscription.instance_id
                    and place not in heard_now
                }
                self._places(coordinator, places, event.member_id, reply)
        for event, reply in zip(events, turn.replies, strict=True):
            if isinstance(event, Heartbeat) and isinstance(reply, HeartbeatReply):
                coordinator.heard[event.member_id] = self._world.now

    def _doubt(self, truth: Truth, change: GroupChange) -> None:
        """Record the partitions that a new target takes away, because the target may be written after its effects."""
        targets = dict(truth.targets)
        for key, record in change.puts.items():
            if isinstance(key, TargetKey) and isinstance(record, TargetRecord):
                targets[key.topic_id] = record
        for key in change.deletes:
            if isinstance(key, TargetKey):
                targets.pop(key.topic_id, None)
        for member_id, member in truth.members.items():
            for partition in partitions_of(member.assigned) - target_of(targets, member_id):
                truth.doubted.add((member_id, partition))
                truth.ever_doubted.add((member_id, partition))

    def _places(
        self, coordinator: Coordinator, places: dict[str, MemberRecord], member_id: str, reply: Reply
    ) -> None:
        """Check that the place of a static member is taken over if and only if its holder is silent."""
        for place, record in places.items():
            silent = self._world.now - max(coordinator.loaded_at, coordinator.heard.get(place, 0.0))
            sessions = silent / (record.session_timeout_ms / 1000)
            if isinstance(reply, HeartbeatReply) and record.epoch != AWAY_EPOCH and sessions < JUST_HEARD:
                raise OneInstance(f"{member_id} takes the place of {place}, silent for {silent:.3f} s")
            if isinstance(reply, ProblemError) and (record.epoch == AWAY_EPOCH or sessions > LONG_SILENT):
                raise StaticKeeps(f"{member_id} waits for {place}, silent for {silent:.3f} s: {reply.code}")

    def answers(self, coordinator: Coordinator, member_id: str, reply: HeartbeatReply) -> None:
        """Check the answer that a coordinator, which treats its claim as valid, sends to a member."""
        if not SOONEST_MS <= reply.heartbeat_interval_ms <= reply.session_timeout_ms / 2:
            raise PaceKept(f"{member_id} is told {reply}")
        if Fault.LEASE_EARLY in self._world.plan.faults:
            return
        record = self.groups[coordinator.name].members.get(member_id)
        if record is None or record.epoch != reply.member_epoch:
            raise AnswersAreStored(f"{member_id} is told {reply}, the record is {record}")
        if reply.assignment is not None:
            told = {(topic, each) for topic, partitions in reply.assignment.items() for each in partitions}
            if told != partitions_of(record.assigned):
                raise AnswersAreStored(f"{member_id} is told {reply}, the record is {record}")

    def fences(self, coordinator: Coordinator, member_id: str, epoch: int, code: str) -> None:
        """Check the fencing of a member by a coordinator that treats its claim as valid."""
        record = self.groups[coordinator.name].members.get(member_id)
        if Fault.LEASE_EARLY in self._world.plan.faults or record is None:
            return
        if record.epoch == epoch and code in {"member_fenced", "member_not_found"}:
            raise FencedInVain(f"{member_id} at {epoch} gets {code}, the record is {record}")

    def _removed(
        self, coordinator: Coordinator, truth: Truth, events: Sequence[GroupEvent], turn: Turn
    ) -> None:
        assert turn.change is not None, "looked at before"
        left = {event.member_id for event in events if isinstance(event, Leave)}
        instances = {
            event.subscription.instance_id
            for event in events
            if isinstance(event, Heartbeat) and event.subscription is not None
        } - {None}
        for key in turn.change.deletes:
            record = truth.members.get(key.member_id) if isinstance(key, MemberKey) else None
            if not isinstance(key, MemberKey) or record is None or key.member_id in left:
                continue
            if record.instance_id in instances:
                continue
            now = self._world.now + ROUNDING_SECONDS
            silent = now - max(coordinator.loaded_at, coordinator.heard.get(key.member_id, 0.0))
            slow = now + STORE_PATIENCE_SECONDS - truth.revoking_since.get(key.member_id, inf)
            self.counts["expired"] += 1
            if silent < record.session_timeout_ms / 1000 and slow < record.rebalance_timeout_ms / 1000:
                raise SessionKept(f"{key.member_id} after {silent:.3f} s: {record}")

    def _static(
        self, coordinator: Coordinator, truth: Truth, events: Sequence[GroupEvent], turn: Turn
    ) -> None:
        """Check turns that contain only the return of a static member."""
        match events, turn.replies:
            case [Heartbeat(member_id, 0, Subscription() as wanted)], [HeartbeatReply()]:
                pass
            case _:
                return
        places = [each for each, record in truth.members.items() if record.instance_id == wanted.instance_id]
        if wanted.instance_id is None or not places or member_id in places:
            return
        (place,) = places
        old = truth.members[place]
        assert turn.change is not None, "looked at before"
        assert coordinator.group is not None, "loaded"
        gone = {key.member_id for key in turn.change.deletes if isinstance(key, MemberKey)}
        if (
            coordinator.topics_seen is coordinator.broker.topics
            and coordinator.group.state is not GroupState.ASSIGNING
            and gone <= {place}
            and (frozenset(old.topics), old.topic_pattern) == (wanted.topics, wanted.pattern or None)
        ):
            self.counts["static returns"] += 1
            self._returned(truth, turn.change, place, member_id)

    def _returned(self, truth: Truth, change: GroupChange, place: str, member_id: str) -> None:
        for key, record in change.puts.items():
            match record:
                case MemberRecord() if key == MemberKey(member_id):
                    pass  # the record of the returning member itself may change
                case MemberRecord():
                    raise StaticKeeps(f"{member_id} returns, and {key} changes: {record}")
                case GroupRecord() if truth.state is not None and record.epoch != truth.state.epoch:
                    raise StaticKeeps(f"{member_id} returns, and the group epoch grows: {record}")
                case TargetRecord() if isinstance(key, TargetKey):
                    before = truth.targets[key.topic_id].members
                    expected = {member_id if each == place else each: before[each] for each in before}
                    if record.members != expected:
                        raise StaticKeeps(f"{member_id} returns, and the target moves: {record}")
                case _:
                    pass


def _value(item: Item | None) -> Any:
    return None if item is None else item.value


def _put(table: dict[Any, Any], key: Any, item: Item | None) -> None:
    if item is None:
        table.pop(key, None)
    else:
        table[key] = item.value
