"""Commits the offsets of a member, one commit at a time, with the member's epoch, and retries after a stale epoch.

A lock serialises commits, because two commits of one client could overtake each other on HTTP/2 and the older commit
would win. The consumer and the release of partitions call this module. The module must not depend on callbacks. The
module uses only the session's function `next_heartbeat`, which requests a heartbeat.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from fairlead import clock
from fairlead.errors import (
    ClosedError,
    ClusterError,
    FairleadError,
    FencedError,
    MemberFencedError,
    MemberNotFoundError,
    StaleMemberEpochError,
    UnreachableError,
)
from fairlead.group.calls import GroupCalls
from fairlead.group.member import GroupMember
from fairlead.reading.cursors import Cursor, Prefetch
from fairlead.reading.reader import BatchReader
from fairlead.settings import ConnectionSettings
from fairlead.topic_partition import TopicPartition
from fairlead_api.bodies.group_requests import OffsetCommit
from fairlead_api.bodies.transactions import TransactionOffsets
from fairlead_api.problems import ProblemError

_LOG: Final = logging.getLogger("fairlead")
SendCommit: TypeAlias = Callable[[TransactionOffsets | None], Coroutine[Any, Any, None]]
"""Function that sends the commit of a transaction, with the given offsets of a group, if any."""
JointCommit: TypeAlias = Callable[[SendCommit], Coroutine[Any, Any, None]]
"""Function that commits a transaction with offsets; its argument is a function that sends the commit."""


@dataclass(frozen=True, slots=True)
class Unseen:
    """A batch, or the rest of a batch, whose offsets were committed before delivery, but which is never delivered."""

    cursor: Cursor
    """Cursor of the batch's partition."""
    offset: int
    """Position before the batch; a seek may have moved the cursor since then."""
    leader_epoch: int | None
    next_offset: int
    """Offset after the batch, as stored by the batch's commit."""


