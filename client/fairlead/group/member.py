"""A member of a consumer group as a machine: what the coordinator says goes in, what to do comes out.

Pure: `group_session` sends what is ordered here and reports what became of it; time and chance are arguments. The
member is the client's half of KIP-848: it tells the coordinator what it still works on, gives up what is taken from it
before it says so, and takes what it is given.

    JOINING ──answer──> STABLE <──> RECONCILING        (a partition to give up or to take)
       ^                   │ fenced, overdue
       └───────────────────┘                           LEFT (overdue, closed), FAILED (refused for good)

Four rules prevent two readers of one partition:
- one heartbeat is under way at a time, and only the answer to the last one counts: a late or repeated one is dropped;
- after a heartbeat without a good answer the next one is whole, so that a lost answer is given again;
- a partition is reported as owned from the order to read it until it was released;
- a fenced member drops all partitions at once, and joins again with epoch 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from msgspec import UNSET

from fairlead.errors import (
    BugError,
    ClusterError,
    FairleadError,
    FencedError,
    InstanceFencedError,
    MemberNotFoundError,
)
from fairlead.group.events import (
    Action,
    Assign,
    Closed,
    Drop,
    Event,
    Fail,
    HeartbeatAnswered,
    HeartbeatRefused,
    HeartbeatWanted,
    Leave,
    Overdue,
    Partitions,
    Released,
    Resumed,
    Revoke,
    SendHeartbeat,
    Taken,
    Tell,
    Woken,
)
from fairlead.settings import Backoff
from fairlead.topic_partition import TopicPartition
from fairlead_api.bodies.group_answers import AssignedPartitions, HeartbeatAnswer
from fairlead_api.bodies.group_requests import HeartbeatRequest, OwnedPartitions

INSTANCE_WAIT_SECONDS: Final = 15.0
"""How long a static member that joins waits for its place, at most a session: a holder that crashed gives it up after
two missed heartbeats, and one that lives keeps it."""

TOLD_AGAIN_SECONDS: Final = 30.0
"""Interval of log lines while heartbeats keep failing, in place of one at every attempt."""


class MemberState(StrEnum):
    """Where a member stands, as its consumer shows it."""

    JOINING = "joining"
    RECONCILING = "reconciling"
    STABLE = "stable"
    LEFT = "left"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What a member tells of itself whenever it tells everything."""

    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    instance_id: str | None = None
    rack: str | None = None
    assignor: str | None = None
    session_timeout_ms: int
    rebalance_timeout_ms: int


