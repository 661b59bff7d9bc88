"""A new coordinator continues a group after any part of its predecessor's change was written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driven_group import BOTH, Driven, T, partitions, wanting, written
from fairlead_api.identifiers import TimestampUs
from fairlead_broker.groups import (
    GroupChange,
    GroupRecords,
    GroupState,
    Heartbeat,
    HeartbeatReply,
    Leave,
    MemberKey,
    StateKey,
    TargetKey,
)
from fairlead_broker.groups.roster import WrittenRoster
from fairlead_broker.registry.group_records import GroupRecord, MemberRecord, TargetRecord
from refusals import raises


@pytest.fixture
def driven() -> Driven:
    """Return a group that does not exist yet, and a topic of six partitions."""
    return Driven()


def test_a_take_over_moves_nothing_and_writes_nothing(driven: Driven) -> None:
    """A takeover of a group moves no partition and writes nothing, and starts sessions and rebalance timeouts again."""
    driven.join("a", wanting("flights", rebalance_timeout_ms=10_000))
    driven.join("b", wanting("flights", instance_id="i"))
    driven.now += 1
    driven.turn()
    driven.come("a", owned=False)
    driven.now += 8
    writes = driven.writes
    group = driven.loaded()
    replies = [driven.come("a", owned=False), driven.come("b")]

    assert driven.writes == writes + 1
    assert [reply.member_epoch for reply in replies] == [1, 2]
    assert group.deadline() == driven.now + 10
    assert driven.refused(Heartbeat("c", 0, wanting("flights", instance_id="i"))) == "instance_fenced"


def test_a_pending_target_is_made_at_once_after_a_take_over(driven: Driven) -> None:
    """A pending assignment is made at once after a takeover, because the time of the last assignment is unknown."""
    driven.join("a")
    driven.join("b")
    driven.loaded()
    state = driven.group.state
    deadline = driven.group.deadline()
    driven.turn()

    assert state is GroupState.ASSIGNING
    assert deadline is not None
    assert deadline <= driven.now
    assert driven.state is not None
    assert driven.state.target_epoch == 2


def test_a_topic_that_grew_between_two_coordinators_is_noticed(driven: Driven) -> None:
    """A topic that grew before a takeover is recognised by the partitions that the assignment lacks."""
    driven.join("a", wanting("flights", "weather"))
    driven.topics = BOTH
    driven.loaded()
    driven.settle("a")

    assert driven.has("a") == {"t": {0, 1, 2, 3, 4, 5}, "u": {0, 1}}


def prefixes(records: GroupRecords, change: GroupChange) -> list[GroupRecords]:
    """Return every stored state that a partly written change can leave."""
    found = []
    for portion in change.portions(1):
        records = written(records, portion)
        found.append(records)
    return found


def test_a_place_taken_in_part_makes_a_new_target() -> None:
    """A partly written change to members causes a new assignment, because the old assignment names a removed member."""
    driven = Driven(topics=BOTH)
    driven.join("a", wanting("flights", "weather", instance_id="i"))
    driven.join("b", wanting("flights", "weather"))
    driven.settle("a", "b")
    driven.leave("a", static=True)
    change = driven.group.turn(
        (Heartbeat("c", 0, wanting("flights", "weather", instance_id="i")),), driven.topics, driven.now, 7
    ).change
    assert change is not None
    for records in prefixes(driven.records, change):
        other = Driven(topics=BOTH, now=driven.now + 5, records=records)
        other.join("b")
        other.join("c", wanting("flights", "weather", instance_id="i"))
        other.settle("b", "c")

        assert other.group.state is GroupState.STABLE
        assert set(other.members) == {"b", "c"}
        assert sum(len(each) for member_id in "bc" for each in other.has(member_id).values()) == 8


@pytest.mark.parametrize("case", ["founding", "joining", "leaving", "emptying"])
def test_after_any_part_of_a_change_the_group_goes_on(case: str) -> None:
    """After any part of a change is stored, members join at or above the stored epochs and get all partitions."""
    driven = Driven()
    events: tuple[Heartbeat | Leave, ...] = tuple(Heartbeat(each, 0, wanting("flights")) for each in "xy")
    if case != "founding":
        driven.join("a")
        driven.join("b")
        driven.settle("a", "b")
        driven.now += 1
    if case == "leaving":
        events = (*events, Leave("a"))
    if case == "emptying":
        events = (Leave("a"), Leave("b"))
    change = driven.group.turn(events, driven.topics, driven.now, 7).change
    assert change is not None
    for records in prefixes(driven.records, change):
        other = Driven(now=driven.now, records=records)
        highest = max([0, *(each.epoch for each in other.members.values())])
        for member_id in sorted({*other.members, "x", "y"}):
            other.join(member_id)
        other.settle(*sorted(other.members))

        assert other.group.state is GroupState.STABLE
        assert set().union(*(other.has(each)["t"] for each in other.members)) == set(range(6))
        assert min(each.epoch for each in other.members.values()) >= highest


def test_targets_without_a_group_are_cleared() -> None:
    """Assignments without a group, left by a partly written deletion, are deleted."""
    driven = Driven(records=GroupRecords(targets={T: TargetRecord(epoch=3, members={"a": (0,)})}))
    driven.turn()

    assert driven.targets == {}
    assert driven.group.state is GroupState.DEAD


def test_portions_go_from_what_ends_to_the_state() -> None:
    """A change is written in portions of limited size: deleted members, members, assignments, and the state last."""
    member = MemberRecord(session_timeout_ms=1, rebalance_timeout_ms=1, epoch=1, previous_epoch=0)
    change = GroupChange(
        {
            StateKey(): GroupRecord(epoch=1, assignor="uniform", created_us=TimestampUs(0)),
            TargetKey(T): TargetRecord(epoch=1, members={}),
            MemberKey("b"): member,
        },
        frozenset({MemberKey("c")}),
    )

    assert len(change) == 4
    assert [[*each.puts, *each.deletes] for each in change.portions(1)] == [
        [MemberKey("c")],
        [MemberKey("b")],
        [TargetKey(T)],
        [StateKey()],
    ]
    assert list(change.portions(4)) == [change]


def test_a_record_under_a_key_of_another_kind_ends_the_coordinator() -> None:
    """A record under a key of a different kind stops the coordinator."""
    roster = WrittenRoster(GroupRecords())
    with raises(AssertionError, "MemberKey"):
        roster.apply(GroupChange({MemberKey("a"): TargetRecord(epoch=1, members={})}, frozenset()))


def test_two_owners_in_the_store_end_the_coordinator() -> None:
    """A partition with two stored owners stops the coordinator."""
    record = MemberRecord(
        session_timeout_ms=1, rebalance_timeout_ms=1, epoch=1, previous_epoch=0, assigned={T: (0,)}
    )
    with pytest.raises(AssertionError):
        WrittenRoster(GroupRecords(members={"a": record, "b": record}))


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["join", "leave", "come", "silent", "wait", "reload", "grow"]),
        st.sampled_from("abcde"),
    ),
    max_size=40,
)


@given(acts=ACTS)
def test_whatever_happens_everything_is_owned_once_in_the_end(acts: list[tuple[str, str]]) -> None:
    """After any events, every partition has one owner, and remaining members keep their partitions without a pause."""
    driven = Driven()
    for act, member_id in acts:
        there = member_id in driven.clients and member_id in driven.members
        match act:
            case "join":
                driven.join(member_id)
            case "leave" if there:
                driven.leave(member_id)
            case "come" if there:
                driven.come(member_id)
            case "silent" if there:
                driven.now += 46
            case "reload":
                driven.loaded()
            case "grow":
                driven.topics = BOTH
            case _:
                driven.now += 1
                driven.turn()
    for member_id in sorted(driven.members):
        driven.join(member_id)
    driven.settle(*sorted(driven.members))

    if driven.members:
        owned = sorted(number for each in driven.members for number in driven.has(each).get("t", ()))
        assert owned == [0, 1, 2, 3, 4, 5]
        assert driven.group.state is GroupState.STABLE
        held = [len(driven.has(each).get("t", ())) for each in driven.members]
        assert max(held) - min(held) <= 1


def test_a_join_is_answered_alike_by_two_coordinators(driven: Driven) -> None:
    """Two coordinators answer the same events at the same time with the same change and replies."""
    other = Driven()
    events = [Heartbeat(each, 0, wanting("flights")) for each in "cab"]

    assert driven.group.turn(events, driven.topics, 100.0, 5) == other.group.turn(
        events, driven.topics, 100.0, 5
    )
    assert isinstance(driven.turn(*events)[0], HeartbeatReply)
    assert driven.group.members["a"].target == partitions(0, 3)
