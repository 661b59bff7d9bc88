"""The state machine of a group member: its inputs are outcomes of heartbeats, its outputs heartbeats and actions."""

from __future__ import annotations

import pytest
from msgspec import UNSET

from fairlead.errors import FairleadError, UnreachableError, error_of
from fairlead.group.member import (
    INSTANCE_WAIT_SECONDS,
    Action,
    Assign,
    Closed,
    Drop,
    Event,
    Fail,
    GroupMember,
    HeartbeatAnswered,
    HeartbeatRefused,
    HeartbeatWanted,
    Leave,
    LogFailure,
    MemberState,
    Overdue,
    Released,
    Resumed,
    Revoke,
    SendHeartbeat,
    Subscription,
    Taken,
    Woken,
)
from fairlead.settings import Backoff
from fairlead.topic_partition import TopicPartition
from fairlead_api.bodies.group_answers import AssignedPartitions, HeartbeatAnswer
from fairlead_api.bodies.group_requests import HeartbeatRequest
from fairlead_api.problems import ProblemError

ID = "1b4e28ba-2fa1-4d19-883f-0016d3cca427"
OTHER_ID = "2b4e28ba-2fa1-4d19-883f-0016d3cca427"


def at(*partitions: int) -> dict[TopicPartition, str]:
    """Return partitions of the topic flights, each with the topic's id."""
    return {TopicPartition("flights", partition): ID for partition in partitions}


class Driven:
    """A member, the current time, and the heartbeats that the member has requested."""

    def __init__(self, instance_id: str | None = None) -> None:
        subscription = Subscription(
            topics=("flights",),
            instance_id=instance_id,
            session_timeout_ms=45_000,
            rebalance_timeout_ms=300_000,
        )
        self.now = 100.0
        self.member = GroupMember(subscription, Backoff(0.1, 1.0), self.now)
        self.number = 0
        self.requests: list[HeartbeatRequest] = []

    def step(self, event: Event) -> list[Action]:
        """Feed an event and return the actions, except heartbeats, which are collected."""
        others: list[Action] = []
        for action in self.member.step(event, self.now):
            if isinstance(action, SendHeartbeat):
                self.number = action.number
                self.requests.append(action.request)
            else:
                others.append(action)
        return others

    def beat(self) -> HeartbeatRequest:
        """Advance to the deadline and return the heartbeat that is sent at that time."""
        assert self.member.deadline is not None, "no heartbeat is due"
        self.now = max(self.now, self.member.deadline)
        count = len(self.requests)
        self.step(Woken())
        assert len(self.requests) == count + 1
        return self.requests[-1]

    def answer(self, epoch: int, *partitions: int, number: int | None = None) -> list[Action]:
        """Answer the last heartbeat with an assignment."""
        topics = [AssignedPartitions(topic="flights", topic_id=ID, partitions=list(partitions))]
        return self._answered(epoch, topics if partitions else [], number)

    def agree(self, epoch: int) -> list[Action]:
        """Answer the last heartbeat without an assignment."""
        return self._answered(epoch, None, None)

    def _answered(
        self, epoch: int, assignment: list[AssignedPartitions] | None, number: int | None
    ) -> list[Action]:
        answer = HeartbeatAnswer(
            member_epoch=epoch, heartbeat_interval_ms=5_000, session_timeout_ms=45_000, assignment=assignment
        )
        return self.step(HeartbeatAnswered(self.number if number is None else number, answer))

    def refuse(self, error: FairleadError, number: int | None = None) -> list[Action]:
        """Refuse the last heartbeat, or report that no broker answered."""
        return self.step(HeartbeatRefused(self.number if number is None else number, error, 1.0))


def refusal(code: str) -> FairleadError:
    """Return the client's error for a problem code."""
    return error_of(ProblemError(code, "scripted"), subject="heartbeat")


LOST = UnreachableError("heartbeat", {"http://one:9520": "no answer"}, sent=True)


@pytest.fixture
def joining() -> Driven:
    """Return a member that has sent its first heartbeat."""
    driven = Driven()
    driven.beat()
    return driven