class OffsetCommitter:
    """Committer of a member's offsets. `next_heartbeat` waits for the outcome of the next heartbeat."""

    def __init__(
        self,
        calls: GroupCalls,
        member: GroupMember,
        prefetch: Prefetch,
        reader: BatchReader,
        settings: ConnectionSettings,
        next_heartbeat: Callable[[], Awaitable[None]],
    ) -> None:
        self._calls = calls
        self._member = member
        self._prefetch = prefetch
        self._reader = reader
        self._settings = settings
        self._next_heartbeat = next_heartbeat
        self._lock = asyncio.Lock()
        self._committed: dict[TopicPartition, int] = {}
        self._taken: dict[Cursor, tuple[int, int | None]] = {}
        """Position and leader epoch of each partition before the first batch that was taken since the last commit."""

    def took(self, cursor: Cursor) -> None:
        """Record the start position of a partition as already committed."""
        self._committed[cursor.topic_partition] = cursor.position

    def forget(self, places: Iterable[TopicPartition]) -> None:
        """Forget which offsets of these partitions are committed."""
        for place in places:
            self._committed.pop(place, None)

    def processed(self, places: Iterable[TopicPartition] | None = None) -> list[OffsetCommit]:
        """Return the processed but uncommitted offsets of these partitions, or of all partitions."""
        return self._moved(places, self._reader.processed)

    def handed_out(self) -> list[OffsetCommit]:
        """Return the offsets after all records handed out, leaving out offsets that are already committed."""
        return self._moved(None, self._reader.handed_out)

    def took_batch(self, cursor: Cursor, offset: int, leader_epoch: int | None) -> None:
        """Record that the program takes a batch at an offset, for a commit with a transaction."""
        self._taken.setdefault(cursor, (offset, leader_epoch))

    @property
    def has_taken(self) -> bool:
        """Whether batches were taken since the last commit with a transaction."""
        return bool(self._taken)

    def joint(self) -> JointCommit:
        """Return the function that commits, with a transaction, the offsets after the records handed out."""
        taken = {cursor: _entry(cursor, *self._reader.handed_out(cursor)) for cursor in self._taken}
        return partial(self._commit_with, taken)

    def rewind(self, committed: Mapping[TopicPartition, int]) -> None:
        """Move the partitions from which batches were taken since the last commit back to their committed offsets."""
        for cursor, (offset, leader_epoch) in self._taken.items():
            if self._prefetch.cursors.get(cursor.topic_partition) is cursor:
                start = committed.get(cursor.topic_partition, offset)
                self._prefetch.seek(cursor, start, leader_epoch if start == offset else None)
                self._committed.pop(cursor.topic_partition, None)
        self._taken.clear()

    async def commit(self, offsets: Iterable[OffsetCommit]) -> None:
        """Commit offsets of the member's partitions, with retries until `retry_timeout`.

        Raises the error of the first refused partition after the other offsets are stored. A fencing error such as
        `MemberFencedError` means that another member owns the partition now.
        """
        left, cursors = self._with_cursors(offsets)
        deadline = clock.monotonic() + self._settings.retry_timeout_seconds
        async with self._lock:
            await self._commit(left, cursors, deadline)

    async def commit_processed(self, places: Iterable[TopicPartition] | None = None) -> None:
        """Commit the offsets after the processed records; log a refusal, after which the records may be read again."""
        try:
            async with self._lock:
                # The offsets are read under the lock, because the previous commit may have stored them or partitions
                # may have been revoked.
                left, cursors = self._with_cursors(self.processed(places))
                deadline = clock.monotonic() + self._settings.retry_timeout_seconds
                await self._commit(left, cursors, deadline)
        except ClosedError:
            raise
        except FairleadError as error:
            _LOG.warning("%s Records processed since the last commit may be read again.", error)

    async def take_back(self, unseen: Unseen) -> None:
        """Commit the position before a batch that was never handed out; log a refusal.

        The commit is sent only if the member has owned the partition since the first commit: another owner in the
        meantime may have handed out records after the position.
        """
        cursor, place = unseen.cursor, unseen.cursor.topic_partition
        deadline = clock.monotonic() + self._settings.retry_timeout_seconds
        try:
            async with self._lock:
                # The check is made under the lock, because the commit of the batch may have been in flight until then.
                # If that commit failed, or the program has committed again since, there is nothing to undo. If that
                # commit received no answer, its offsets may have been stored.
                if self._committed.get(place, unseen.next_offset) == unseen.next_offset:
                    entry = _entry(cursor, unseen.offset, unseen.leader_epoch)
                    await self._commit({place: entry}, {place: cursor}, deadline)
        except ClosedError:
            raise
        except FairleadError as error:
            _LOG.warning("%s A batch that was committed and not handed out may be skipped.", error)

    async def take_rests_back(self, places: Iterable[TopicPartition]) -> None:
        """For each batch that was committed but only partly read, commit the offset of the first unread record."""
        cursors = [self._prefetch.cursors[place] for place in places if place in self._prefetch.cursors]
        for cursor in cursors:
            if cursor.rest_until is not None:
                unseen = Unseen(cursor, cursor.position, cursor.position_epoch, cursor.rest_until)
                await self.take_back(unseen)

    async def _commit_with(self, taken: Mapping[Cursor, OffsetCommit], send: SendCommit) -> None:
        """Commit offsets with a transaction; repeat the commit after a stale member epoch, until `retry_timeout`.

        Raises `MemberFencedError` if a partition was revoked since its batch was taken, even if it is assigned again:
        another member may have read the same records. Errors of `send` are raised unchanged.
        """
        if not taken:
            await send(None)
            return
        deadline = clock.monotonic() + self._settings.retry_timeout_seconds
        entries = {cursor.topic_partition: entry for cursor, entry in taken.items()}
        attempts = 0
        async with self._lock:
            while True:
                self._check_owned(taken)
                request = TransactionOffsets(
                    group=self._calls.group,
                    member_id=self._calls.member_id,
                    member_epoch=self._member.epoch,
                    offsets=tuple(taken.values()),
                )
                try:
                    await send(request)
                except StaleMemberEpochError as error:
                    attempts += 1
                    pause = self._pause(error, attempts)
                    if pause is None or clock.monotonic() + pause > deadline:
                        raise
                    await self._await_heartbeat(deadline)
                    await asyncio.sleep(pause)  # noqa: TID251 - the pause before a retry
                except (FairleadError, asyncio.CancelledError):
                    self.forget(entries)
                    raise
                else:
                    self._note_stored(entries, {})
                    return

    def _check_owned(self, taken: Iterable[Cursor]) -> None:
        """Raise `MemberFencedError` if a partition was revoked since its batch was taken."""
        now = self._prefetch.cursors
        lost = [cursor for cursor in taken if now.get(cursor.topic_partition) is not cursor]
        for cursor in lost:
            self._taken.pop(cursor, None)
        if lost or self._member.epoch == 0:
            places = [cursor.topic_partition for cursor in lost or taken]
            raise _no_member(min(places), self._calls.member_id)

    def _with_cursors(
        self, offsets: Iterable[OffsetCommit]
    ) -> tuple[dict[TopicPartition, OffsetCommit], dict[TopicPartition, Cursor | None]]:
        left = {TopicPartition(entry.topic, entry.partition): entry for entry in offsets}
        return left, {place: self._prefetch.cursors.get(place) for place in left}

    async def _commit(
        self,
        left: dict[TopicPartition, OffsetCommit],
        cursors: Mapping[TopicPartition, Cursor | None],
        deadline: float,
    ) -> None:
        """Commit offsets while the caller holds the lock; `cursors` are the cursors to which the offsets belong."""
        attempts = 0
        lost: FairleadError | None = None
        while True:
            lost = self._drop_lost(cursors, left) or lost
            error = await self._attempt(left) if left else None
            if error is None:
                break
            attempts += 1
            pause = self._pause(error, attempts)
            if pause is None or clock.monotonic() + pause > deadline:
                raise error
            if isinstance(error, StaleMemberEpochError):
                await self._await_heartbeat(deadline)
            if pause:
                await asyncio.sleep(pause)  # noqa: TID251 - the pause before a retry
        if lost is not None:
            raise lost

    def _moved(
        self,
        places: Iterable[TopicPartition] | None,
        offset_of: Callable[[Cursor], tuple[int, int | None]],
    ) -> list[OffsetCommit]:
        cursors = self._prefetch.cursors
        moved = []
        for place in cursors if places is None else [place for place in places if place in cursors]:
            cursor = cursors[place]
            offset, epoch = offset_of(cursor)
            if self._committed.get(place) != offset:
                moved.append(_entry(cursor, offset, epoch))
        return moved

    def _drop_lost(
        self, cursors: Mapping[TopicPartition, Cursor | None], left: dict[TopicPartition, OffsetCommit]
    ) -> FairleadError | None:
        """Drop the offsets of partitions revoked since the offsets were read, even if reassigned; return an error.

        Another member may have owned the partition in the meantime and committed a later offset, which this commit
        would undo.
        """
        now = self._prefetch.cursors
        lost = [place for place in left if cursors[place] is None or now.get(place) is not cursors[place]]
        for place in lost:
            del left[place]
        return _no_member(min(lost), self._calls.member_id) if lost else None

    async def _attempt(self, left: dict[TopicPartition, OffsetCommit]) -> FairleadError | None:
        """Send one commit of `left`; remove stored offsets from `left` and return the error of the other offsets."""
        epoch = self._member.epoch
        if epoch == 0:
            return _no_member(min(left), self._calls.member_id)
        try:
            errors = await self._calls.commit(epoch, list(left.values()))
        except (FairleadError, asyncio.CancelledError) as error:
            # The commit may have been stored despite the error.
            self.forget(left)
            if isinstance(error, ClosedError | asyncio.CancelledError):
                raise
            return error
        self._note_stored(left, errors)
        final = [error for error in errors.values() if not error.retryable]
        for place in list(left):
            if place not in errors:
                del left[place]
        return final[0] if final else next(iter(errors.values()), None)

    def _note_stored(
        self, left: Mapping[TopicPartition, OffsetCommit], errors: Mapping[TopicPartition, ClusterError]
    ) -> None:
        for place, entry in left.items():
            if place not in errors and place in self._prefetch.cursors:
                cursor = self._prefetch.cursors[place]
                self._committed[place] = entry.offset
                self._reader.committed(cursor, entry.offset)
                if entry.offset >= cursor.position:
                    self._taken.pop(cursor, None)

    async def _await_heartbeat(self, deadline: float) -> None:
        """Wait for the next heartbeat, whose answer contains the coordinator's newer epoch."""
        try:
            async with asyncio.timeout(max(deadline - clock.monotonic(), 0)):
                await self._next_heartbeat()
        except TimeoutError:
            pass

    def _pause(self, error: FairleadError, attempts: int) -> float | None:
        """Return the seconds before the next attempt; None if the commit must not be retried."""
        advice = None
        if isinstance(error, ClusterError):
            if isinstance(error, StaleMemberEpochError):
                return 0.0 if attempts == 1 else self._settings.backoff.seconds(attempts, clock.chance())
            if isinstance(error, FencedError | MemberNotFoundError) or not error.retryable:
                return None
            advice = error.retry_after_seconds
        elif not isinstance(error, UnreachableError):
            return None
        return self._settings.backoff.seconds(attempts, clock.chance(), advice)


def _entry(cursor: Cursor, offset: int, epoch: int | None) -> OffsetCommit:
    return OffsetCommit(
        topic=cursor.topic,
        topic_id=cursor.topic_id,
        partition=cursor.partition,
        offset=offset,
        leader_epoch=epoch,
    )


def _no_member(place: TopicPartition, member_id: str) -> MemberFencedError:
    detail = f"member {member_id} is not currently in the group and cannot commit {place}"
    return MemberFencedError(ProblemError("member_fenced", detail), subject=f"commit of {place}")