class GroupMember:
    """The machine. `step` is its only door; everything else is to be read."""

    def __init__(self, subscription: Subscription, backoff: Backoff, now: float) -> None:
        self._subscription = subscription
        self._backoff = backoff
        self.epoch = 0
        """The epoch under which commits are made; 0 while the member is none."""
        self.held: dict[TopicPartition, str] = {}
        """What the member works on: reported as owned until it was released."""
        self.failing_since: float | None = None
        """When the heartbeats began to fail, without a good one since."""
        self.last_error: FairleadError | None = None
        self.heartbeats_answered = 0
        self._target: dict[TopicPartition, str] | None = None
        self._number = 0
        self._under_way = False
        self._wanted = False
        """Another heartbeat is wanted as soon as the one under way has its answer."""
        self._whole = True
        self._sent_owned: dict[TopicPartition, str] = {}
        self._known_owned: dict[TopicPartition, str] | None = None
        """Partitions that the coordinator last confirmed as owned; None: they must be sent again."""
        self._sent_at = now
        self._failures = 0
        self._told_at = 0.0
        self._beat_at: float | None = now
        self._round = 0
        self._revoking: dict[TopicPartition, str] | None = None
        self._taking = False
        self._greeted = False
        self._away = False
        self._failed = False

    @property
    def state(self) -> MemberState:
        """Where the member stands."""
        if self._failed:
            return MemberState.FAILED
        if self._away:
            return MemberState.LEFT
        if self.epoch == 0:
            return MemberState.JOINING
        return MemberState.RECONCILING if self._reconciling else MemberState.STABLE

    @property
    def is_joining(self) -> bool:
        """Whether a join is on its way: a leave that overtakes it would leave a ghost that holds partitions."""
        return self._under_way and self.epoch == 0

    @property
    def round(self) -> int:
        """The number of the last order to revoke or to assign; an order of another one is out of date."""
        return self._round

    @property
    def deadline(self) -> float | None:
        """When the next `Woken` is due; None while an answer is awaited or nothing more is to come."""
        return None if self._under_way else self._beat_at

    def is_assigned(self, place: TopicPartition, topic_id: str) -> bool:
        """Whether the newest answer still gives a partition to the member."""
        return self._target is not None and self._target.get(place) == topic_id

    def step(self, event: Event, now: float) -> list[Action]:
        """Take one event in and return what to do about it, in this order."""
        actions: list[Action] = []
        match event:
            case HeartbeatAnswered() | HeartbeatRefused():
                if self._under_way and event.number == self._number:
                    self._under_way = False
                    self._heard(event, now, actions)
            case Released() | Taken():
                # An answer of an earlier round is out of date: all partitions were dropped since.
                if event.round == self._round and self._reconciling:
                    self._moved(event, now, actions)
            case HeartbeatWanted():
                # The epoch may be the previous one: together with the owned partitions it means a lost answer, not a
                # fence.
                self._known_owned = None
                self._hurry(now)
            case Overdue(error):
                self._leave(error, actions)
            case Resumed():
                self._come_back(now)
            case Closed():
                self._leave(None, actions)
            case Woken():
                pass
        self._beat(now, actions)
        return actions

    @property
    def _reconciling(self) -> bool:
        return self._revoking is not None or self._taking

    def _heard(self, event: HeartbeatAnswered | HeartbeatRefused, now: float, actions: list[Action]) -> None:
        """Take the outcome of the heartbeat under way; late and repeated ones do not come here."""
        if isinstance(event, HeartbeatAnswered):
            self._answered(event.answer, now, actions)
        else:
            self._refused(event.error, event.chance, now, actions)

    def _moved(self, event: Released | Taken, now: float, actions: list[Action]) -> None:
        if isinstance(event, Released):
            assert self._revoking is not None, "only what was ordered to go is released"
            for place in self._revoking:
                del self.held[place]
            self._revoking = None
            # Others wait for it.
            self._hurry(now)
        else:
            self._taking = False
        self._reconcile(actions)

    def _come_back(self, now: float) -> None:
        if self._away and not self._failed:
            self._away = False
            self._beat_at = now

    def _answered(self, answer: HeartbeatAnswer, now: float, actions: list[Action]) -> None:
        if self.failing_since is not None:
            actions.append(Tell(None, now - self.failing_since))
        self.failing_since = self.last_error = None
        self._failures = 0
        self._whole = False
        self._known_owned = self._sent_owned
        self.heartbeats_answered += 1
        self.epoch = answer.member_epoch
        interval = answer.heartbeat_interval_ms / 1000
        self._beat_at = now if self._wanted else max(self._sent_at + interval, now)
        self._wanted = False
        if answer.assignment is not None:
            # The release is sent again until a heartbeat with the owned partitions has been confirmed.
            self._known_owned = None
            self._target = _named(answer.assignment)
        self._reconcile(actions)

    def _refused(self, error: FairleadError, chance: float, now: float, actions: list[Action]) -> None:
        self._whole = True
        self._known_owned = None
        self._wanted = False
        if self._is_final(error, now):
            self._failed = True
            self._beat_at = None
            self._drop(error, actions)
            actions.append(Fail(error))
            return
        joined = self.epoch > 0
        self._failures += 1
        advice = error.retry_after_seconds if isinstance(error, ClusterError) else None
        self._beat_at = now + self._backoff.seconds(self._failures, chance, advice)
        if is_fenced(error):
            self._drop(error, actions)
            if joined:
                # Nothing to wait for: the coordinator answers, and knows this member no longer.
                self._beat_at = now
                return
        self._fails(error, now, actions)

    def _is_final(self, error: FairleadError, now: float) -> bool:
        """Whether no later heartbeat could succeed: a wrong request, or another one that has the static id."""
        if isinstance(error, InstanceFencedError):
            since = now if self.failing_since is None else self.failing_since
            wait = min(INSTANCE_WAIT_SECONDS, self._subscription.session_timeout_ms / 1000)
            return self.epoch > 0 or now - since >= wait
        if not isinstance(error, ClusterError) or is_fenced(error) or isinstance(error, BugError):
            return False
        return not error.retryable

    def _fails(self, error: FairleadError, now: float, actions: list[Action]) -> None:
        is_new = type(error) is not type(self.last_error)
        self.last_error = error
        if self.failing_since is None:
            self.failing_since = now
        if is_new or now - self._told_at >= TOLD_AGAIN_SECONDS:
            self._told_at = now
            actions.append(Tell(error, now - self.failing_since))

    def _reconcile(self, actions: list[Action]) -> None:
        """Order the next step towards the assignment: what must go first, one step at a time."""
        if self._target is None or self._reconciling:
            return
        gone = _without(self.held, self._target)
        new = _without(self._target, self.held)
        if gone:
            self._round += 1
            self._revoking = gone
            actions.append(Revoke(self._round, gone))
        elif new or not self._greeted:
            self._round += 1
            self._taking = self._greeted = True
            self.held |= new
            actions.append(Assign(self._round, new))

    def _drop(self, error: FairleadError, actions: list[Action]) -> None:
        """Forget the membership and everything that it gave."""
        dropped, self.held = self.held, {}
        self.epoch = 0
        self._target = self._revoking = self._known_owned = None
        self._taking = self._greeted = False
        self._whole = True
        # What was ordered before is out of date.
        self._round += 1
        if dropped:
            actions.append(Drop(dropped, error))

    def _leave(self, error: FairleadError | None, actions: list[Action]) -> None:
        """End the membership; the answer to a heartbeat under way is ignored."""
        if self._away or self._failed:
            return
        self._away = True
        self._under_way = self._wanted = False
        self._beat_at = None
        if error is not None:
            self._drop(error, actions)
        # Also without an answer to a join: the coordinator may have received it.
        actions.append(Leave())
        self.held = {}
        self.epoch = 0

    def _hurry(self, now: float) -> None:
        """Send a heartbeat now, or right after the answer to the one under way."""
        if self._under_way:
            self._wanted = True
        elif self._beat_at is not None and self.failing_since is None:
            self._beat_at = now

    def _beat(self, now: float, actions: list[Action]) -> None:
        if self._under_way or self._beat_at is None or now < self._beat_at:
            return
        self._under_way = True
        self._number += 1
        self._sent_at = now
        self._sent_owned = dict(self.held)
        actions.append(SendHeartbeat(self._number, self._request()))

    def _request(self) -> HeartbeatRequest:
        # A joining member owns nothing; otherwise the owned partitions are sent when the coordinator may not know them.
        owned = _owned(self.held) if self.epoch and self._known_owned != self.held else UNSET
        if not self._whole:
            return HeartbeatRequest(member_epoch=self.epoch, owned=owned)
        subscription = self._subscription
        return HeartbeatRequest(
            member_epoch=self.epoch,
            topics=subscription.topics,
            topic_pattern=subscription.topic_pattern,
            instance_id=subscription.instance_id,
            rack=subscription.rack,
            assignor=subscription.assignor,
            session_timeout_ms=subscription.session_timeout_ms,
            rebalance_timeout_ms=subscription.rebalance_timeout_ms,
            owned=owned,
        )


def is_fenced(error: FairleadError) -> bool:
    """Return whether an error means that the member is no longer in the group and must join again."""
    return isinstance(error, FencedError | MemberNotFoundError)


def _named(assignment: Iterable[AssignedPartitions]) -> dict[TopicPartition, str]:
    return {
        TopicPartition(topic.topic, partition): topic.topic_id
        for topic in assignment
        for partition in topic.partitions
    }


def _without(these: Partitions, those: Partitions) -> dict[TopicPartition, str]:
    """Return what is in these and not in those; a partition of a topic that was created again is another one."""
    return {place: topic_id for place, topic_id in these.items() if those.get(place) != topic_id}


def _owned(held: Partitions) -> tuple[OwnedPartitions, ...]:
    by_topic: defaultdict[str, list[int]] = defaultdict(list)
    for place, topic_id in held.items():
        by_topic[topic_id].append(place.partition)
    return tuple(
        OwnedPartitions(topic_id=topic_id, partitions=tuple(sorted(partitions)))
        for topic_id, partitions in sorted(by_topic.items())
    )
