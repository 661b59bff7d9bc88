"""State machine of a consumer group member, which turns the outcomes of heartbeats into actions.

The module performs no I/O: `session` carries out the actions and reports their outcomes, and times and random numbers
are arguments. The member is the client side of KIP-848: it reports the partitions that it owns to the coordinator,
releases a revoked partition before it reports the release, and starts to read assigned partitions.

    JOINING ──answer──> STABLE <──> RECONCILING        (a partition to release or to take)
       ^                   │ fenced, overdue
       └───────────────────┘                           LEFT (overdue, closed), FAILED (refused permanently)

Four rules prevent two readers of one partition:
- One heartbeat is in flight at a time, and only the answer to the last heartbeat counts: a late or repeated answer is
  dropped.
- After a failed heartbeat, the next heartbeat contains all fields, so that the coordinator repeats a lost answer.
- A partition is reported as owned from the moment the member is ordered to read the partition until its release.
- A fenced member drops all partitions at once and joins again with epoch 0.

Events are facts that the session reports with their time; actions are orders that the session carries out in the given
order. The module is a single file because the state machine is read together with its events and actions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from msgspec import UNSET

from fairlead.errors import (
    BugError,
    ClusterError,
    FairleadError,
    FencedError,
    InstanceFencedError,
    MemberNotFoundError,
    SettingError,
)
from fairlead.settings import Backoff
from fairlead.topic_partition import TopicPartition
from fairlead_api.bodies.group_answers import AssignedPartitions, HeartbeatAnswer
from fairlead_api.bodies.group_requests import HeartbeatRequest, OwnedPartitions

Partitions: TypeAlias = Mapping[TopicPartition, str]
"""Topic ids of partitions, by partition; a recreated topic has a different id."""


@dataclass(frozen=True, slots=True)
class Woken:
    """A deadline of the member's state machine has passed, or the session requests the next actions."""


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered:
    """The coordinator has answered the heartbeat that has this number."""

    number: int
    answer: HeartbeatAnswer


@dataclass(frozen=True, slots=True)
class HeartbeatRefused:
    """The heartbeat that has this number was refused or got no answer. `chance` in [0, 1) randomises the back-off."""

    number: int
    error: FairleadError
    chance: float


@dataclass(frozen=True, slots=True)
class HeartbeatWanted:
    """A commit was refused because its epoch is older than the coordinator's epoch of the member."""


@dataclass(frozen=True, slots=True)
class Released:
    """The partitions of a `Revoke` are finished, committed and no longer read."""

    round: int


@dataclass(frozen=True, slots=True)
class Taken:
    """The consumer has started to read the partitions of an `Assign`."""

    round: int


@dataclass(frozen=True, slots=True)
class Overdue:
    """The program did not take the next batch in time, so other members should get the partitions."""

    error: FairleadError


@dataclass(frozen=True, slots=True)
class Resumed:
    """The program takes batches again after `Overdue`."""


@dataclass(frozen=True, slots=True)
class Closed:
    """All processed records are committed, and the member leaves permanently."""


Event: TypeAlias = (
    Woken
    | HeartbeatAnswered
    | HeartbeatRefused
    | HeartbeatWanted
    | Released
    | Taken
    | Overdue
    | Resumed
    | Closed
)


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    """Send a heartbeat and report its outcome under the same number; only the last heartbeat counts."""

    number: int
    request: HeartbeatRequest


@dataclass(frozen=True, slots=True)
class Revoke:
    """Stop reading partitions, finish and commit their records, then report `Released`, for which the group waits."""

    round: int
    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Assign:
    """Read partitions from their committed offsets, then report `Taken`. The first `Assign` may have no partitions."""

    round: int
    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Drop:
    """Stop reading partitions at once without a commit: other members may already own the partitions."""

    partitions: Partitions
    error: FairleadError


@dataclass(frozen=True, slots=True)
class Leave:
    """Send a leave to the coordinator, without waiting for the answer."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The member has failed: raise the error in the next read."""

    error: FairleadError


