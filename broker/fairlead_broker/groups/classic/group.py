"""State of one classic group: members gather, the leader assigns, and all members continue in the next generation.

    Empty ──join──▶ PreparingRebalance ──all have joined──▶ CompletingRebalance ──leader's sync is stored──▶ Stable
                        ▲    │                                        │                                       │
                        │    └── no member is left ──▶ Empty          │                                       │
                        └───── a member joins, leaves or is silent ───┴───────────────────────────────────────┘

Only `handle`, `expire`, `stored` and `not_stored` change the state. While members gather, nothing is stored: after a
coordinator's failure the members join again, and a stable group continues in its generation. Times are monotonic
seconds. The model for this module is Kafka's `ClassicGroup`. The module is a single file because any event may begin or
end a rebalance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Final, assert_never

from fairlead_broker.groups.classic.messages import (
    Accepted,
    Beat,
    ClassicChange,
    ClassicEvent,
    ClassicReply,
    ClassicTurn,
    Join,
    Joined,
    JoinedMember,
    Leave,
    Refusal,
    Refused,
    Sync,
    Synced,
)
from fairlead_broker.registry.group_records import ClassicGroupRecord, ClassicMemberRecord

INITIAL_DELAY_SECONDS: Final = 3.0
"""Time for which an empty group's first join waits for other members: Kafka's `group.initial.rebalance.delay.ms`."""
SESSION_TIMEOUT_MS_MIN: Final = 1_000
SESSION_TIMEOUT_MS_MAX: Final = 1_800_000
MEMBERS_MAX: Final = 10_000
"""Maximum number of members, and of ids that were assigned for joins."""


class State(StrEnum):
    """State of a classic group, with Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    State.EMPTY: frozenset({State.PREPARING}),
    State.PREPARING: frozenset({State.COMPLETING, State.EMPTY}),
    State.COMPLETING: frozenset({State.STABLE, State.PREPARING}),
    State.STABLE: frozenset({State.PREPARING}),
}
"""States that may follow each state."""


@dataclass(slots=True)
class Member:
    """Member of a classic group."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    ends_at: float
    """Time at which the session ends; a member that waits for a reply keeps its session."""
    assignment: bytes = b""
    join_token: object | None = None
    sync_token: object | None = None

    @property
    def waits(self) -> bool:
        """Whether the member waits for a reply."""
        return self.join_token is not None or self.sync_token is not None

    def subscription(self, protocol: str) -> bytes:
        """Return the subscription that the member sent for an assignor."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    def lives(self, now: float) -> None:
        """Restart the session."""
        self.ends_at = now + self.session_timeout_ms / 1000


