"""Acceptance of heartbeats and commits: member epochs, lost answers, static members, expired sessions.

A turn handles all events that have arrived since the previous turn, and is followed by the write of its change.
"""

from __future__ import annotations

import pytest

from driven_group import BOTH, Driven, T, U, partitions, wanting
from fairlead_api.identifiers import PartitionIndex
from fairlead_api.problems import ProblemError
from fairlead_broker.groups import (
    AWAY_EPOCH,
    GroupState,
    Heartbeat,
    HeartbeatReply,
    Leave,
    Left,
    Subscription,
    TopicShape,
    rest_interval_ms,
)


@pytest.fixture
def driven() -> Driven:
    """Return a group that does not exist yet, and a topic of six partitions."""
    return Driven()


def commit_code(driven: Driven, member_id: str | None, epoch: int) -> str | None:
    """Return the code with which a commit is refused."""
    try:
        driven.group.check_commit(member_id, epoch)
    except ProblemError as problem:
        return problem.code
    return None


def partition_code(driven: Driven, member_id: str | None, partition: int) -> str | None:
    """Return the code with which a commit of one partition is refused."""
    try:
        driven.group.check_committed_partition(member_id, T, PartitionIndex(partition))
    except ProblemError as problem:
        return problem.code
    return None


# -- epochs


def test_an_unknown_member_is_asked_to_join(driven: Driven) -> None:
    """A heartbeat or leave from an unknown member is refused, in an empty group and in a group with members."""
    dead = driven.refused(Heartbeat("b", 3))
    driven.join("a")

    assert dead == "member_not_found"
    assert driven.refused(Heartbeat("b", 3)) == "member_not_found"
    assert driven.refused(Leave("b")) == "member_not_found"


def test_an_epoch_that_is_not_the_members_is_fenced(driven: Driven) -> None:
    """A heartbeat in a higher epoch, or in an epoch before the previous epoch, is fenced and changes nothing."""
    driven.join("a")
    driven.join("b")
    driven.settle("a", "b")
    driven.leave("b")
    driven.settle("a")
    epochs = (driven.members["a"].previous_epoch, driven.members["a"].epoch)

    assert epochs == (2, 3)
    assert driven.refused(Heartbeat("a", 4)) == "member_fenced"
    assert driven.refused(Heartbeat("a", 1, owned={})) == "member_fenced"
    assert driven.refused(Heartbeat("a", -2, owned={})) == "member_fenced"
    assert driven.refused(Leave("a", 1)) == "member_fenced"


def test_the_previous_epoch_counts_once_more_after_a_lost_answer(driven: Driven) -> None:
    """A heartbeat in the previous epoch gets the whole assignment, unless revoked partitions are still owned."""
    driven.join("a")
    driven.join("b")
    driven.settle("b")
    driven.come("a")
    driven.accepted(Heartbeat("a", 1, owned=partitions(0, 1, 2)))
    again = driven.accepted(Heartbeat("a", 1, owned=partitions(0, 1)))

    assert again == HeartbeatReply(2, partitions(0, 1, 2), 5_000, 45_000)
    assert driven.refused(Heartbeat("a", 1, owned=partitions(2, 3))) == "member_fenced"
    assert driven.refused(Heartbeat("a", 1)) == "member_fenced"


def test_the_epoch_before_releases_nothing(driven: Driven) -> None:
    """A heartbeat in the previous epoch releases no partition, because it was sent before the revocation."""
    driven.join("a")
    driven.join("b")
    driven.settle("a", "b")
    driven.join("c")
    driven.now += 1
    driven.turn()
    driven.come("a", owned=False)
    late = driven.accepted(Heartbeat("a", 1, owned={}))

    assert driven.members["a"].revoking == {T: (2,)}
    assert late.member_epoch == 2
    assert driven.group.owner(T, PartitionIndex(2)) == "a"


