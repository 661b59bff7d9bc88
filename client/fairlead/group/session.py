"""Membership of a consumer in its group: heartbeats in a separate task, and all work for the group except reading.

The session carries out the actions of the state machine `member`, reports their outcomes, and passes partition orders
to `partitions`. The session keeps errors until the next take (a call that waits for a batch) raises them. Only
`begin_take` and `end_take` run in the reader's task, once per batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, assert_never

from fairlead import clock
from fairlead.connection.transport import Transport
from fairlead.errors import (
    ClosedError,
    FairleadError,
    GroupNotFoundError,
    ProcessingTimeoutError,
    SettingError,
)
from fairlead.group.calls import GroupCalls
from fairlead.group.commits import OffsetCommitter, Unseen
from fairlead.group.member import (
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
    Resumed,
    Revoke,
    SendHeartbeat,
    Woken,
    is_fenced,
)
from fairlead.group.partitions import GroupPartitions, GroupTopics, Reading
from fairlead.group.settings import CommitMode, GroupSettings
from fairlead.topic_partition import TopicPartition
from fairlead_api.bodies.group_requests import HeartbeatRequest

_LOG: Final = logging.getLogger("fairlead")

HEARTBEAT_SECONDS_MIN: Final = 1.0
"""Minimum timeout of a heartbeat, which is otherwise a third of the session timeout."""
JOIN_SECONDS_MAX: Final = 2.0
"""Seconds that a closing consumer waits for the outcome of its join before it leaves."""
_NO_MEMBER: Final = (MemberState.LEFT, MemberState.FAILED)
"""States in which no heartbeat is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """State of a consumer in its group, as last reported to the consumer."""

    group: str
    member_id: str
    member_epoch: int
    """Epoch of the member; 0 while the consumer is not a member."""
    state: MemberState
    heartbeat_failing_seconds: float | None
    """Seconds since heartbeats began to fail; None while heartbeats succeed. If this time exceeds the session timeout,
    the group may have assigned the partitions to other members."""
    heartbeat_error: FairleadError | None


