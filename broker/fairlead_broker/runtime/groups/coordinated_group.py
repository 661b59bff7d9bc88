"""One group that this broker coordinates: its events and commits, processed in turns.

Used by `groups`. A turn passes all queued events to the pure `Group`, writes the changes that `Group` decides, and
answers once the changes are stored. Commits use the same queue and are checked when they are written, so that a
previous owner of a partition cannot commit after the next owner has read the offsets. A heartbeat that causes no
changes is answered at once from memory. When the state of the store is uncertain, the group is dropped, and the next
request loads the group again. The module is a single file because turns and commits share one worker and its state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any, Final, TypeAlias

from fairlead_api.identifiers import TimestampUs, TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.access.caller_access import CallerAccess
from fairlead_broker.clock import Clock
from fairlead_broker.coordination.group_store import (
    Claim,
    ClaimLost,
    GroupStore,
    StoredGroup,
    change_pieces,
    classic_pieces,
    portions,
)
from fairlead_broker.coordination.membership import Incarnation
from fairlead_broker.coordination.protocol import CoordinationError, TransactionTooLarge, UnknownOutcome
from fairlead_broker.coordination.transaction_store import TransactionStore
from fairlead_broker.groups import (
    JOIN_EPOCH,
    Group,
    GroupEvent,
    GroupRecords,
    GroupState,
    Heartbeat,
    Leave,
    Reply,
    rest_interval_ms,
)
from fairlead_broker.groups.classic.group import ClassicGroup
from fairlead_broker.groups.classic.messages import ClassicReply
from fairlead_broker.groups.membership import MEMBERS_MAX, Consumed
from fairlead_broker.registry.group_records import OffsetEntry
from fairlead_broker.registry.records import RecordUnreadable
from fairlead_broker.registry.store_writes import Operation
from fairlead_broker.runtime.groups import refusals as group_refusals
from fairlead_broker.runtime.groups.classic_members import ClassicMembers, EventOf
from fairlead_broker.runtime.groups.joint_writes import JointWrite
from fairlead_broker.runtime.groups.meters import GroupMeters
from fairlead_broker.runtime.groups.offset_budget import OffsetBudget
from fairlead_broker.runtime.groups.offsets import CommittedOffsets, Entries
from fairlead_broker.runtime.groups.queued_commits import (
    ATTEMPTS_MAX,
    QueuedCommit,
    refuse,
    take_joint,
    take_plain,
)
from fairlead_broker.runtime.groups.topics import GroupTopics
from fairlead_broker.runtime.transactions.joint_decisions import JointDecision
from fairlead_broker.telemetry import Log


class HeartbeatPace:
    """Interval of heartbeats, derived from the number of members in all groups of one broker."""

    __slots__ = ("_members", "interval_ms")

    def __init__(self) -> None:
        self._members = 0
        self.interval_ms = rest_interval_ms(0)
        """Milliseconds between two heartbeats of a member whose assignment does not change."""

    def count(self, more: int) -> None:
        """Add `more` to the number of members; `more` is negative after members have left."""
        self._members += more
        assert self._members >= 0, "more members left than had joined"
        self.interval_ms = rest_interval_ms(self._members)


RETRY_SECONDS: Final = 1.0
"""Number of seconds until the next periodic turn if a turn failed or could not be written."""
BREATH_SECONDS: Final = 0.01
"""Minimum number of seconds between two periodic turns of a group, so that other groups can use the event loop in
between."""
DECIDED_MAX: Final = 2 * MEMBERS_MAX
"""Maximum number of members whose decided subscriptions are kept, including members that have left. A full table is
cleared, and the subscriptions are decided again.
"""


@dataclass(frozen=True, slots=True)
class GroupShared:
    """Components that all groups of one broker share."""

    store: GroupStore
    transactions: TransactionStore
    topics: GroupTopics
    budget: OffsetBudget
    incarnation: Incarnation
    clock: Clock
    meters: GroupMeters
    spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
    let_go: Callable[[CoordinatedGroup], None]
    """Function that is called once, when a group is dropped."""
    log: Log
    pace: HeartbeatPace


@dataclass(slots=True)
class _Asked:
    event: GroupEvent
    answer: asyncio.Future[Reply]

    def refuse(self, problem: ProblemError) -> None:
        refuse(self.answer, problem)


_Waiting: TypeAlias = _Asked | QueuedCommit


class _NotWritten(Exception):
    """Raised after a failed write. The calls that waited for the write have been answered."""


class CoordinatedGroup:
    """A coordinated group, from its claim until it is dropped; after that, every call fails."""

    def __init__(self, claim: Claim, stored: StoredGroup, shared: GroupShared) -> None:
        self.claim = claim
        self.name = claim.group
        self.offsets = CommittedOffsets(stored.offsets)
        records = GroupRecords(state=stored.state, targets=stored.targets, members=stored.members)
        self.group = Group(claim.group, records, shared.clock.monotonic())
        now = shared.clock.monotonic()
        self.classic = ClassicMembers(
            claim.group, ClassicGroup.load(stored.classic, stored.classic_members, now)
        )
        self._shared = shared
        self._decided: dict[str, tuple[int, tuple[str, ...], Consumed | None]] = {}
        """Last allowed subscription of each member, with the security revision and the caller's names at its decision.
        """
        self._counted = 0
        """Number of this group's members that are counted in the heartbeat pace."""
        self._asked: list[_Asked] = []
        self._commits: list[QueuedCommit] = []
        self._granted = False
        self._asking = False
        self._due = False
        self._current: Sequence[_Waiting] = ()
        """Calls that wait for the running write."""
        self._doubted = False
        self._pause = False
        self._gone: ProblemError | None = None
        self._worker: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    # -- life

    @property
    def usable(self) -> bool:
        """Whether calls may use this object.

        False once the incarnation has ended or the lease has become doubtful; calls must then load the group again.
        """
        if self._gone is not None:
            return False
        confirmed = self._shared.incarnation.confirms(self.claim.broker_epoch)
        if not confirmed:
            self._doubted = True
        return confirmed and not self._doubted

    @property
    def is_absent(self) -> bool:
        """Whether the group does not exist, which means that only its claim is stored."""
        # The number of members is checked first: it decides most cases, and every heartbeat runs this check.
        if self.group.member_count or self.group.state is not GroupState.DEAD:
            return False
        return not self.offsets and self.classic.group.is_idle

    def begin(self) -> None:
        """Compare the group with the current topics, and start its timers."""
        self._count(self.group.member_count)
        self.wake()

    def wake(self) -> None:
        """Run a turn although no call is waiting, because topics have changed or a deadline has passed."""
        self._due = True
        self._work()

    def let_go(self, problem: ProblemError) -> None:
        """Drop the group: fail all waiting and later calls with the given problem.

        The calls that wait for a running write receive the outcome of the write.
        """
        if self._gone is not None:
            return
        self._gone = problem
        self._count(0)
        if self._timer is not None:
            self._timer.cancel()
        waiting: list[_Waiting] = [*self._asked, *self._commits]
        self._asked, self._commits = [], []
        _fail(waiting, problem)
        self.classic.let_go(problem)
        self._shared.let_go(self)

    async def idle(self) -> None:
        """Wait until no write of the group is running."""
        while self._worker is not None:
            await asyncio.wait([self._worker])

    # -- calls

    async def heartbeat(self, event: Heartbeat, access: CallerAccess) -> Reply:
        """Process a heartbeat; return the reply once the changes are stored.

        `access`: access of the caller, with which the topics in the heartbeat have been decided. The whole subscription
        is decided in the first heartbeat after each change of the security revision, of the caller or of the
        subscription (rule Z14). A member that may no longer read its topics is removed, so that other members get its
        partitions. Raises `forbidden`, or the problem with which the group refuses the heartbeat.
        """
        if access.is_open or event.member_epoch == JOIN_EPOCH:
            return await self.ask(event)
        consumed = self.group.consumed(event.member_id, event.subscription)
        decided = access.revision, access.caller.names, consumed
        if consumed is None or self._decided.get(event.member_id) == decided:
            return await self.ask(event)
        try:
            access.require_subscription(*consumed)
        except ProblemError:
            await self.remove_refused(event, access)
            raise
        reply = await self.ask(event)
        # Only an accepted heartbeat proves that the member belongs to the caller.
        if len(self._decided) >= DECIDED_MAX:
            self._decided.clear()
        self._decided[event.member_id] = decided
        return reply

    async def remove_refused(self, event: Heartbeat, access: CallerAccess) -> None:
        """Remove the member of a refused heartbeat if its caller may no longer read the topics of its subscription.

        Raises the problem with which the group refuses the removal by another principal or with another epoch.
        """
        consumed = self.group.consumed(event.member_id)
        if consumed is None:
            return
        try:
            access.require_subscription(*consumed)
        except ProblemError:
            await self.ask(Leave(event.member_id, event.member_epoch, principal=access.owner))

    async def ask(self, event: GroupEvent) -> Reply:
        """Process an event; return the reply once the changes are stored.

        Raises the problem with which the group refuses the event.
        """
        self._check()
        shared = self._shared
        if isinstance(event, Heartbeat):
            self.group.rest(shared.pace.interval_ms)
            at_rest = self.group.reply_at_rest(event, shared.topics.topics, shared.clock.monotonic())
            if at_rest is not None:
                return at_rest
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._asked.append(_Asked(event, answer))
        self._work()
        return _given(await answer)

    async def ask_classic(self, event_of: EventOf) -> ClassicReply:
        """Process an event of a classic member, and return the reply, for which a join and a sync may have to wait."""
        self._check()
        answer = self.classic.ask(event_of, self._shared.clock.monotonic())
        if self.classic.changes or self.classic.group.deadline() < self._timer_at:
            self._work()
        return await answer

    async def commit(self, admit: Callable[[], Entries], *, gives_way: bool = False) -> None:
        """Write offsets, merged with other waiting commits; return once the offsets are stored.

        `admit` returns the entries. `admit` is called at once, and again when the offsets are written, because the
        caller may have lost its partitions by then. An exception that `admit` raises propagates to the caller.
        `gives_way`: other commits in the same transaction take precedence, because `admit` considers only the stored
        offsets.
        """
        self._check()
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._write_queued(QueuedCommit(admit, len(admit()), answer, gives_way))

    async def decide(self, decision: JointDecision, admit: Callable[[], Entries], entries_max: int) -> None:
        """Write offsets and the commit of transactions together; return once both are stored (rule 7.5).

        A commit whose transactions are all already committed is answered without `admit` and without a write, so that a
        repeated request gets the answer of the first request. `entries_max`: maximum number of entries that `admit` may
        return.
        """
        self._check()
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._write_queued(QueuedCommit(admit, entries_max, answer, decision=decision))

    async def _write_queued(self, commit: QueuedCommit) -> None:
        began = self._shared.clock.monotonic()
        self._commits.append(commit)
        self._ask_budget()
        await commit.answer
        self._shared.meters.committed(self._shared.clock.monotonic() - began)

    async def forget_old(self, old_before: TimestampUs, is_gone: Callable[[TopicId], bool]) -> None:
        """Delete offsets of deleted topics, and the expired offsets of a group that has had no members for a long time.

        Offsets older than `old_before` have expired. A group without members and offsets is deleted. Raises the errors
        of `commit` and `delete`.
        """

        def old() -> Entries:
            return dict.fromkeys(self.offsets.matching(is_old))

        def is_old(topic_id: TopicId, entry: OffsetEntry) -> bool:
            return is_gone(topic_id) or (self._is_left_since(old_before) and entry.committed_us < old_before)

        def is_over() -> bool:
            return not self.offsets and self._is_left_since(old_before)

        if old():
            await self.commit(old, gives_way=True)
        if is_over():
            await self.delete(is_over)

    def _is_left_since(self, time_us: TimestampUs) -> bool:
        emptied_us = self.group.emptied_us
        if self.group.member_count or not self.classic.group.is_idle:
            return False
        return emptied_us is None or emptied_us < time_us

    def check_empty(self) -> None:
        """Raise `group_not_empty` if the group has members of either protocol."""
        self.group.check_empty()
        self.classic.check_empty()

    async def delete(self, is_due: Callable[[], bool] = lambda: True) -> None:
        """Delete the group from the store and drop it; the group must be empty.

        `is_due` is called while no write is running; if it returns false, the group is kept. Raises `group_not_empty`,
        and the problem of a failed deletion.
        """
        self._check()
        await self.idle()
        self._check()
        if not is_due():
            return
        self.check_empty()
        # Joins and commits that were queued during the deletion fail with a retriable problem; the retry creates the
        # group again.
        self.let_go(group_refusals.restarted(self.name))
        try:
            await self._shared.store.delete(self.claim)
        except CoordinationError as error:
            raise group_refusals.of_store(error, self.name, maybe=True) from error

    # -- work

    def _check(self) -> None:
        if self._gone is not None:
            raise self._gone
        if not self.usable:
            raise group_refusals.lease_in_doubt(self.name)

    def _count(self, members: int) -> None:
        """Add this group's members to the heartbeat pace; a dropped group counts as 0 members."""
        present = 0 if self._gone is not None else members
        self._shared.pace.count(present - self._counted)
        self._counted = present

    def _ask_budget(self) -> None:
        if not self._asking and not self._granted:
            self._asking = True
            self._shared.budget.ask(self._budget_granted)

    def _budget_granted(self) -> None:
        self._asking, self._granted = False, True
        self._work()

    def _work(self) -> None:
        if self._worker is None and self._gone is None:
            self._worker = self._shared.spawn(self._work_off(), f"group {self.name}")

    async def _work_off(self) -> None:
        """Process all queued calls and commits until the queues are empty."""
        try:
            while self._gone is None:
                if self._asked or self._due:
                    await self._take_turn()
                elif self.classic.changes:
                    await self._write_classic()
                elif self._granted:
                    await self._write_commits()
                else:
                    break
            if self._gone is None and self.is_absent and not self._commits:
                await self._give_back()
        except Exception:
            # After an unexpected error this group is loaded again. The error does not affect other groups.
            self._shared.log.exception("group failed", group=self.name)
            self.let_go(group_refusals.restarted(self.name, maybe=True))
        finally:
            self._worker = None
            _fail(self._current, group_refusals.restarted(self.name, maybe=True))
        if self._gone is None:
            self._set_timer()

    async def _give_back(self) -> None:
        """Drop the claim of a group that does not exist, so that calls with nonexistent names do not fill the store."""
        self.let_go(group_refusals.restarted(self.name))
        with suppress(CoordinationError):
            await self._shared.store.release(self.claim)

    async def _take_turn(self) -> None:
        asked, self._asked, self._due = self._asked, [], False
        self._current = asked
        if not self.usable:
            self._pause = True
            _fail(asked, group_refusals.lease_in_doubt(self.name))
            return
        clock = self._shared.clock
        self.classic.expire(clock.monotonic())
        events = [each.event for each in asked]
        self.group.rest(self._shared.pace.interval_ms)
        turn = self.group.turn(events, self._shared.topics.topics, clock.monotonic(), clock.now_us())
        if turn.change is not None:
            pieces = change_pieces(self._shared.store.of(self.name), turn.change)
            try:
                await self._write(pieces, asked)
            except _NotWritten:
                return
            epoch = self.group.epoch
            self.group.commit(turn)
            self._count(self.group.member_count)
            if self.group.epoch != epoch:
                self._shared.meters.rebalanced()
        for each, reply in zip(asked, turn.replies, strict=True):
            # The calling task may have been cancelled.
            if not each.answer.done():
                each.answer.set_result(reply)

    async def _write_classic(self) -> None:
        """Write the next change to the classic group."""
        change, clock = self.classic.changes[0], self._shared.clock
        emptying = None
        if change.group is None:
            emptying = self.group.emptying(clock.monotonic(), clock.now_us())
        emptied = None if emptying is None else emptying.change
        try:
            if not self.usable:
                self._pause = True
                raise _NotWritten
            await self._write(classic_pieces(self._shared.store.of(self.name), change, emptied), ())
        except _NotWritten:
            if self._gone is None:
                self.classic.not_written(clock.monotonic())
            return
        if emptying is not None and emptied is not None:
            self.group.commit(emptying)
        # The group may have been dropped while its change was written.
        if self._gone is None:
            self.classic.written()

    async def _write_commits(self) -> None:
        self._granted = False
        joint = take_joint(self._commits)
        plain = [] if joint else take_plain(self._commits)
        self._current = plain or [commit for commit, _ in joint]
        if self._commits:
            self._ask_budget()
        with suppress(_NotWritten):
            if joint:
                await self._write_decisions(joint)
            else:
                await self._write_plain(plain)

    async def _write_plain(self, commits: Sequence[QueuedCommit]) -> None:
        standing: list[QueuedCommit] = []
        merged: dict[tuple[TopicId, int], OffsetEntry | None] = {}
        for commit in commits:
            try:
                self._check()
                entries = commit.admit()
            except ProblemError as problem:
                commit.refuse(problem)
            else:
                merged |= {**entries, **merged} if commit.gives_way else entries
                standing.append(commit)
        if merged:
            blocks = self.offsets.changed(merged)
            pieces: list[Sequence[Operation]] = list(
                portions(self._shared.store.offset_operations(self.name, blocks))
            )
            await self._write_founding(standing)
            self._shared.budget.spend(len(pieces) - 1)
            self._shared.meters.transactions(len(pieces))
            await self._write(pieces, standing)
            self.offsets.take(blocks)
        for commit in standing:
            commit.settle()

    async def _write_decisions(self, joint: Sequence[tuple[QueuedCommit, JointDecision]]) -> None:
        """Write the commits of transactions with their offsets in one transaction of the store (rule 7.5).

        The transactions are read first: after a write with an unknown outcome, this broker has claimed the group again,
        so the earlier write can no longer succeed, and the read shows whether it did.
        """
        shared = self._shared
        try:
            producers = [producer_id for _, decision in joint for producer_id in decision.changes]
            standings = await shared.transactions.read(producers)
        except CoordinationError as error:
            self._not_written(error, self._current)
            return
        except RecordUnreadable as error:
            _fail(self._current, group_refusals.unreadable(error, self.name))
            return
        write = JointWrite.of(joint, standings, shared.clock.now_us(), self._check)
        if not write.changes:
            return
        commits, blocks = write.commits, self.offsets.changed(write.entries)
        compares, puts = shared.transactions.replacement(write.records)
        await self._write_founding(commits)
        shared.meters.transactions(1)
        try:
            operations = [*puts, *shared.store.offset_operations(self.name, blocks)]
            revision = await shared.store.write_if(self.claim, operations, compares)
        except CoordinationError as error:
            if not isinstance(error, TransactionTooLarge) or len(commits) == 1:
                self._not_written(error, commits)
                raise _NotWritten from error
            revision = None
        if revision is None:
            self._repeat(commits)
            return
        self.offsets.take(blocks)
        write.written(revision)

    def _repeat(self, commits: Sequence[QueuedCommit]) -> None:
        """Queue commits again, each for a separate write, because a transaction of the joint write was changed."""
        if self._gone is not None:
            _fail(commits, self._gone)
            return
        self._current = ()
        for commit in commits:
            commit.attempts += 1
        _fail(
            (each for each in commits if each.attempts == ATTEMPTS_MAX),
            group_refusals.transaction_changed(self.name),
        )
        self._commits[:0] = [each for each in commits if each.attempts < ATTEMPTS_MAX]
        if self._commits:
            self._ask_budget()

    async def _write_founding(self, waiting: Sequence[_Waiting]) -> None:
        """Create the group before its first commit by a client that is not a member."""
        clock, shared = self._shared.clock, self._shared
        founding = self.group.founding(clock.monotonic(), clock.now_us())
        if founding.change is not None:
            await self._write(change_pieces(shared.store.of(self.name), founding.change), waiting)
            self.group.commit(founding)

    async def _write(self, pieces: Sequence[Sequence[Operation]], waiting: Sequence[_Waiting]) -> None:
        """Write pieces in order. If a write fails, answer the waiting calls with the failure and raise `_NotWritten`.

        After a write with an unknown outcome the group is dropped and loaded again.
        """
        written = 0
        try:
            for piece in pieces:
                await self._shared.store.write(self.claim, piece)
                written += 1
        except CoordinationError as error:
            self._not_written(error, waiting, partly=written > 0)
            raise _NotWritten from error

    def _not_written(
        self, error: CoordinationError, waiting: Iterable[_Waiting], *, partly: bool = False
    ) -> None:
        _fail(waiting, group_refusals.of_store(error, self.name, maybe=partly))
        if partly or isinstance(error, ClaimLost | UnknownOutcome):
            self._shared.log.warning("group dropped", group=self.name, reason=str(error))
            self.let_go(group_refusals.restarted(self.name))
        self._pause = True

    # -- time

    def _set_timer(self) -> None:
        """Schedule the next periodic turn, with a pause after a failure."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, inf
        deadline = self._deadline()
        at_least, self._pause = RETRY_SECONDS if self._pause else BREATH_SECONDS, False
        if deadline is not None:
            seconds = max(at_least, deadline - self._shared.clock.monotonic())
            self._timer_at = self._shared.clock.monotonic() + seconds
            self._timer = asyncio.get_running_loop().call_later(seconds, self._time_is_up)

    def _deadline(self) -> float | None:
        """Return the time of the next periodic turn, for members of either protocol."""
        deadline, classic = self.group.deadline(), self.classic.group.deadline()
        if classic == inf:
            return deadline
        return classic if deadline is None else min(deadline, classic)

    def _time_is_up(self) -> None:
        """Run a periodic turn, unless heartbeats have postponed the deadline.

        The timer is set once per session, not once per heartbeat.
        """
        self._timer, self._timer_at = None, inf
        deadline = self._deadline()
        if self.usable and deadline is not None and deadline > self._shared.clock.monotonic():
            self._set_timer()
        elif self._doubted and self._shared.incarnation.confirms(self.claim.broker_epoch):
            # While the lease was in doubt, no heartbeat could be processed. The group is therefore loaded again, which
            # restarts all sessions with their full timeouts.
            self.let_go(group_refusals.restarted(self.name))
        else:
            self.wake()


def _given(reply: Reply) -> Reply:
    if isinstance(reply, ProblemError):
        raise reply
    return reply


def _fail(waiting: Iterable[_Waiting], problem: ProblemError) -> None:
    for each in waiting:
        each.refuse(problem)