def test_two_repeats_of_one_heartbeat_in_a_turn_are_decided_one_after_the_other(driven: Driven) -> None:
    """A repeated heartbeat in one turn is decided after the first, which has advanced the member's epoch."""
    driven.join("a")
    driven.join("b")
    driven.now += 1
    driven.come("a")
    driven.come("b")
    replies = driven.turn(
        Heartbeat("a", 1, owned=partitions(0, 1, 2)),
        Heartbeat("a", 1, owned=partitions(0, 1, 2)),
        Heartbeat("a", 1, owned=partitions(0, 1, 2, 3)),
    )

    assert replies[:2] == (HeartbeatReply(2, None, 5_000, 45_000),) * 2
    assert isinstance(replies[2], ProblemError)
    assert replies[2].code == "member_fenced"


def test_a_member_that_joins_again_gets_its_whole_assignment(driven: Driven) -> None:
    """A fenced member that joins again owns no partition, and is granted its whole assignment."""
    driven.join("a")
    driven.join("b")
    driven.now += 1
    driven.come("a")
    driven.come("b")
    again = driven.accepted(Heartbeat("a", 0))
    taken = driven.come("b")

    assert again == HeartbeatReply(2, partitions(0, 1, 2), 5_000, 45_000)
    assert taken.assignment == partitions(3, 4, 5)
    assert commit_code(driven, "a", 1) == "stale_member_epoch"


# -- commits


def test_a_member_commits_at_its_very_epoch_what_it_has(driven: Driven) -> None:
    """A member commits only in its current epoch: its own partitions, and revoked partitions until their release."""
    driven.join("a")
    driven.join("b")
    driven.now += 1
    driven.come("b")
    driven.come("a", owned=False)
    revoking = (commit_code(driven, "a", 1), partition_code(driven, "a", 3), partition_code(driven, "b", 3))
    driven.come("a")

    assert revoking == (None, None, "member_fenced")
    assert commit_code(driven, "a", 1) == "stale_member_epoch"
    assert commit_code(driven, "a", 2) is None
    assert commit_code(driven, "a", 3) == "member_fenced"
    assert commit_code(driven, "x", 2) == "member_not_found"
    assert (partition_code(driven, "a", 0), partition_code(driven, "a", 3)) == (None, "member_fenced")


def test_a_commit_without_a_member_needs_an_empty_group(driven: Driven) -> None:
    """A commit without a member is accepted for any partition while the group has no members."""
    before = (commit_code(driven, None, -1), partition_code(driven, None, 0), partition_code(driven, "a", 0))
    driven.join("a")
    during = (commit_code(driven, None, -1), commit_code(driven, "a", -1))
    driven.leave("a")

    assert before == (None, None, None)
    assert during == ("group_not_empty", "group_not_empty")
    assert commit_code(driven, None, -1) is None


# -- expired sessions


def test_a_silent_member_is_put_out_when_its_session_ends(driven: Driven) -> None:
    """A member without heartbeats is removed at the end of its session, when other members' heartbeats become due."""
    driven.join("a", wanting("flights", session_timeout_ms=6_000))
    driven.join("b", wanting("flights", session_timeout_ms=60_000))
    driven.settle("a", "b")
    ends_at = driven.now + 6
    at_rest = driven.come("b").heartbeat_interval_ms
    driven.now += 4
    soon = driven.come("b").heartbeat_interval_ms
    deadline = driven.group.deadline()
    driven.now = ends_at
    driven.turn()
    took_over = driven.come("b")

    assert at_rest == 5_000
    assert 2_050 <= soon < 2_450
    assert deadline == ends_at
    assert took_over.assignment == partitions(0, 1, 2, 3, 4, 5)
    assert driven.refused(Heartbeat("a", 2)) == "member_not_found"
    assert commit_code(driven, "a", 2) == "member_not_found"