@dataclass(frozen=True, slots=True)
class LogFailure:
    """Log that heartbeats have failed for `seconds`, or, if `error` is None, that heartbeats succeed again."""

    error: FairleadError | None
    seconds: float


Action: TypeAlias = SendHeartbeat | Revoke | Assign | Drop | Leave | Fail | LogFailure


INSTANCE_WAIT_SECONDS: Final = 15.0
"""Seconds that a joining static member waits until its instance id is free, at most a session timeout. A crashed member
loses the instance id after two missed heartbeats; a live member keeps the instance id."""

REPORT_AGAIN_SECONDS: Final = 30.0
"""Seconds between two log lines while heartbeats keep failing."""


class MemberState(StrEnum):
    """State of a member, as the consumer's API shows it."""

    JOINING = "joining"
    RECONCILING = "reconciling"
    STABLE = "stable"
    LEFT = "left"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Subscription and settings that a member sends in a heartbeat with all fields."""

    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    instance_id: str | None = None
    rack: str | None = None
    assignor: str | None = None
    session_timeout_ms: int
    rebalance_timeout_ms: int


class GroupMember:
    """State machine of a member. Only `step` changes the state; all other methods only read the state."""

    def __init__(self, subscription: Subscription, backoff: Backoff, now: float) -> None:
        self._subscription = subscription
        self._backoff = backoff
        self.epoch = 0
        """Member epoch for commits; 0 while the member is not in the group."""
        self.held: dict[TopicPartition, str] = {}
        """Partitions that the member reads or still releases, reported as owned until the release is complete."""
        self.failing_since: float | None = None
        """Time since which all heartbeats have failed; None while heartbeats succeed."""
        self.last_error: FairleadError | None = None
        self.heartbeats_answered = 0
        self._target: dict[TopicPartition, str] | None = None
        self._number = 0
        self._under_way = False
        self._wanted = False
        """Whether another heartbeat must be sent right after the answer to the heartbeat in flight."""
        self._whole = True
        self._sent_owned: dict[TopicPartition, str] = {}
        self._known_owned: dict[TopicPartition, str] | None = None
        """Owned partitions in the last confirmed heartbeat; the value is None if the next heartbeat must contain the
        owned partitions."""
        self._sent_at = now
        self._failures = 0
        self._reported_at = 0.0
        self._beat_at: float | None = now
        self._round = 0
        self._revoking: dict[TopicPartition, str] | None = None
        self._taking = False
        self._greeted = False
        self._away = False
        self._failed = False

    @property
    def state(self) -> MemberState:
        """State of the member."""
        if self._failed:
            return MemberState.FAILED
        if self._away:
            return MemberState.LEFT
        if self.epoch == 0:
            return MemberState.JOINING
        return MemberState.RECONCILING if self._reconciling else MemberState.STABLE

    @property
    def is_joining(self) -> bool:
        """Whether a join is in flight.

        If a leave overtook the join, the group would assign partitions to a member that no longer exists.
        """
        return self._under_way and self.epoch == 0

    @property
    def round(self) -> int:
        """Number of the last order to revoke or assign partitions; orders with other numbers are out of date."""
        return self._round

    @property
    def deadline(self) -> float | None:
        """Time of the next `Woken`; None while an answer is pending or if the member sends no more heartbeats."""
        return None if self._under_way else self._beat_at

    def is_assigned(self, place: TopicPartition, topic_id: str) -> bool:
        """Return whether the newest answer still assigns a partition to the member."""
        return self._target is not None and self._target.get(place) == topic_id

    def step(self, event: Event, now: float) -> list[Action]:
        """Apply one event and return the resulting actions in order."""
        actions: list[Action] = []
        match event:
            case HeartbeatAnswered() | HeartbeatRefused():
                if self._under_way and event.number == self._number:
                    self._under_way = False
                    self._apply_heartbeat(event, now, actions)
            case Released() | Taken():
                # A report on an earlier order is out of date, because all partitions have been dropped since.
                if event.round == self._round and self._reconciling:
                    self._moved(event, now, actions)
            case HeartbeatWanted():
                # The heartbeat in flight may contain the previous epoch. Together with the owned partitions, the
                # previous epoch means a lost answer and does not fence the member.
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

    def _apply_heartbeat(
        self, event: HeartbeatAnswered | HeartbeatRefused, now: float, actions: list[Action]
    ) -> None:
        """Apply the outcome of the heartbeat in flight; the caller has dropped late and repeated outcomes."""
        if isinstance(event, HeartbeatAnswered):
            self._answered(event.answer, now, actions)
        else:
            self._refused(event.error, event.chance, now, actions)

    def _moved(self, event: Released | Taken, now: float, actions: list[Action]) -> None:
        if isinstance(event, Released):
            assert self._revoking is not None, "only partitions of a revocation order are released"
            for place in self._revoking:
                del self.held[place]
            self._revoking = None
            # Other members wait for the released partitions.
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
            actions.append(LogFailure(None, now - self.failing_since))
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
                # No back-off is needed: the coordinator answers, but the group no longer has this member.
                self._beat_at = now
                return
        self._fails(error, now, actions)

    def _is_final(self, error: FairleadError, now: float) -> bool:
        """Return whether no later heartbeat can succeed.

        The request or the client's token is invalid, or the instance id is in use.
        """
        if isinstance(error, InstanceFencedError):
            since = now if self.failing_since is None else self.failing_since
            wait = min(INSTANCE_WAIT_SECONDS, self._subscription.session_timeout_ms / 1000)
            return self.epoch > 0 or now - since >= wait
        if not isinstance(error, ClusterError) or is_fenced(error) or isinstance(error, BugError):
            return isinstance(error, SettingError)
        return not error.retryable

    def _fails(self, error: FairleadError, now: float, actions: list[Action]) -> None:
        is_new = type(error) is not type(self.last_error)
        self.last_error = error
        if self.failing_since is None:
            self.failing_since = now
        if is_new or now - self._reported_at >= REPORT_AGAIN_SECONDS:
            self._reported_at = now
            actions.append(LogFailure(error, now - self.failing_since))

    def _reconcile(self, actions: list[Action]) -> None:
        """Issue the next order that brings the member closer to its assignment: revocations first, one at a time."""
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
        """Reset the membership and drop all partitions of the member."""
        dropped, self.held = self.held, {}
        self.epoch = 0
        self._target = self._revoking = self._known_owned = None
        self._taking = self._greeted = False
        self._whole = True
        # Orders issued before the reset are out of date.
        self._round += 1
        if dropped:
            actions.append(Drop(dropped, error))

    def _leave(self, error: FairleadError | None, actions: list[Action]) -> None:
        """Leave the group; the answer to a heartbeat in flight is ignored."""
        if self._away or self._failed:
            return
        self._away = True
        self._under_way = self._wanted = False
        self._beat_at = None
        if error is not None:
            self._drop(error, actions)
        # The leave is sent even if a join has no answer, because the coordinator may have received the join.
        actions.append(Leave())
        self.held = {}
        self.epoch = 0

    def _hurry(self, now: float) -> None:
        """Send a heartbeat now, or right after the answer to the heartbeat in flight."""
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
        # A joining member owns no partitions; in other states the owned partitions are sent if the coordinator might
        # not have received them.
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
    """Return the partitions in `these` but not in `those`; partitions of a recreated topic are different partitions."""
    return {place: topic_id for place, topic_id in these.items() if those.get(place) != topic_id}


def _owned(held: Partitions) -> tuple[OwnedPartitions, ...]:
    by_topic: defaultdict[str, list[int]] = defaultdict(list)
    for place, topic_id in held.items():
        by_topic[topic_id].append(place.partition)
    return tuple(
        OwnedPartitions(topic_id=topic_id, partitions=tuple(sorted(partitions)))
        for topic_id, partitions in sorted(by_topic.items())
    )
