"""A partition that moves between members never has two owners, and members keep reading all other partitions.

A turn handles all events that have arrived since the previous turn, and is followed by the write of its change.
"""

from __future__ import annotations

import pytest

from driven_group import BOTH, FLIGHTS, Driven, T, U, partitions, wanting
from fairlead_api.problems import ProblemError
from fairlead_broker.groups import (
    Group,
    GroupRecords,
    GroupState,
    Heartbeat,
    HeartbeatReply,
    Leave,
    Left,
    Subscription,
    TopicShape,
)
from refusals import refuses


@pytest.fixture
def driven() -> Driven:
    """Return a group that does not exist yet, and a topic of six partitions."""
    return Driven()


def test_the_first_member_gets_everything_in_the_answer_to_its_join(driven: Driven) -> None:
    """The first join creates the group, and its answer grants all partitions."""
    dead = driven.group.state
    reply = driven.join("a")

    assert reply == HeartbeatReply(1, partitions(0, 1, 2, 3, 4, 5), 5_000, 45_000)
    assert (dead, driven.group.state) == (GroupState.DEAD, GroupState.STABLE)
    assert (driven.group.epoch, driven.group.assignor) == (1, "uniform")


def test_a_second_member_waits_for_a_target_then_for_what_the_first_gives_up(driven: Driven) -> None:
    """A second member gets half of the partitions after the first member's release is written.

    The first member keeps the half of the partitions that it did not release.
    """
    driven.join("a")
    waiting = driven.join("b")
    assigning = driven.group.state
    driven.now += 1
    driven.turn()
    reconciling = driven.group.state
    nothing_free = driven.come("b")
    told = driven.come("a")
    still_owning = driven.accepted(Heartbeat("a", 1, owned=partitions(0, 1, 2, 3, 4, 5)))
    withheld = driven.come("b")
    released = driven.come("a")
    granted = driven.come("b")

    assert waiting == HeartbeatReply(1, {}, 500, 45_000)
    assert (assigning, reconciling) == (GroupState.ASSIGNING, GroupState.RECONCILING)
    assert nothing_free == HeartbeatReply(2, None, 500, 45_000)
    assert told == HeartbeatReply(1, partitions(0, 1, 2), 500, 45_000)
    assert still_owning == told
    assert withheld == nothing_free
    assert released == HeartbeatReply(2, None, 5_000, 45_000)
    assert granted == HeartbeatReply(2, partitions(3, 4, 5), 5_000, 45_000)
    assert driven.group.state is GroupState.STABLE


def test_a_heartbeat_that_says_nothing_about_partitions_releases_none(driven: Driven) -> None:
    """A heartbeat that lists no partitions does not release any."""
    driven.join("a")
    driven.join("b")
    driven.now += 1
    for _ in range(3):
        driven.come("a", owned=False)

    assert driven.has("a") == {"t": {0, 1, 2}}
    assert driven.members["a"].revoking == {T: (3, 4, 5)}
    assert driven.group.owner(T, 4) == "a"  # type: ignore[arg-type]


def test_what_is_given_up_and_wanted_in_one_turn_is_granted_in_the_next(driven: Driven) -> None:
    """A released partition is granted in the next turn, because a change may be written in portions."""
    driven.join("a")
    driven.join("b")
    driven.now += 1
    driven.come("b")
    driven.come("a")
    first = driven.turn(Heartbeat("a", 1, owned=partitions(0, 1, 2)), Heartbeat("b", 2))
    second = driven.accepted(Heartbeat("b", 2))

    assert first[1] == HeartbeatReply(2, None, 500, 45_000)
    assert second.assignment == partitions(3, 4, 5)


def test_idle_members_take_over_what_others_leave(driven: Driven) -> None:
    """If there are more members than partitions, some are idle, and get partitions as soon as others leave."""
    for member_id in "abcdefgh":
        driven.join(member_id)
    driven.settle(*"abcdefgh")
    idle = [each for each in "abcdefgh" if not driven.has(each)]
    left = driven.turn(Leave("a"), Leave("b"))
    driven.settle(*"cdefgh")

    assert len(idle) == 2
    assert left == (Left(), Left())
    assert all(sum(map(len, driven.has(each).values())) == 1 for each in "cdefgh")


def test_heartbeats_of_members_at_rest_write_nothing(driven: Driven) -> None:
    """Heartbeats from members without pending changes write nothing."""
    driven.join("a")
    driven.come("a")
    writes = driven.writes
    replies = [driven.come("a"), driven.come("a", owned=False), driven.join("a")]

    assert driven.writes == writes
    assert [reply.assignment for reply in replies] == [None, None, partitions(0, 1, 2, 3, 4, 5)]