def test_a_turn_that_ends_a_session_shortens_the_heartbeat_interval(driven: Driven) -> None:
    """A member whose heartbeat shares a turn with the end of another session gets a short heartbeat interval."""
    driven.topics = {"flights": TopicShape(T, 1)}
    driven.join("a", wanting("flights", session_timeout_ms=60_000))
    driven.join("b", wanting("flights", session_timeout_ms=6_000))
    driven.settle("a", "b")
    driven.now += 12
    reply = driven.come("a")

    assert set(driven.members) == {"a"}
    assert 50 <= reply.heartbeat_interval_ms < 450


def test_a_leave_in_an_unwritten_turn_is_done_in_the_next(driven: Driven) -> None:
    """A member whose session ended, and that leaves in an unwritten turn, is removed in the next turn."""
    driven.join("a", wanting("flights", session_timeout_ms=6_000))
    driven.join("b", wanting("flights", session_timeout_ms=60_000))
    driven.settle("a", "b")
    driven.now += 6
    dropped = driven.group.turn([Leave("a")], driven.topics, driven.now, int(driven.now * 1e6))
    driven.turn()

    assert dropped.replies == (Left(),)
    assert driven.members.keys() == {"b"}


def test_a_heartbeat_in_the_queue_saves_a_session(driven: Driven) -> None:
    """A heartbeat that waits in the coordinator's queue renews its session, even if the coordinator is slow."""
    driven.join("a")
    driven.now += 45

    assert driven.accepted(Heartbeat("a", 1)).member_epoch == 1


def test_a_member_that_does_not_give_up_in_time_is_put_out(driven: Driven) -> None:
    """A member that does not release its partitions within the rebalance timeout is removed despite its heartbeats."""
    driven.join("a", wanting("flights", rebalance_timeout_ms=10_000))
    driven.join("b")
    driven.now += 1
    driven.turn()
    driven.come("a", owned=False)
    sent_at = driven.now
    for _ in range(3):
        driven.now += 3
        driven.come("a", owned=False)
        driven.come("b")
    kept = set(driven.members)
    deadline = driven.group.deadline()
    driven.now += 1
    driven.turn()

    assert deadline == sent_at + 10
    assert kept == {"a", "b"}
    assert set(driven.members) == {"b"}
    assert driven.come("b").assignment == partitions(0, 1, 2, 3, 4, 5)


def test_the_time_to_give_up_does_not_start_again(driven: Driven) -> None:
    """The rebalance timeout of a member starts again only after the member has released its partitions."""
    driven.join("a", wanting("flights", rebalance_timeout_ms=10_000))
    driven.join("b")
    driven.now += 1
    driven.come("a", owned=False)
    driven.now += 5
    driven.turn(Heartbeat("a", 1, Subscription(rack="r")))
    deadline = driven.group.deadline()
    driven.come("a")

    assert deadline == 111.0
    assert driven.group.deadline() == 145.0


def test_giving_up_in_the_last_moment_is_in_time(driven: Driven) -> None:
    """A release that arrives within the rebalance timeout is accepted even if its turn is late."""
    driven.join("a", wanting("flights", rebalance_timeout_ms=10_000))
    driven.join("b")
    driven.now += 1
    driven.come("a")
    driven.now += 11
    driven.come("a")

    assert driven.has("a") == {"t": {0, 1, 2}}
    assert driven.members["a"].epoch == 2


def test_a_shorter_session_timeout_counts_from_the_heartbeat_that_brings_it(driven: Driven) -> None:
    """A shorter session timeout applies from the heartbeat that sets it."""
    driven.join("a")
    driven.turn(Heartbeat("a", 1, Subscription(session_timeout_ms=3_000)))
    shorter = driven.group.deadline()
    driven.turn(Heartbeat("a", 1, Subscription(session_timeout_ms=30_000)))

    assert (shorter, driven.group.deadline()) == (103.0, 130.0)


# -- static members