@pytest.fixture
def member(joining: Driven) -> Driven:
    """Return a member that has confirmed partitions 0 and 1 in epoch 3."""
    [assign] = joining.answer(3, 0, 1)
    assert isinstance(assign, Assign)
    joining.step(Taken(assign.round))
    joining.beat()
    joining.agree(3)
    return joining


def owned(request: HeartbeatRequest) -> list[int] | None:
    """Return the owned partitions in a heartbeat, or None if the heartbeat does not report owned partitions."""
    if request.owned is UNSET:
        return None
    return [partition for entry in request.owned for partition in entry.partitions]


def is_whole(request: HeartbeatRequest) -> bool:
    """Return whether a heartbeat contains all fields of the member's subscription."""
    return request.topics == ("flights",) and request.session_timeout_ms == 45_000


def test_a_join_contains_the_subscription_and_no_partitions() -> None:
    """A join contains epoch 0 and all fields of the subscription, but no owned partitions."""
    request = Driven().beat()

    assert request.member_epoch == 0
    assert is_whole(request)
    assert owned(request) is None


def test_an_assignment_is_taken_and_then_reported(joining: Driven) -> None:
    """Assigned partitions immediately count as owned, because the group must not assign them to another member."""
    actions = joining.answer(3, 0, 1)

    assert actions == [Assign(1, at(0, 1))]
    assert joining.member.state is MemberState.RECONCILING
    request = joining.beat()
    assert (request.member_epoch, owned(request), is_whole(request)) == (3, [0, 1], False)
    joining.step(Taken(1))
    assert joining.member.state is MemberState.STABLE


def test_heartbeats_come_at_the_interval_and_say_only_what_changed(member: Driven) -> None:
    """The next heartbeat is sent one interval after the last one, and contains only changed fields."""
    sent_at = member.now
    request = member.beat()

    assert member.now == sent_at + 5.0
    assert request == HeartbeatRequest(member_epoch=3)


def test_an_assignment_is_confirmed_even_if_it_changed_nothing(member: Driven) -> None:
    """An unchanged assignment is also confirmed, because a new coordinator repeats it until it is confirmed."""
    member.beat()
    assert member.answer(3, 0, 1) == []

    assert owned(member.beat()) == [0, 1]
    member.agree(3)
    assert owned(member.beat()) is None


def test_the_first_assignment_may_be_of_nothing(joining: Driven) -> None:
    """The first assignment is reported once, even if it is empty."""
    assert joining.answer(1) == [Assign(1, {})]
    joining.step(Taken(1))
    joining.beat()
    assert joining.answer(1) == []


def test_what_goes_is_reported_after_its_release_and_at_once(member: Driven) -> None:
    """The release of revoked partitions is reported immediately, and the other partitions are kept."""
    member.beat()
    [revoke] = member.answer(3, 0)
    assert revoke == Revoke(2, at(1))
    assert owned(member.beat()) == [0, 1]
    member.agree(3)

    assert member.step(Released(2)) == []
    request = member.requests[-1]
    assert (request.member_epoch, owned(request)) == (3, [0])


def test_a_release_during_a_heartbeat_is_reported_in_the_next_one(member: Driven) -> None:
    """A release during a heartbeat is reported in the next heartbeat, which is sent before the interval has passed."""
    member.beat()
    member.answer(3, 0)
    member.beat()
    member.step(Released(2))
    member.agree(3)

    assert owned(member.requests[-1]) == [0]
    assert len(member.requests) == 5


def test_what_comes_waits_for_what_goes(member: Driven) -> None:
    """New partitions are read only after the revoked partitions are released."""
    member.beat()
    assert member.answer(4, 0, 2) == [Revoke(2, at(1))]

    assert member.step(Released(2)) == [Assign(3, at(2))]
    assert set(member.member.held) == set(at(0, 2))


def test_an_assignment_that_changes_during_an_order_is_followed_after_it(member: Driven) -> None:
    """A new assignment that arrives while the member carries out an action is applied after that action."""
    member.beat()
    [assign] = member.answer(4, 0, 1, 2)
    member.beat()
    assert member.answer(4, 0, 1) == []
    assert isinstance(assign, Assign)

    assert member.step(Taken(assign.round)) == [Revoke(3, at(2))]