@dataclass(slots=True)
class ClassicGroup:
    """One group of the classic protocol."""

    initial_delay_seconds: float = INITIAL_DELAY_SECONDS
    state: State = State.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: dict[str, Member] = field(default_factory=dict)
    pending: dict[str, float] = field(default_factory=dict)
    """Ids that were assigned for joins, with the time at which each id is forgotten."""
    _join_ends_at: float = inf
    """Time at which a rebalance continues without the members that have not joined yet."""
    _join_until: float = inf
    """Time up to which an initial join may be extended to wait for more members."""
    _is_initial: bool = False
    _sync_ends_at: float = inf
    """Time at which members that have not sent a sync are removed."""
    _stored: frozenset[str] | None = None
    """Members that have a record in the store, or None if the group has no record."""
    _unstored: int = 0
    """Number of changes that are being stored."""
    _is_dirty: bool = False
    """Whether the stored records must still be changed to match the group, which is stable or empty."""

    @classmethod
    def load(
        cls, record: ClassicGroupRecord | None, members: Mapping[str, ClassicMemberRecord], now: float
    ) -> ClassicGroup:
        """Return a group built from its stored records; every session is restarted."""
        group = cls()
        if record is None or not members:
            group._stored = None if record is None and not members else frozenset(members)
            group._is_dirty = group._stored is not None
            return group
        group.state, group.generation = State.STABLE, record.generation
        group.protocol_type, group.protocol, group.leader = (
            record.protocol_type,
            record.protocol,
            record.leader,
        )
        group._stored = frozenset(members)
        for member_id, each in members.items():
            member = Member(
                member_id,
                each.instance_id,
                each.client_id,
                each.client_host,
                each.session_timeout_ms,
                each.rebalance_timeout_ms,
                ((record.protocol, each.subscription),),
                inf,
                each.assignment,
            )
            member.lives(now)
            group.members[member_id] = member
        return group

    # -- reading

    @property
    def is_idle(self) -> bool:
        """Whether the group has neither members nor joins, and no record in the store."""
        return not self.members and not self.pending and self._stored is None and not self._unstored

    def deadline(self) -> float:
        """Return the time at which `expire` is due, or infinity."""
        sessions = (each.ends_at for each in self.members.values() if not each.waits)
        return min(*sessions, *self.pending.values(), self._join_ends_at, self._sync_ends_at, inf, inf)

    def commit_refusal(self, member_id: str, generation: int) -> Refusal | None:
        """Return the refusal of a commit, or None. While members gather, they may still commit."""
        if member_id not in self.members:
            return Refusal.UNKNOWN_MEMBER_ID
        if generation != self.generation:
            return Refusal.ILLEGAL_GENERATION
        return Refusal.REBALANCE_IN_PROGRESS if self.state is State.COMPLETING else None

    # -- deciding

    def handle(self, event: ClassicEvent, now: float) -> ClassicTurn:
        """Process an event."""
        turn = ClassicTurn([])
        match event:
            case Join():
                self._join(event, turn, now)
            case Sync():
                self._sync(event, turn, now)
            case Beat():
                turn.replies.append((event.token, self._beat(event, now)))
            case Leave():
                self._leave(event, turn, now)
            case _:
                assert_never(event)
        return self._with_change(turn)

    def expire(self, now: float) -> ClassicTurn:
        """Remove members whose time has expired, and continue rebalances that are overdue."""
        turn = ClassicTurn([])
        for member_id in [each for each, ends_at in self.pending.items() if ends_at <= now]:
            del self.pending[member_id]
        silent = [each for each in self.members.values() if not each.waits and each.ends_at <= now]
        if self._sync_ends_at <= now:
            silent += [
                each for each in self.members.values() if each.sync_token is None and each not in silent
            ]
            self._sync_ends_at = inf
        for member in silent:
            self._remove(member, turn, now)
        if self.state is State.PREPARING:
            if self._join_ends_at <= now:
                self._complete(turn, now)
            else:
                self._complete_if_all_joined(turn, now)
        return self._with_change(turn)

    def stored(self, change: ClassicChange) -> ClassicTurn:
        """Continue after a change was stored: a leader's assignment takes effect."""
        turn = ClassicTurn([])
        self._unstored -= 1
        self._stored = None if change.group is None else frozenset(change.members)
        if self._awaits(change):
            self._enter(State.STABLE)
            self._sync_ends_at = inf
            for member in self.members.values():
                self._answer_sync(member, turn, self._assigned(member))
        elif self.state is State.STABLE:
            self._answer_replacements(turn)
        return self._with_change(turn)

    def not_stored(self, change: ClassicChange, now: float) -> ClassicTurn:
        """Continue after a change could not be stored: members that wait for its assignment must join again."""
        turn = ClassicTurn([])
        self._unstored -= 1
        if self._awaits(change):
            for member in self.members.values():
                self._answer_sync(member, turn, Refused(Refusal.COORDINATOR_NOT_AVAILABLE))
            self._prepare(turn, now)
        else:
            self._is_dirty = self.state in (State.STABLE, State.EMPTY)
            if self.state is State.STABLE:
                self._answer_replacements(turn, Refused(Refusal.COORDINATOR_NOT_AVAILABLE))
        return turn

    def _awaits(self, change: ClassicChange) -> bool:
        """Return whether members are waiting for the assignment in a change."""
        generation = None if change.group is None else change.group.generation
        return self.state is State.COMPLETING and generation == self.generation

    # -- joins

    def _join(self, event: Join, turn: ClassicTurn, now: float) -> None:
        refusal = self._join_refusal(event)
        if refusal is not None:
            turn.replies.append((event.token, Refused(refusal)))
        elif event.member_id:
            member = self.members.get(event.member_id)
            if member is None:
                del self.pending[event.member_id]
                self._add(event, event.member_id, turn, now)
            else:
                self._rejoin(event, member, turn, now)
        elif (static := self._static(event.instance_id)) is not None:
            self._replace(event, static, turn, now)
        elif event.needs_known_id and event.instance_id is None:
            self.pending[event.new_id] = now + event.session_timeout_ms / 1000
            turn.replies.append((event.token, Refused(Refusal.MEMBER_ID_REQUIRED, event.new_id)))
        else:
            self._add(event, event.new_id, turn, now)

    def _join_refusal(self, event: Join) -> Refusal | None:
        if not SESSION_TIMEOUT_MS_MIN <= event.session_timeout_ms <= SESSION_TIMEOUT_MS_MAX:
            return Refusal.INVALID_SESSION_TIMEOUT
        if not event.protocol_type or not event.protocols:
            return Refusal.INCONSISTENT_GROUP_PROTOCOL
        others = [each for each in self.members.values() if each.member_id != event.member_id]
        if others and (
            event.protocol_type != self.protocol_type
            or not _common(others) & {name for name, _ in event.protocols}
        ):
            return Refusal.INCONSISTENT_GROUP_PROTOCOL
        if not event.member_id:
            is_full = len(self.members) + len(self.pending) >= MEMBERS_MAX
            return Refusal.GROUP_MAX_SIZE_REACHED if is_full else None
        return self._identity_refusal(event.member_id, event.instance_id, allows_pending=True)

    def _identity_refusal(
        self, member_id: str, instance_id: str | None, *, allows_pending: bool = False
    ) -> Refusal | None:
        """Return the refusal for an unknown member, or for a static member that another member has replaced."""
        if instance_id is not None:
            static = self._static(instance_id)
            if static is None:
                return Refusal.UNKNOWN_MEMBER_ID
            return None if static.member_id == member_id else Refusal.FENCED_INSTANCE_ID
        if member_id in self.members or (allows_pending and member_id in self.pending):
            return None
        return Refusal.UNKNOWN_MEMBER_ID

    def _static(self, instance_id: str | None) -> Member | None:
        if instance_id is None:
            return None
        return next((each for each in self.members.values() if each.instance_id == instance_id), None)

    def _add(self, event: Join, member_id: str, turn: ClassicTurn, now: float) -> None:
        member = Member(
            member_id,
            event.instance_id,
            event.client_id,
            event.client_host,
            event.session_timeout_ms,
            event.rebalance_timeout_ms,
            event.protocols,
            inf,
            join_token=event.token,
        )
        if not self.members:
            self.protocol_type = event.protocol_type
        self.members[member_id] = member
        self._prepare(turn, now)
        if self._is_initial:
            # Each additional member extends the initial delay, up to the longest rebalance timeout.
            self._join_until = min(self._join_until, now + self._rebalance_seconds)
            self._join_ends_at = min(now + self.initial_delay_seconds, self._join_until)
        self._complete_if_all_joined(turn, now)

    def _rejoin(self, event: Join, member: Member, turn: ClassicTurn, now: float) -> None:
        is_same = member.protocols == event.protocols
        is_settled = self.state is State.COMPLETING or (
            self.state is State.STABLE and member.member_id != self.leader
        )
        if is_settled and is_same:
            # The reply to the previous join was lost.
            member.lives(now)
            turn.replies.append((event.token, self._joined(member)))
            return
        if member.join_token is not None:
            turn.replies.append((member.join_token, Refused(Refusal.UNKNOWN_MEMBER_ID)))
        self._update(event, member)
        self._prepare(turn, now)
        self._complete_if_all_joined(turn, now)

    def _replace(self, event: Join, member: Member, turn: ClassicTurn, now: float) -> None:
        """Pass the membership of a static member to its new process, which has a different id."""
        for token in (member.join_token, member.sync_token):
            if token is not None:
                turn.replies.append((token, Refused(Refusal.FENCED_INSTANCE_ID)))
        is_same = [name for name, _ in member.protocols] == [name for name, _ in event.protocols] and (
            member.subscription(self.protocol) == dict(event.protocols).get(self.protocol, b"")
        )
        was_leader = self.leader == member.member_id
        del self.members[member.member_id]
        member.member_id, member.sync_token = event.new_id, None
        self.members[member.member_id] = member
        if was_leader:
            self.leader = member.member_id
        self._update(event, member)
        if self.state is State.STABLE and is_same:
            # The reply waits until the new id is stored: after a coordinator's failure, the stored id is the member's.
            member.lives(now)
            self._is_dirty = True
            return
        self._prepare(turn, now)
        self._complete_if_all_joined(turn, now)

    def _answer_replacements(self, turn: ClassicTurn, refused: Refused | None = None) -> None:
        """Answer the joins that replaced processes of static members in a stable group, once their ids are stored."""
        for member in self.members.values():
            token = member.join_token
            if token is None or (refused is None and member.member_id not in (self._stored or ())):
                continue
            member.join_token = None
            reply: ClassicReply = refused or self._joined(member)
            if isinstance(reply, Joined) and member.member_id == self.leader:
                reply = _without_assignment(reply)
            turn.replies.append((token, reply))

    def _update(self, event: Join, member: Member) -> None:
        member.client_id, member.client_host = event.client_id, event.client_host
        member.session_timeout_ms = event.session_timeout_ms
        member.rebalance_timeout_ms = event.rebalance_timeout_ms
        member.protocols, member.join_token = event.protocols, event.token

    # -- rebalances

    def _prepare(self, turn: ClassicTurn, now: float) -> None:
        """Begin a rebalance, unless a rebalance is in progress."""
        if self.state is State.PREPARING:
            return
        self._is_initial = self.state is State.EMPTY and self.initial_delay_seconds > 0
        self._join_until = inf
        for member in self.members.values():
            self._answer_sync(member, turn, Refused(Refusal.REBALANCE_IN_PROGRESS))
        self._enter(State.PREPARING)
        self._sync_ends_at = inf
        self._join_ends_at = now + self._rebalance_seconds

    @property
    def _rebalance_seconds(self) -> float:
        return max((each.rebalance_timeout_ms for each in self.members.values()), default=0) / 1000

    def _complete_if_all_joined(self, turn: ClassicTurn, now: float) -> None:
        if self.state is not State.PREPARING or (self._is_initial and self.members):
            return
        if not self.pending and all(each.join_token is not None for each in self.members.values()):
            self._complete(turn, now)

    def _complete(self, turn: ClassicTurn, now: float) -> None:
        """Begin the next generation with the members that have joined, and with static members."""
        for member in list(self.members.values()):
            if member.join_token is None and member.instance_id is None:
                del self.members[member.member_id]
        self._join_ends_at, self._is_initial = inf, False
        self.generation += 1
        if not self.members:
            self._enter(State.EMPTY)
            self.protocol = self.leader = ""
            self._is_dirty = self._stored is not None
            return
        self._enter(State.COMPLETING)
        self.protocol = _elected(self.members.values())
        joined = [each.member_id for each in self.members.values() if each.join_token is not None]
        if self.leader not in joined:
            self.leader = joined[0] if joined else next(iter(self.members))
        self._sync_ends_at = now + self._rebalance_seconds
        for member in self.members.values():
            token, member.join_token, member.assignment = member.join_token, None, b""
            member.lives(now)
            if token is not None:
                turn.replies.append((token, self._joined(member)))

    def _joined(self, member: Member) -> Joined:
        members: tuple[JoinedMember, ...] = ()
        if member.member_id == self.leader:
            members = tuple(
                JoinedMember(each.member_id, each.instance_id, each.subscription(self.protocol))
                for each in self.members.values()
            )
        return Joined(
            member.member_id, self.generation, self.protocol_type, self.protocol, self.leader, members
        )

    # -- other events

    def _sync(self, event: Sync, turn: ClassicTurn, now: float) -> None:
        refusal = self._sync_refusal(event)
        if refusal is not None:
            turn.replies.append((event.token, Refused(refusal)))
            return
        member = self.members[event.member_id]
        member.lives(now)
        if self.state is State.STABLE:
            turn.replies.append((event.token, self._assigned(member)))
            return
        self._answer_sync(member, turn, Refused(Refusal.REBALANCE_IN_PROGRESS))
        member.sync_token = event.token
        if event.member_id == self.leader:
            for each in self.members.values():
                each.assignment = event.assignments.get(each.member_id, b"")
            self._is_dirty = True

    def _sync_refusal(self, event: Sync) -> Refusal | None:
        refusal = self._identity_refusal(event.member_id, event.instance_id)
        if refusal is None and event.generation != self.generation:
            refusal = Refusal.ILLEGAL_GENERATION
        if refusal is None and (
            event.protocol_type not in (None, self.protocol_type)
            or event.protocol not in (None, self.protocol)
        ):
            refusal = Refusal.INCONSISTENT_GROUP_PROTOCOL
        if refusal is None and self.state is State.PREPARING:
            refusal = Refusal.REBALANCE_IN_PROGRESS
        return refusal

    def _beat(self, event: Beat, now: float) -> ClassicReply:
        refusal = self._identity_refusal(event.member_id, event.instance_id)
        if refusal is None and event.generation != self.generation:
            refusal = Refusal.ILLEGAL_GENERATION
        if refusal is not None:
            return Refused(refusal)
        self.members[event.member_id].lives(now)
        return Refused(Refusal.REBALANCE_IN_PROGRESS) if self.state is State.PREPARING else Accepted()

    def _leave(self, event: Leave, turn: ClassicTurn, now: float) -> None:
        if event.member_id in self.pending:
            del self.pending[event.member_id]
            turn.replies.append((event.token, Accepted()))
            self._complete_if_all_joined(turn, now)
            return
        static = self._static(event.instance_id)
        member_id = static.member_id if static is not None and not event.member_id else event.member_id
        refusal = self._identity_refusal(member_id, event.instance_id)
        if refusal is not None:
            turn.replies.append((event.token, Refused(refusal)))
            return
        turn.replies.append((event.token, Accepted()))
        self._remove(self.members[member_id], turn, now)

    def _remove(self, member: Member, turn: ClassicTurn, now: float) -> None:
        del self.members[member.member_id]
        for token in (member.join_token, member.sync_token):
            if token is not None:
                turn.replies.append((token, Refused(Refusal.UNKNOWN_MEMBER_ID)))
        self._prepare(turn, now)
        self._complete_if_all_joined(turn, now)

    # -- inside

    def _enter(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} is not followed by {state}"
        self.state = state
        if state in (State.PREPARING, State.COMPLETING):
            # Nothing is stored until the leader has assigned partitions.
            self._is_dirty = False

    def _assigned(self, member: Member) -> Synced:
        return Synced(self.protocol_type, self.protocol, member.assignment)

    @staticmethod
    def _answer_sync(member: Member, turn: ClassicTurn, reply: ClassicReply) -> None:
        token, member.sync_token = member.sync_token, None
        if token is not None:
            turn.replies.append((token, reply))

    def _with_change(self, turn: ClassicTurn) -> ClassicTurn:
        """Add the change that makes the store match a stable or empty group."""
        if not self._is_dirty or self._unstored:
            # Only one change is stored at a time: the next change follows when the first is stored.
            return turn
        self._is_dirty = False
        before = self._stored or frozenset()
        if not self.members:
            if self._stored is not None:
                turn.change = ClassicChange(None, {}, before)
                self._unstored += 1
            return turn
        group = ClassicGroupRecord(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader,
        )
        members = {each.member_id: self._record(each) for each in self.members.values()}
        turn.change = ClassicChange(group, members, before - members.keys())
        self._unstored += 1
        return turn

    def _record(self, member: Member) -> ClassicMemberRecord:
        return ClassicMemberRecord(
            instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            session_timeout_ms=member.session_timeout_ms,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            subscription=member.subscription(self.protocol),
            assignment=member.assignment,
        )


def _common(members: Iterable[Member]) -> set[str]:
    """Return the assignors that all members support."""
    names = [{name for name, _ in each.protocols} for each in members]
    return set.intersection(*names) if names else set()


def _elected(members: Iterable[Member]) -> str:
    """Return the assignor that most members prefer, among the assignors that all members support."""
    members = list(members)
    allowed = _common(members)
    votes = Counter(next(name for name, _ in each.protocols if name in allowed) for each in members)
    return votes.most_common(1)[0][0]


def _without_assignment(joined: Joined) -> Joined:
    """Return the reply to a leader that must not compute a new assignment."""
    return Joined(
        joined.member_id,
        joined.generation,
        joined.protocol_type,
        joined.protocol,
        joined.leader,
        joined.members,
        skips_assignment=True,
    )