def static(instance_id: str = "i") -> Subscription:
    """Subscribe as a static member."""
    return wanting("flights", instance_id=instance_id)


def settings(driven: Driven, member_id: str) -> list[object]:
    """Return the stored settings of a member."""
    record = driven.members[member_id]
    return [
        record.topics,
        record.topic_pattern,
        record.rack,
        record.assignor,
        record.session_timeout_ms,
        record.rebalance_timeout_ms,
    ]


def test_a_static_member_comes_back_to_its_place(driven: Driven) -> None:
    """A static member that joins under a new member id gets its partitions back, without a new assignment."""
    driven.join("a", static())
    driven.join("b")
    driven.settle("a", "b")
    mine, others, epoch = driven.has("a"), driven.has("b"), driven.group.epoch
    driven.leave("a", static=True)
    away = (driven.members["a"].epoch, driven.has("a"), driven.group.state)
    driven.now += 30
    driven.come("b")
    back = driven.join("c", static())

    assert away == (AWAY_EPOCH, {}, GroupState.STABLE)
    assert back.assignment == {T: frozenset(mine["t"])}
    assert (driven.has("c"), driven.has("b"), driven.group.epoch) == (mine, others, epoch)
    assert driven.refused(Heartbeat("a", 2)) == "member_not_found"


def test_a_static_member_comes_back_under_its_own_member_id(driven: Driven) -> None:
    """After a static member has left, its heartbeats and commits are refused until it joins again under its own id."""
    driven.join("a", static())
    driven.leave("a", static=True)
    codes = [driven.refused(Heartbeat("a", epoch, owned={})) for epoch in (1, -2)]
    again = driven.turn(Leave("a", static=True))

    assert codes == ["member_fenced", "member_fenced"]
    assert again == (Left(),)
    assert driven.join("a", static()).assignment == partitions(0, 1, 2, 3, 4, 5)


def test_a_place_is_kept_until_the_session_ends(driven: Driven) -> None:
    """A static member that leaves keeps its partitions until its session ends; then other members get them."""
    driven.join("a", static())
    driven.join("b")
    driven.settle("a", "b")
    driven.now += 20
    driven.leave("a", static=True)
    driven.now += 40
    driven.come("b")
    driven.now += 5
    driven.turn()

    assert driven.come("b").assignment == partitions(0, 1, 2, 3, 4, 5)


def test_a_second_living_member_under_one_instance_id_is_fenced(driven: Driven) -> None:
    """A second member with an instance id in use is fenced, and a member with a different instance id can join."""
    driven.join("a", static())

    assert driven.refused(Heartbeat("b", 0, static())) == "instance_fenced"
    assert driven.refused(Heartbeat("a", 1, static("other"))) == "instance_fenced"
    assert driven.accepted(Heartbeat("a", 1, static())).member_epoch == 1
    assert driven.join("c", static("other")).member_epoch == 1


@pytest.mark.parametrize(
    ("instance_id", "said"), [("i", "joined as i and"), (None, "joined without an instance id and")]
)
def test_a_member_keeps_the_instance_id_of_its_join(
    driven: Driven, instance_id: str | None, said: str
) -> None:
    """A member that joins again with a different instance id is refused, and the refusal names the previous id."""
    driven.join("a", wanting("flights", instance_id=instance_id))
    (refusal,) = driven.turn(Heartbeat("a", 0, static("other")))

    assert isinstance(refusal, ProblemError)
    assert refusal.code == "instance_fenced"
    assert said in refusal.detail
    assert driven.members["a"].instance_id == instance_id


def test_a_static_member_that_crashed_is_followed_before_its_session_ends(driven: Driven) -> None:
    """A static member that misses two heartbeats can be replaced before its session ends."""
    driven.join("a", static())
    driven.now += 10
    early = driven.refused(Heartbeat("b", 0, static()))
    driven.now += 0.1
    taken = driven.join("b", static())
    granted = driven.come("b")

    assert early == "instance_fenced"
    assert taken == HeartbeatReply(1, {}, 500, 45_000)
    assert granted.assignment == partitions(0, 1, 2, 3, 4, 5)
    assert commit_code(driven, "a", 1) == "member_not_found"
    assert driven.group.epoch == 1