def test_a_topic_that_was_created_again_is_another_one(member: Driven) -> None:
    """A recreated topic is a different topic: the old partitions are revoked, then the new partitions are assigned."""
    member.beat()
    answer = HeartbeatAnswer(
        member_epoch=4,
        heartbeat_interval_ms=5_000,
        session_timeout_ms=45_000,
        assignment=[AssignedPartitions(topic="flights", topic_id=OTHER_ID, partitions=[0])],
    )
    assert member.step(HeartbeatAnswered(member.number, answer)) == [Revoke(2, at(0, 1))]
    [assign] = member.step(Released(2))
    assert assign == Assign(3, {TopicPartition("flights", 0): OTHER_ID})


def test_a_late_answer_is_dropped(member: Driven) -> None:
    """A late answer to an earlier heartbeat is dropped, because only the last heartbeat counts."""
    member.beat()
    late = member.number
    member.refuse(LOST)
    member.beat()

    assert member.answer(9, 5, number=late) == []
    assert member.refuse(refusal("member_fenced"), number=late) == []
    assert member.member.epoch == 3
    assert member.agree(3)[0] == LogFailure(None, pytest.approx(0.1))


def test_an_answer_that_comes_twice_is_taken_once(member: Driven) -> None:
    """The second answer to a heartbeat is dropped, because it would undo later changes."""
    member.beat()
    member.answer(4, 0, 1, 2)
    member.step(Taken(2))
    repeated = member.answer(4, 0, 1)

    assert repeated == []
    assert set(member.member.held) == set(at(0, 1, 2))


def test_after_a_lost_answer_all_fields_are_sent_again(member: Driven) -> None:
    """The heartbeat after a lost answer contains all fields, the member's epoch and its owned partitions."""
    member.beat()
    [told] = member.refuse(LOST)
    request = member.beat()

    assert told == LogFailure(LOST, 0.0)
    assert is_whole(request)
    assert (request.member_epoch, owned(request)) == (3, [0, 1])


@pytest.mark.parametrize(
    "code", ["not_coordinator", "coordination_unavailable", "shutting_down", "overloaded", "internal"]
)
def test_a_coordinator_that_moves_or_is_away_takes_nothing_from_the_member(member: Driven, code: str) -> None:
    """A member keeps its partitions while its coordinator moves or fails, and retries after increasing pauses."""
    pauses = []
    for _ in range(6):
        member.beat()
        sent_at = member.now
        member.refuse(refusal(code))
        assert member.member.deadline is not None
        pauses.append(round(member.member.deadline - sent_at, 3))

    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert set(member.member.held) == set(at(0, 1))
    assert member.member.state is MemberState.STABLE


def test_failed_heartbeats_are_reported_repeatedly(member: Driven) -> None:
    """Failed heartbeats are reported at the first failure, at a different error, every 30 seconds, and at recovery."""
    told = []
    member.beat()
    started = member.now
    while member.now < started + 65.0:
        told += member.refuse(LOST)
        member.beat()
    told += member.refuse(refusal("overloaded"))
    member.beat()
    told += member.agree(3)

    assert [type(action) for action in told] == [LogFailure] * 5
    assert [action.seconds for action in told if isinstance(action, LogFailure)] == pytest.approx(
        [0.0, 30.0, 60.0, 65.0, 66.0], abs=1.0
    )
    assert member.member.failing_since is None


@pytest.mark.parametrize("code", ["member_fenced", "stale_member_epoch", "member_not_found"])
def test_a_fenced_member_drops_everything_and_joins_again_at_once(member: Driven, code: str) -> None:
    """A fenced member drops its partitions and joins again at once, because other members may own them."""
    member.beat()
    error = refusal(code)
    actions = member.refuse(error)

    assert actions == [Drop(at(0, 1), error)]
    request = member.requests[-1]
    assert (request.member_epoch, owned(request), is_whole(request)) == (0, None, True)
    assert member.member.state is MemberState.JOINING