def test_a_member_that_reports_other_partitions_gets_its_assignment(driven: Driven) -> None:
    """A member that reports partitions other than its own, or sends its whole state, gets its assignment again."""
    driven.join("a")
    lost = driven.accepted(Heartbeat("a", 1, owned={}))
    full = driven.accepted(Heartbeat("a", 1, wanting("flights"), lost.assignment))

    assert lost.assignment == full.assignment == partitions(0, 1, 2, 3, 4, 5)


def test_an_assignment_is_sent_until_the_member_confirms_it(driven: Driven) -> None:
    """An assignment is sent until the member confirms it, because the answer may have been lost."""
    driven.join("a")
    driven.join("b")
    driven.settle("a")
    listened_to = driven.join("b")
    late = driven.accepted(Heartbeat("b", 0))
    told = [driven.come("b", owned=False) for _ in range(2)]
    driven.come("b")
    known = driven.come("b", owned=False)
    driven.loaded()
    told_anew = driven.come("b", owned=False)

    assert listened_to.assignment == late.assignment == partitions(3, 4, 5)
    assert [reply.assignment for reply in (*told, known, told_anew)] == [
        partitions(3, 4, 5),
        partitions(3, 4, 5),
        None,
        partitions(3, 4, 5),
    ]


def test_a_hundred_joins_in_one_turn_make_one_target(driven: Driven) -> None:
    """A hundred joins in one turn lead to one assignment and one group epoch."""
    replies = driven.turn(*(Heartbeat(f"m{n}", 0, wanting("flights")) for n in range(100)))

    assert {reply.member_epoch for reply in replies if isinstance(reply, HeartbeatReply)} == {1}
    assert driven.group.epoch == 1
    assert driven.group.member_count == 100


def test_a_second_passes_between_two_targets(driven: Driven) -> None:
    """One second passes between two assignments, and the deadline is the time of the next assignment."""
    driven.join("a")
    driven.join("b")
    due_at = driven.group.deadline()
    driven.now += 0.9
    driven.turn()
    early = driven.state
    driven.now += 0.1
    driven.turn()

    assert due_at == 101.0
    assert early is not None
    assert (early.epoch, early.target_epoch) == (2, 1)
    assert driven.state is not None
    assert driven.state.target_epoch == 2


def test_topics_that_come_grow_and_go_make_a_new_target(driven: Driven) -> None:
    """A created, grown or deleted topic causes a new assignment; partitions of a deleted topic are removed."""
    driven.join("a", Subscription(pattern="flights|wea.*"))
    driven.topics = BOTH
    driven.settle("a")
    found = driven.has("a")
    driven.topics = {"weather": TopicShape(U, 3)}
    driven.settle("a")

    assert found == {"t": {0, 1, 2, 3, 4, 5}, "u": {0, 1}}
    assert driven.has("a") == {"u": {0, 1, 2}}
    assert driven.group.members["a"].topics == {"weather"}


def test_topics_outside_of_subscriptions_change_nothing(driven: Driven) -> None:
    """Changes to topics that no member subscribes to cause no write."""
    driven.join("a")
    writes = driven.writes
    driven.topics = BOTH
    driven.come("a")

    assert driven.writes == writes


def test_a_changed_subscription_moves_only_what_it_concerns(driven: Driven) -> None:
    """A changed subscription moves the affected partitions only, and omitted fields keep their values."""
    driven.topics = BOTH
    driven.join("a", wanting("flights", rack="r", session_timeout_ms=9_000))
    driven.now += 1
    driven.turn(Heartbeat("a", 1, wanting("flights", "weather", rebalance_timeout_ms=7_000)))
    both = driven.has("a")
    driven.now += 1
    driven.accepted(Heartbeat("a", 2, Subscription(topics=frozenset(), pattern="w.*")))
    driven.accepted(Heartbeat("a", 2, owned=partitions(0, 1, topic=U)))
    driven.now += 1
    driven.accepted(Heartbeat("a", 3, Subscription(pattern="", assignor="range"), owned={}))
    record = driven.members["a"]
    driven.turn(Heartbeat("a", record.epoch, Subscription(rack="", assignor="")))
    taken_back = driven.members["a"]

    assert both == {"t": {0, 1, 2, 3, 4, 5}, "u": {0, 1}}
    assert record.assigned == {}
    assert (record.topics, record.topic_pattern) == ((), None)
    assert (record.rack, record.session_timeout_ms, record.rebalance_timeout_ms) == ("r", 9_000, 7_000)
    assert (driven.group.assignor, record.assignor) == ("range", "range")
    assert (taken_back.rack, taken_back.assignor) == (None, None)


def test_most_members_choose_the_assignor(driven: Driven) -> None:
    """The assignor with the most votes is used: the first by name on a tie, uniform without a vote."""
    driven.join("a", wanting("flights", assignor="uniform"))
    one = driven.group.assignor
    driven.join("b", wanting("flights", assignor="range"))
    driven.settle("a", "b")
    equal = driven.group.assignor
    driven.join("c", wanting("flights", assignor="uniform"))
    driven.settle("a", "b", "c")

    assert (one, equal, driven.group.assignor) == ("uniform", "range", "uniform")


