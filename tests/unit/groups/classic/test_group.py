"""The classic protocol of groups, tested with Kafka's cases: events are inputs; replies and changes are outputs.

The tests share one file because all cases drive the same group with the same functions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_broker.groups.classic.group import ClassicGroup, State
from fairlead_broker.groups.classic.messages import (
    Accepted,
    Beat,
    ClassicChange,
    ClassicReply,
    ClassicTurn,
    Join,
    Joined,
    Leave,
    Refusal,
    Refused,
    Sync,
    Synced,
)

RANGE = (("range", b"sub"),)


@dataclass
class Driven:
    """A group whose changes are stored at once, unless `stores` is false."""

    group: ClassicGroup = field(default_factory=lambda: ClassicGroup(initial_delay_seconds=0))
    now: float = 0.0
    stores: bool = True
    replies: dict[object, ClassicReply] = field(default_factory=dict)
    changes: list[ClassicChange] = field(default_factory=list)
    numbers: int = 0

    def take(self, turn: ClassicTurn) -> None:
        """Record replies, and store the change."""
        self.replies.update(dict(turn.replies))
        if turn.change is not None:
            self.changes.append(turn.change)
            if self.stores:
                self.take(self.group.stored(turn.change))

    def join(self, member_id: str = "", **fields: object) -> int:
        """Join, and return the token."""
        self.numbers += 1
        given = {
            "new_id": f"m{self.numbers}",
            "instance_id": None,
            "client_id": "c",
            "client_host": "/h",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": RANGE,
            "needs_known_id": False,
            **fields,
        }
        self.take(self.group.handle(Join(token=self.numbers, member_id=member_id, **given), self.now))  # type: ignore[arg-type]
        return self.numbers

    def sync(self, joined: Joined, **assignments: bytes) -> int:
        """Sync, and return the token."""
        self.numbers += 1
        event = Sync(
            token=self.numbers,
            member_id=joined.member_id,
            instance_id=None,
            generation=joined.generation,
            assignments=assignments,
        )
        self.take(self.group.handle(event, self.now))
        return self.numbers

    def beat(self, member_id: str, generation: int, instance_id: str | None = None) -> ClassicReply:
        """Return the reply to a heartbeat."""
        self.take(
            self.group.handle(
                Beat(token="beat", member_id=member_id, instance_id=instance_id, generation=generation),
                self.now,
            )
        )
        return self.replies["beat"]

    def leave(self, member_id: str, instance_id: str | None = None) -> ClassicReply:
        """Return the reply to a leave."""
        self.take(
            self.group.handle(Leave(token="leave", member_id=member_id, instance_id=instance_id), self.now)
        )
        return self.replies["leave"]

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.take(self.group.expire(self.now))

    def joined(self, token: int) -> Joined:
        """Return the reply to an accepted join."""
        reply = self.replies[token]
        assert isinstance(reply, Joined), reply
        return reply

    def stable(self, members: int = 2) -> list[Joined]:
        """Bring the group into a generation with members, the first of which is the leader."""
        first = self.joined(self.join())
        tokens = [self.join() for _ in range(members - 1)]
        tokens = [self.join(first.member_id), *tokens]
        joined = [self.joined(token) for token in tokens]
        for each in joined[1:]:
            self.sync(each)
        self.sync(joined[0], **{each.member_id: each.member_id.encode() for each in joined})
        assert self.group.state is State.STABLE
        return joined


def test_the_leader_assigns_and_every_member_gets_its_part() -> None:
    """Members wait for each other; the leader learns of all members; assignments are sent once they are stored."""
    driven = Driven()
    first = driven.joined(driven.join())
    second = driven.join()
    assert second not in driven.replies
    assert driven.beat(first.member_id, 1) == Refused(Refusal.REBALANCE_IN_PROGRESS)

    leader = driven.joined(driven.join(first.member_id))
    other = driven.joined(second)
    waiting = driven.sync(other)
    driven.sync(leader, **{other.member_id: b"mine"})

    assert leader.generation == other.generation == 2
    assert [each.member_id for each in leader.members] == [leader.member_id, other.member_id]
    assert other.members == ()
    assert driven.replies[waiting] == Synced("consumer", "range", b"mine")
    [change] = driven.changes
    assert change.group is not None
    assert change.members[other.member_id].assignment == b"mine"
    assert driven.beat(other.member_id, 2) == Accepted()


def test_a_member_without_an_id_joins_with_the_one_it_is_given() -> None:
    """From JoinGroup 4 on, a member first gets an id, which is forgotten after the session timeout."""
    driven = Driven()

    asked = driven.join(needs_known_id=True)
    other = driven.join(needs_known_id=True)

    assert driven.replies[asked] == Refused(Refusal.MEMBER_ID_REQUIRED, "m1")
    assert driven.replies[other] == Refused(Refusal.MEMBER_ID_REQUIRED, "m2")
    waiting = driven.join("m1")
    assert waiting not in driven.replies
    driven.pass_time(10)
    assert driven.joined(waiting).generation == 1
    assert driven.replies[driven.join("m2")] == Refused(Refusal.UNKNOWN_MEMBER_ID)


def test_a_pending_member_may_leave() -> None:
    """A member that has an id and leaves before it joins does not delay the other members."""
    driven = Driven()
    driven.join(needs_known_id=True)
    waiting = driven.join()

    assert driven.leave("m1") == Accepted()
    assert driven.joined(waiting).generation == 1


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"session_timeout_ms": 1}, Refusal.INVALID_SESSION_TIMEOUT),
        ({"protocols": ()}, Refusal.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, Refusal.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("sticky", b""),)}, Refusal.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, Refusal.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "unknown"}, Refusal.UNKNOWN_MEMBER_ID),
        ({"member_id": "m1", "instance_id": "unknown"}, Refusal.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_join_that_does_not_fit_is_refused(fields: dict[str, object], refusal: Refusal) -> None:
    """Joins with a different assignor or kind, an invalid timeout or an unknown id change nothing."""
    driven = Driven()
    driven.stable()

    assert driven.replies[driven.join(**fields)] == Refused(refusal)  # type: ignore[arg-type]
    assert driven.group.state is State.STABLE


def test_a_repeated_join_gets_the_current_generation_and_a_leaders_rebalances() -> None:
    """A follower whose reply was lost continues; a join by the leader, or a new subscription, begins a rebalance."""
    driven = Driven()
    leader, follower = driven.stable()

    assert driven.joined(driven.join(follower.member_id)).generation == leader.generation
    assert driven.group.state is State.STABLE
    driven.join(follower.member_id, protocols=(("range", b"other"),))
    assert driven.group.state is State.PREPARING
    again = driven.join(leader.member_id)
    assert driven.joined(again).generation == leader.generation + 1
    lost = driven.join(leader.member_id)
    assert driven.joined(lost).generation == leader.generation + 1
    assert len(driven.joined(lost).members) == 2


def test_a_repeated_join_ends_the_join_that_waits() -> None:
    """A member that joins again while its join waits gets a reply to its last join only."""
    driven = Driven()
    leader, follower = driven.stable()
    first, second = driven.join(leader.member_id), driven.join(leader.member_id)
    assert driven.replies[first] == Refused(Refusal.UNKNOWN_MEMBER_ID)
    assert second not in driven.replies

    driven.join(follower.member_id)

    assert driven.joined(second).generation == leader.generation + 1


def test_a_silent_member_is_removed_and_the_group_of_none_is_deleted() -> None:
    """A silent member is removed after its session; the records of an empty group are deleted."""
    driven = Driven()
    leader, follower = driven.stable()
    driven.now = 6
    assert driven.beat(leader.member_id, leader.generation) == Accepted()

    driven.pass_time(5)
    assert driven.beat(leader.member_id, leader.generation) == Refused(Refusal.REBALANCE_IN_PROGRESS)
    assert driven.beat(follower.member_id, follower.generation) == Refused(Refusal.UNKNOWN_MEMBER_ID)
    assert driven.leave(leader.member_id) == Accepted()

    assert driven.group.state is State.EMPTY
    assert driven.changes[-1].group is None
    assert driven.group.is_idle
    assert driven.group.deadline() == inf


def test_a_rebalance_does_not_wait_for_ever() -> None:
    """Members that do not join within the longest rebalance timeout, or do not sync, are removed."""
    driven = Driven()
    leader, follower = driven.stable()
    driven.join(leader.member_id)
    driven.now = 9
    driven.beat(follower.member_id, follower.generation)
    driven.now = 18
    driven.beat(follower.member_id, follower.generation)
    for _ in range(6):
        driven.now += 9
        driven.beat(follower.member_id, follower.generation)
    driven.pass_time(0)

    assert list(driven.group.members) == [leader.member_id]
    assert driven.group.state is State.COMPLETING
    late = driven.join()
    assert late not in driven.replies
    driven.join(leader.member_id)
    waiting = driven.sync(driven.joined(late))
    for _ in range(7):
        driven.now += 9
        driven.beat(leader.member_id, driven.group.generation)
    driven.pass_time(0)
    assert driven.replies[waiting] == Refused(Refusal.REBALANCE_IN_PROGRESS)
    assert leader.member_id not in driven.group.members


def test_an_assignment_that_is_not_stored_begins_a_rebalance() -> None:
    """Members that wait for an assignment are notified if the coordinator could not store it."""
    driven = Driven(stores=False)
    leader = driven.joined(driven.join())
    waiting = driven.sync(leader, **{leader.member_id: b"a"})
    [change] = driven.changes

    driven.take(driven.group.not_stored(change, driven.now))

    assert driven.replies[waiting] == Refused(Refusal.COORDINATOR_NOT_AVAILABLE)
    assert driven.group.state is State.PREPARING
    assert driven.replies[driven.sync(leader)] == Refused(Refusal.REBALANCE_IN_PROGRESS)


def test_a_deletion_that_is_not_stored_is_repeated() -> None:
    """If the deletion of an empty group's records was not stored, it is repeated at the next event."""
    driven = Driven()
    [leader] = driven.stable(1)
    driven.stores = False
    driven.leave(leader.member_id)
    driven.take(driven.group.not_stored(driven.changes[-1], driven.now))
    driven.stores = True

    driven.pass_time(0)

    assert driven.group.is_idle