def test_a_member_fenced_while_it_joins_pauses(joining: Driven) -> None:
    """A member that is fenced while it joins waits before it retries, which prevents a tight loop."""
    joining.refuse(refusal("member_fenced"))

    assert joining.member.deadline == joining.now + 0.1
    assert joining.member.last_error is not None


def test_an_order_from_before_the_fence_is_out_of_date(member: Driven) -> None:
    """The outcome of an action that began before the member was fenced is ignored."""
    member.beat()
    [revoke] = member.answer(3, 0)
    assert isinstance(revoke, Revoke)
    member.beat()
    member.refuse(refusal("member_fenced"))
    [assign] = member.answer(8, 1)

    assert member.step(Released(revoke.round)) == []
    assert isinstance(assign, Assign)
    assert assign.partitions == at(1)
    assert assign.round > revoke.round
    assert set(member.member.held) == set(at(1))


@pytest.mark.parametrize("code", ["group_too_large", "invalid_pattern", "invalid_group_name"])
def test_a_wrong_request_ends_the_membership(joining: Driven, code: str) -> None:
    """A request that can never succeed ends the membership."""
    error = refusal(code)

    assert joining.refuse(error) == [Fail(error)]
    assert joining.member.state is MemberState.FAILED
    assert joining.member.deadline is None
    assert joining.step(Resumed()) == []
    assert joining.step(Closed()) == []


def test_a_static_member_waits_for_the_place_of_one_that_crashed() -> None:
    """A static member waits for the instance id of a crashed member, and fails if that member is still alive."""
    driven = Driven(instance_id="loader-1")
    request = driven.beat()
    assert request.instance_id == "loader-1"
    started, error = driven.now, refusal("instance_fenced")
    actions: list[Action] = []
    while not any(isinstance(action, Fail) for action in actions):
        actions = driven.refuse(error)
        if driven.member.deadline is not None:
            driven.beat()

    assert driven.now - started == pytest.approx(INSTANCE_WAIT_SECONDS, abs=1.0)
    assert driven.member.state is MemberState.FAILED


def test_a_static_member_that_lost_its_place_stops(member: Driven) -> None:
    """A static member that another process replaced stops, so that two processes do not replace each other forever."""
    member.beat()
    error = refusal("instance_fenced")

    assert member.refuse(error) == [Drop(at(0, 1), error), Fail(error)]


def test_a_stale_commit_has_the_coordinator_asked_at_once(member: Driven) -> None:
    """A stale commit causes an immediate heartbeat, whose answer contains the newer epoch."""
    count = len(member.requests)
    member.step(HeartbeatWanted())
    assert len(member.requests) == count + 1
    member.step(HeartbeatWanted())
    assert len(member.requests) == count + 1
    member.agree(4)

    assert len(member.requests) == count + 2
    assert member.member.epoch == 4


def test_a_stale_commit_does_not_shorten_the_pause_after_a_failure(member: Driven) -> None:
    """A stale commit does not shorten the pause after a failed heartbeat."""
    member.beat()
    member.refuse(LOST)
    deadline = member.member.deadline
    member.step(HeartbeatWanted())

    assert member.member.deadline == deadline


def test_a_member_that_is_overdue_leaves_and_comes_back(member: Driven) -> None:
    """A member that processes too slowly leaves and joins again, and an answer to its old heartbeat is dropped."""
    member.beat()
    error = FairleadError("too slow")
    assert member.step(Overdue(error)) == [Drop(at(0, 1), error), Leave()]
    assert member.member.state is MemberState.LEFT
    assert member.answer(4, 0, 1) == []
    assert member.step(Overdue(error)) == []
    assert member.member.deadline is None
    member.step(Resumed())

    assert member.requests[-1].member_epoch == 0
    assert member.answer(9, 2) == [Assign(member.member.round, at(2))]


def test_closing_leaves_once(member: Driven) -> None:
    """A member that is closed leaves once and sends no more heartbeats."""
    assert member.step(Closed()) == [Leave()]
    assert member.step(Closed()) == []
    assert member.member.deadline is None
    assert member.member.held == {}