def test_members_of_a_crowded_broker_come_less_often_and_are_missed_later(driven: Driven) -> None:
    """With many members on a broker, each sends fewer heartbeats, but at least three per session.

    A member sends its next heartbeat soon if another member waits for partitions.
    """
    driven.join("a", static())
    driven.settle("a")
    intervals = []
    for members in (0, 1_000, 2_000, 100_000):
        driven.group.rest(rest_interval_ms(members))
        intervals.append(driven.come("a").heartbeat_interval_ms)
    driven.now += 29.9
    early = driven.refused(Heartbeat("b", 0, static()))
    driven.now += 0.2

    assert intervals == [5_000, 5_000, 10_000, 15_000]
    assert early == "instance_fenced"
    assert driven.join("b", static()).heartbeat_interval_ms == 500


def test_a_static_member_that_leaves_for_good_leaves_no_place(driven: Driven) -> None:
    """A static member that leaves permanently keeps no partitions, and neither does a member without an instance id."""
    driven.join("a", static())
    driven.join("b")
    driven.leave("a")
    driven.leave("b", static=True)

    assert driven.members == {}
    assert driven.join("c", static()).member_epoch > 1


def test_a_join_takes_nothing_over_from_a_life_before(driven: Driven) -> None:
    """A repeated join sets omitted settings to their defaults, and keeps the member's partitions."""
    said = wanting(
        "weather",
        pattern="fl.*",
        rack="r",
        assignor="range",
        session_timeout_ms=9_000,
        rebalance_timeout_ms=8_000,
    )
    driven.join("a", said)
    again = driven.join("a", wanting("flights"))
    driven.join("s", wanting("flights", pattern="wea.*", instance_id="i", session_timeout_ms=9_000))
    driven.leave("s", static=True)
    driven.join("t", static())
    plain = [("flights",), None, None, None, 45_000, 300_000]

    assert again.assignment == partitions(0, 1, 2, 3, 4, 5)
    assert settings(driven, "a") == settings(driven, "t") == plain
    assert driven.refused(Heartbeat("a", 0, Subscription(rack="r"))) == "malformed_request"
    assert driven.members["t"].instance_id == "i"


def test_a_changed_subscription_gets_no_partition_of_the_old_target(driven: Driven) -> None:
    """A member is granted no partition outside its changed subscription, even while the new assignment is pending."""
    driven.topics = BOTH
    driven.join("a", static())
    driven.leave("a", static=True)
    in_place = driven.join("b", wanting("weather", instance_id="i"))
    again = driven.join("b", wanting("weather", instance_id="i"))
    driven.now += 1
    driven.come("b")
    moved = driven.has("b")
    driven.join("c", wanting("weather"))
    driven.accepted(Heartbeat("b", driven.members["b"].epoch, wanting("flights"), {U: frozenset({0, 1})}))
    kept = driven.has("b")
    driven.now += 1
    driven.settle("b", "c")

    assert (in_place.assignment, again.assignment) == ({}, {})
    assert moved == kept == {"u": {0, 1}}
    assert (driven.has("b"), driven.has("c")) == ({"t": {0, 1, 2, 3, 4, 5}}, {"u": {0, 1}})


def test_another_subscription_in_an_old_place_makes_a_new_target(driven: Driven) -> None:
    """A static member that returns with a changed subscription causes a new assignment."""
    driven.join("a", static())
    driven.leave("a", static=True)
    driven.now += 1
    driven.join("b", wanting("weather", instance_id="i"))

    assert driven.group.epoch == 2
    assert driven.has("b") == {}