def test_the_last_one_to_leave_empties_the_group(driven: Driven) -> None:
    """When its last member leaves, a group becomes empty and records the time.

    The next member of an empty group gets a higher epoch than all earlier members.
    """
    driven.join("a")
    driven.leave("a")
    emptied = (driven.group.state, driven.group.emptied_us, dict(driven.targets), driven.group.deadline())
    reply = driven.join("a")

    assert emptied == (GroupState.EMPTY, 100_000_000, {}, None)
    assert reply == HeartbeatReply(3, partitions(0, 1, 2, 3, 4, 5), 5_000, 45_000)
    assert driven.group.emptied_us is None


def test_a_join_and_a_leave_in_one_turn_leave_no_trace(driven: Driven) -> None:
    """A member that joins and leaves in one turn does not appear in the group, and its join is refused as unknown."""
    join, leave = driven.turn(Heartbeat("a", 0, wanting("flights")), Leave("a"))

    assert isinstance(join, ProblemError)
    assert join.code == "member_not_found"
    assert leave == Left()
    assert driven.group.state is GroupState.DEAD
    driven.now += 45
    driven.turn()
    assert driven.group.deadline() is None


def test_a_dropped_turn_leaves_no_trace(driven: Driven) -> None:
    """A dropped turn changes nothing, and the next turn makes the same decisions."""
    driven.join("a")
    driven.topics = BOTH
    events = (Heartbeat("b", 0, wanting("weather")), Leave("a"))
    before = (driven.group.state, driven.group.epoch, dict(driven.group.members))
    dropped = driven.group.turn(events, driven.topics, driven.now, 0)
    after = (driven.group.state, driven.group.epoch, dict(driven.group.members))
    again = driven.group.turn(events, driven.topics, driven.now, 0)

    assert after == before
    assert dropped == again
    with pytest.raises(AssertionError):
        driven.group.commit(dropped)
    driven.group.commit(again)
    assert set(driven.group.members) == {"b"}


def test_a_turn_without_a_change_cannot_be_committed(driven: Driven) -> None:
    """A turn without a change cannot be committed."""
    turn = driven.group.turn((), FLIGHTS, driven.now, 0)

    assert turn.change is None
    with pytest.raises(AssertionError):
        driven.group.commit(turn)


def test_only_heartbeats_at_rest_are_answered_without_a_turn(driven: Driven) -> None:
    """Only heartbeats without pending changes are answered outside a turn."""
    driven.join("a")
    driven.come("a")
    answered = driven.group.reply_at_rest(Heartbeat("a", 1), FLIGHTS, driven.now)

    assert answered == HeartbeatReply(1, None, 5_000, 45_000)
    for event in (
        Leave("a"),
        Heartbeat("a", 0),
        Heartbeat("a", 2),
        Heartbeat("a", 1, Subscription()),
        Heartbeat("b", 1),
    ):
        assert driven.group.reply_at_rest(event, FLIGHTS, driven.now) is None
    assert driven.group.reply_at_rest(Heartbeat("a", 1), dict(FLIGHTS), driven.now) is None
    assert driven.group.reply_at_rest(Heartbeat("a", 1), FLIGHTS, driven.now + 45) is None


def test_founding_and_dissolving(driven: Driven) -> None:
    """A group is created for commits without members, and a repeated creation changes nothing."""
    driven.stand(driven.group.founding(driven.now, 5))
    founded = (driven.group.state, driven.group.emptied_us, driven.group.epoch)
    again = driven.group.founding(driven.now, 6)
    driven.stand(driven.group.dissolution(driven.now))

    assert founded == (GroupState.EMPTY, 5, 0)
    assert again.change is None
    assert (driven.group.state, driven.state, driven.group.epoch) == (GroupState.DEAD, None, 0)
    assert (driven.group.assignor, driven.group.emptied_us) == ("uniform", None)
    driven.join("a")
    with refuses("group_not_empty"):
        driven.group.dissolution(driven.now)


def test_the_last_classic_member_restarts_the_retention_time(driven: Driven) -> None:
    """When its last classic member leaves, an empty group records the time; other groups are not changed."""
    absent = driven.group.emptying(driven.now, 4)
    driven.stand(driven.group.founding(driven.now, 5))
    driven.stand(driven.group.emptying(driven.now, 6))
    emptied_us = driven.group.emptied_us
    driven.join("a")

    assert absent.change is None
    assert emptied_us == 6
    assert driven.group.emptying(driven.now, 7).change is None


def test_a_group_without_records_is_nothing() -> None:
    """A group without records is absent until a member joins."""
    group = Group("g", GroupRecords(), 0.0)

    assert (group.state, group.members, group.deadline()) == (GroupState.DEAD, {}, None)