def test_a_group_that_was_never_stored_deletes_nothing() -> None:
    """A group that becomes empty before its first assignment is stored needs no change after the failed write."""
    driven = Driven(stores=False)
    leader = driven.joined(driven.join())
    driven.sync(leader)
    driven.leave(leader.member_id)
    [change] = driven.changes
    driven.take(driven.group.not_stored(change, driven.now))
    driven.pass_time(0)

    assert driven.changes == [change]
    assert driven.group.is_idle


def test_a_change_waits_for_the_one_before() -> None:
    """A group that becomes empty while its assignment is being stored deletes its records afterwards."""
    driven = Driven(stores=False)
    leader = driven.joined(driven.join())
    driven.sync(leader)
    driven.leave(leader.member_id)
    [change] = driven.changes

    driven.stores = True
    driven.take(driven.group.stored(change))
    driven.pass_time(0)

    assert driven.group.state is State.EMPTY


def test_a_static_member_comes_back_without_a_rebalance() -> None:
    """The next process of a static member takes over its place and assignment, and the previous process is fenced."""
    driven = Driven()
    first = driven.joined(driven.join(instance_id="i"))
    driven.sync(first, **{first.member_id: b"mine"})

    again = driven.joined(driven.join(instance_id="i"))

    assert driven.group.state is State.STABLE
    assert again.skips_assignment
    assert again.leader == again.member_id != first.member_id
    assert driven.replies[driven.sync(again)] == Synced("consumer", "range", b"mine")
    assert driven.beat(first.member_id, 1, "i") == Refused(Refusal.FENCED_INSTANCE_ID)
    assert driven.changes[-1].gone == {first.member_id}
    driven.join(instance_id="i", protocols=(("range", b"changed"),))
    assert driven.group.generation == first.generation + 1
    assert driven.leave("", "i") == Accepted()
    assert driven.leave("", "i") == Refused(Refusal.UNKNOWN_MEMBER_ID)