class GroupSession:
    """One member of a group, from joining to leaving. `on_change` wakes the call that waits for a batch."""

    def __init__(
        self,
        settings: GroupSettings,
        member_id: str,
        transport: Transport,
        reading: Reading,
        *,
        on_change: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._reader = reading.reader
        self._on_change = on_change
        self._calls = GroupCalls(
            transport,
            settings.group,
            member_id,
            heartbeat_seconds_max=max(settings.session_timeout_seconds / 3, HEARTBEAT_SECONDS_MIN),
        )
        backoff = transport.settings.backoff
        self._member = GroupMember(settings.subscription, backoff, clock.monotonic())
        self.committer = OffsetCommitter(
            self._calls,
            self._member,
            reading.prefetch,
            reading.reader,
            transport.settings,
            self._heartbeat_answered,
        )
        self._partitions = GroupPartitions(
            settings,
            self._member,
            self._calls,
            self.committer,
            reading,
            backoff,
            report=self._report,
            failed=self._callback_failed,
        )
        self._topics = GroupTopics(settings, reading.metadata, transport)
        self._awake = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        """Task that carries out partition orders; None before the session's main task has started."""
        self._hearing: list[asyncio.Future[None]] = []
        self._failures: deque[BaseException] = deque()
        self._end: FairleadError | None = None
        """Error that ended the membership permanently, raised by every take; None while the member is active."""
        self._away_since: float | None = clock.monotonic()
        """Time at which the program last stopped waiting for a batch; None while the program waits for a batch."""
        self._seen_offset: int | None = None
        """Offset of the record taken last at the last progress check, if the program takes records one by one."""

    @property
    def membership(self) -> Membership:
        """Current state of the consumer in its group."""
        member = self._member
        failing = member.failing_since
        return Membership(
            group=self._settings.group,
            member_id=self._calls.member_id,
            member_epoch=member.epoch,
            state=member.state,
            heartbeat_failing_seconds=None if failing is None else clock.monotonic() - failing,
            heartbeat_error=member.last_error,
        )

    @property
    def commits_manually(self) -> bool:
        """Whether only the program commits."""
        return self._settings.commit is CommitMode.MANUAL

    @property
    def commits_before(self) -> bool:
        """Whether each batch is committed before it is handed out."""
        return self._settings.commit is CommitMode.BEFORE

    async def committed(self) -> dict[TopicPartition, int]:
        """Return the group's committed offsets in one attempt.

        The result is empty before the first member has joined.
        """
        try:
            found = await self._calls.committed()
        except GroupNotFoundError:
            return {}
        return {TopicPartition(entry.topic, entry.partition): entry.offset for entry in found}

    def start(self) -> None:
        """Join the group in background tasks, which `close` stops."""
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run(), name=f"fairlead group {self._settings.group}")
        self._task.add_done_callback(self._ended)

    def begin_take(self, *, finished: bool = True) -> None:
        """Begin a take; with `finished`, mark the batch that was taken last as finished. Raises pending errors."""
        self._away_since = None
        if finished:
            self.finished()
        self.raise_failure()

    def finished(self) -> None:
        """Mark the batch that was taken last as finished, so that its partition may be released."""
        self._reader.finished()
        self._partitions.moved()

    def hold(self) -> None:
        """Keep revoked partitions until `end_hold`, so that a transaction with their records can be committed."""
        self._partitions.is_held = True

    def end_hold(self) -> None:
        """Mark the batch that was taken last as finished, and release revoked partitions."""
        self._partitions.is_held = False
        self.finished()

    def end_take(self) -> None:
        """Mark the end of a take: from now on the program processes a batch or does other work."""
        self._away_since, self._seen_offset = clock.monotonic(), None

    def raise_failure(self) -> None:
        """Raise a pending error: a callback's exception, a processing timeout, or the end of the membership."""
        if self._member.state is MemberState.LEFT and not self._failures:
            self._feed(Resumed())
        if self._failures:
            raise self._failures.popleft()
        if self._end is not None:
            raise self._end.with_traceback(None)

    def begin_commit(self) -> asyncio.Future[FairleadError | None]:
        """Commit all records handed out, in a background task that continues if the caller is cancelled."""
        return self._begin(lambda: self.committer.commit(self.committer.handed_out()))

    def begin_take_back(self, unseen: Unseen) -> asyncio.Future[FairleadError | None]:
        """Undo a commit in a background task; see `OffsetCommitter.take_back`."""
        return self._begin(lambda: self.committer.take_back(unseen))

    def check_closable(self) -> None:
        """Raise `SettingError` if called by a callback, because closing waits for callbacks and would deadlock."""
        if self._worker is not None and asyncio.current_task() is self._worker:
            raise closed_by_callback()

    async def close(self, *, processed: bool, unseen: Unseen | None) -> None:
        """Release the partitions, commit, and leave the group; raise the exceptions of callbacks.

        `processed`: whether the batch that was taken last counts as processed, which is not the case if its processing
        failed. `unseen`: the batch that was committed but never handed out, if any.
        """
        worker = self._worker
        try:
            if unseen is not None and not self._task.done():
                # The member still owns the partition, which is released only after the batch is finished below.
                await self.committer.take_back(unseen)
            if processed or self.commits_before:
                self._reader.finished()
            if worker is not None and not self._task.done():
                await self._partitions.finish(worker)
                await self._leave_at_last()
        finally:
            self._task.cancel()
            await asyncio.wait([self._task])
        # A processing timeout is not raised on close; exceptions of callbacks are still raised.
        reported = [failure for failure in self._failures if not isinstance(failure, ProcessingTimeoutError)]
        if reported:
            raise reported[0]

    async def _leave_at_last(self) -> None:
        """Send one leave request.

        If the request is lost, the coordinator removes the member when the session expires.
        """
        if self._member.is_joining:
            with suppress(TimeoutError):
                async with asyncio.timeout(JOIN_SECONDS_MAX):
                    await self._outcome()
        actions = self._member.step(Closed(), clock.monotonic())
        if any(isinstance(action, Leave) for action in actions):
            await self._leave()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            self._worker = tasks.create_task(self._partitions.run(), name="partitions of the group")
            if self._settings.commit is CommitMode.AFTER:
                tasks.create_task(self._commit_again_and_again(), name="commits of the group")
            while True:
                self._awake.clear()
                self._check_progress()
                self._feed(Woken())
                await self._sleep()

    async def _sleep(self) -> None:
        now = clock.monotonic()
        # A program that currently waits for a batch may take a batch at any moment without waking this task.
        deadline = (self._away_since or now) + self._settings.processing_seconds_max
        if self._member.deadline is not None:
            deadline = min(deadline, self._member.deadline)
        try:
            async with asyncio.timeout(max(deadline - now, 0)):
                await self._awake.wait()
        except TimeoutError:
            self._report_standstill(clock.monotonic() - max(deadline, now))

    def _check_progress(self) -> None:
        """Leave the group if the next batch was not taken in time."""
        limit = self._settings.processing_seconds_max
        away_since = self._away_since
        if away_since is None or clock.monotonic() - away_since < limit:
            return
        record = self._reader.record
        if record is not None and record.offset != self._seen_offset:
            # The program makes progress by taking the records of a large batch one by one.
            self._away_since, self._seen_offset = clock.monotonic(), record.offset
            return
        # If the program never takes another batch, the next timeout is reported only after another interval.
        self._away_since = clock.monotonic()
        if self._member.state in _NO_MEMBER:
            return
        hand = self._reader.hand
        error = ProcessingTimeoutError(
            self._settings.group,
            limit_seconds=limit,
            partition=None if hand is None else str(hand),
            position=None if hand is None else self._reader.hand_offset,
        )
        self._failures.append(error)
        self._feed(Overdue(error))
        self._on_change()

    def _report(self, event: Event) -> None:
        self._feed(event)
        self._awake.set()

    def _feed(self, event: Event) -> None:
        for action in self._member.step(event, clock.monotonic()):
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case SendHeartbeat(number, request):
                self._tasks.create_task(self._heartbeat(number, request), name="heartbeat")
            case Revoke():
                self._partitions.order(action)
            case Assign():
                self._partitions.order(action)
                topics = {place.topic for place in self._member.held}
                self._tasks.create_task(self._topics.look(topics), name="topics of the group")
            case Drop(partitions, error):
                _LOG.warning(
                    "group %s: %d partitions are dropped, and their uncommitted records are read again: %s",
                    self._settings.group, len(partitions), error,
                )  # fmt: skip
                self._partitions.order(action)
            case Leave():
                self._tasks.create_task(self._leave(), name="leave the group")
            case Fail(error):
                self._end = error
                self._on_change()
            case LogFailure(error, seconds):
                self._log_failure(error, seconds)
            case _:
                assert_never(action)

    async def _heartbeat(self, number: int, request: HeartbeatRequest) -> None:
        try:
            answer = await self._calls.heartbeat(request)
        except ClosedError:
            raise
        except FairleadError as error:
            self._report(HeartbeatRefused(number, error, clock.chance()))
        else:
            self._report(HeartbeatAnswered(number, answer))
        hearing, self._hearing = self._hearing, []
        for waiting in hearing:
            if not waiting.done():
                waiting.set_result(None)

    async def _heartbeat_answered(self) -> None:
        """Send a heartbeat now and wait for its outcome."""
        outcome = self._outcome()
        self._report(HeartbeatWanted())
        await outcome

    def _outcome(self) -> asyncio.Future[None]:
        """Return a future that completes when the next heartbeat succeeds or fails."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._hearing.append(waiting)
        return waiting

    async def _leave(self) -> None:
        try:
            await self._calls.leave(static=self._settings.instance_id is not None)
        except (FairleadError, TimeoutError) as error:
            _LOG.info(
                "group %s: the leave request got no answer; the member is removed when the session ends: %s",
                self._settings.group,
                error,
            )

    def _begin(self, commit: Callable[[], Awaitable[None]]) -> asyncio.Future[FairleadError | None]:
        outcome: asyncio.Future[FairleadError | None] = asyncio.get_running_loop().create_future()
        self._tasks.create_task(self._commit(commit, outcome), name="commit before a batch")
        return outcome

    async def _commit(
        self, commit: Callable[[], Awaitable[None]], outcome: asyncio.Future[FairleadError | None]
    ) -> None:
        error: FairleadError | None = ClosedError("consumer")
        try:
            await commit()
            error = None
        except FairleadError as refused:
            error = refused
            if is_fenced(refused) and self._member.state not in _NO_MEMBER:
                # A heartbeat detects the lost membership; without the heartbeat, all later commits would also be
                # refused.
                await self._heartbeat_answered()
        finally:
            outcome.set_result(error)

    async def _commit_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(self._settings.commit_interval_seconds)  # noqa: TID251 - the time between two commits
            await self.committer.commit_processed()

    def _report_standstill(self, seconds: float) -> None:
        """Log that the program blocks the event loop, which can cause the group to remove the member."""
        session = self._settings.session_timeout_seconds
        if seconds >= session / 3:
            _LOG.warning(
                "group %s: the event loop was blocked for %.1f s and sent no heartbeats; the session ends after "
                "%g s. Let long computations run in a thread: await asyncio.to_thread(...)",
                self._settings.group, seconds, session,
            )  # fmt: skip

    def _log_failure(self, error: FairleadError | None, seconds: float) -> None:
        group, session = self._settings.group, self._settings.session_timeout_seconds
        if error is None:
            _LOG.info("group %s: heartbeats succeed again, after %.1f s", group, seconds)
        elif seconds < session:
            _LOG.warning(
                "group %s: no heartbeat has succeeded for %.1f s, and the session ends after %g s: %s",
                group, seconds, session, error,
            )  # fmt: skip
        else:
            _LOG.error(
                "group %s: no heartbeat succeeded for %.1f s, longer than the session timeout of %g s: other members "
                "may own the partitions: %s", group, seconds, session, error,
            )  # fmt: skip

    def _callback_failed(self, error: BaseException) -> None:
        self._failures.append(error)
        self._on_change()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("group %s: the member stopped", self._settings.group, exc_info=error)
            self._failures.append(error)
        self._on_change()


def closed_by_callback() -> SettingError:
    """Return the error for closing a consumer in a callback, since closing would wait for that callback."""
    return SettingError("close", "called by a callback", "outside on_assigned and on_revoked")