def test_a_static_member_comes_back_once_its_new_id_is_stored() -> None:
    """The join of a static member's next process is answered when its id is stored, and refused when it is not."""
    driven = Driven()
    first = driven.joined(driven.join(instance_id="i"))
    driven.sync(first, **{first.member_id: b"mine"})
    driven.stores = False

    refused = driven.join(instance_id="i")
    assert refused not in driven.replies
    driven.take(driven.group.not_stored(driven.changes[-1], driven.now))
    again = driven.join(instance_id="i")
    assert again not in driven.replies
    driven.take(driven.group.stored(driven.changes[-1]))

    assert driven.replies[refused] == Refused(Refusal.COORDINATOR_NOT_AVAILABLE)
    assert driven.joined(again).member_id in driven.changes[-1].members
    assert driven.group.state is State.STABLE


def test_each_returning_static_member_waits_for_its_own_id() -> None:
    """A write that stores the new id of one returning static member answers no join of another one."""
    driven = Driven()
    first = driven.joined(driven.join(instance_id="i"))
    second = driven.join(instance_id="j")
    leader = driven.joined(driven.join(first.member_id, instance_id="i"))
    driven.sync(driven.joined(second))
    driven.sync(leader)
    driven.stores = False

    earlier = driven.join(instance_id="i")
    later = driven.join(instance_id="j")
    driven.take(driven.group.stored(driven.changes[-1]))
    assert driven.joined(earlier).member_id in driven.changes[-2].members
    assert later not in driven.replies
    driven.take(driven.group.stored(driven.changes[-1]))

    assert driven.joined(later).member_id in driven.changes[-1].members


def test_a_static_member_that_waits_is_replaced() -> None:
    """The waiting join of a static member is refused when its next process joins."""
    driven = Driven()
    driven.join()
    waiting = driven.join(instance_id="i")

    driven.join(instance_id="i")

    assert driven.replies[waiting] == Refused(Refusal.FENCED_INSTANCE_ID)


def test_static_members_keep_their_place_in_a_rebalance_that_they_miss() -> None:
    """A static member that does not join again in time stays a member until its session ends."""
    driven = Driven()
    driven.join(instance_id="i", session_timeout_ms=300_000)
    other = driven.join()
    driven.pass_time(60)

    assert driven.joined(other).leader == driven.joined(other).member_id
    assert len(driven.group.members) == 2


def test_commits_are_checked_against_the_generation() -> None:
    """Members commit only in the current generation, and not between a join and the assignment that follows."""
    driven = Driven()
    [leader] = driven.stable(1)
    check = driven.group.commit_refusal

    assert check(leader.member_id, leader.generation) is None
    assert check("other", leader.generation) is Refusal.UNKNOWN_MEMBER_ID
    assert check(leader.member_id, 0) is Refusal.ILLEGAL_GENERATION
    driven.join(leader.member_id)
    assert check(leader.member_id, driven.group.generation) is Refusal.REBALANCE_IN_PROGRESS


def test_syncs_and_heartbeats_of_other_generations_are_refused() -> None:
    """Syncs and heartbeats of another generation, and syncs with a different assignor, are refused."""
    driven = Driven()
    [leader] = driven.stable(1)
    sync = Sync(token="s", member_id=leader.member_id, instance_id=None, generation=9, assignments={})
    other = Sync(
        token="o",
        member_id=leader.member_id,
        instance_id=None,
        generation=leader.generation,
        protocol="x",
        assignments={},
    )
    driven.take(driven.group.handle(sync, 0))
    driven.take(driven.group.handle(other, 0))

    assert driven.replies["s"] == Refused(Refusal.ILLEGAL_GENERATION)
    assert driven.replies["o"] == Refused(Refusal.INCONSISTENT_GROUP_PROTOCOL)
    assert driven.beat(leader.member_id, 9) == Refused(Refusal.ILLEGAL_GENERATION)


def test_the_first_join_of_an_empty_group_waits_for_more_members() -> None:
    """Each member extends the initial delay, within the rebalance timeout."""
    driven = Driven(ClassicGroup(initial_delay_seconds=3))
    first = driven.join()
    driven.pass_time(2)
    second = driven.join()
    driven.pass_time(2)
    assert not driven.replies

    driven.pass_time(1)

    assert driven.joined(first).generation == driven.joined(second).generation == 1


def test_a_stable_group_survives_its_coordinator() -> None:
    """A stable group continues in its generation with full sessions; without a group record, members join again."""
    driven = Driven()
    leader, follower = driven.stable()
    change = driven.changes[-1]

    loaded = Driven(ClassicGroup.load(change.group, change.members, 100.0), 100.0)
    assert loaded.beat(follower.member_id, follower.generation) == Accepted()
    assert loaded.replies[loaded.sync(leader)] == Synced("consumer", "range", leader.member_id.encode())
    assert loaded.group.deadline() == 110.0
    interrupted = Driven(ClassicGroup.load(None, change.members, 0.0))
    assert interrupted.beat(follower.member_id, 1) == Refused(Refusal.UNKNOWN_MEMBER_ID)
    assert interrupted.changes[-1].gone == change.members.keys()
    assert ClassicGroup.load(None, {}, 0.0).is_idle


@given(
    st.lists(
        st.tuples(st.sampled_from(["join", "rejoin", "sync", "beat", "leave", "time"]), st.integers(0, 3)),
        max_size=40,
    )
)
def test_no_order_of_events_breaks_a_group(events: list[tuple[str, int]]) -> None:
    """Every event is answered or waits, generations only increase, and each partition has at most one owner."""
    driven = Driven()
    generation = 0
    for kind, number in events:
        members = sorted(driven.group.members)
        member = members[number % len(members)] if members else "none"
        match kind:
            case "join":
                driven.join(needs_known_id=number > 2, instance_id="i" if number == 1 else None)
            case "rejoin":
                driven.join(member)
            case "sync":
                joined = Joined(member, driven.group.generation, "consumer", "range", driven.group.leader)
                driven.sync(joined, **{each: bytes([place]) for place, each in enumerate(members)})
            case "beat":
                driven.beat(member, driven.group.generation)
            case "leave":
                driven.leave(member)
            case _:
                driven.pass_time(4.0 * number)

        assert driven.group.generation >= generation
        generation = driven.group.generation
        if driven.group.state is State.STABLE:
            owned = [each.assignment for each in driven.group.members.values() if each.assignment]
            assert len(owned) == len(set(owned))
        # Without members, a rebalance waits only for members that have an id and have not joined yet.
        is_left = not driven.group.members and not (
            driven.group.pending and driven.group.state is State.PREPARING
        )
        assert (driven.group.state is State.EMPTY) == is_left
