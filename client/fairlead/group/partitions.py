"""Carries out the group's orders to release and to assign partitions, one at a time, with callbacks and commits.

`session` runs this module as a worker task. The consumer stops reading a revoked partition at once. When the batch that
was taken last is finished, the partition is passed to `on_revoked`, committed, and only then reported as released. An
assigned partition is passed to `on_assigned` and then read from its committed offset. Partitions that stay assigned are
not interrupted. The module must not depend on heartbeats.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fairlead import clock
from fairlead.connection.metadata import MetadataCache
from fairlead.connection.transport import Transport
from fairlead.errors import ClosedError, FairleadError, NoCommittedOffsetError
from fairlead.group.calls import GroupCalls
from fairlead.group.commits import OffsetCommitter
from fairlead.group.member import Assign, Drop, Event, GroupMember, Partitions, Released, Revoke, Taken
from fairlead.group.settings import CommitMode, GroupSettings, RebalanceCallback
from fairlead.reading.cursors import Cursor, Prefetch
from fairlead.reading.offsets import OffsetLookup
from fairlead.reading.reader import BatchReader
from fairlead.settings import Backoff, OffsetPolicy
from fairlead.topic_partition import TopicPartition
from fairlead_api.bodies.group_answers import CommittedOffset
from fairlead_api.bodies.metadata import TopicMetadata

_LOG: Final = logging.getLogger("fairlead")


@dataclass(frozen=True, slots=True)
class Finish:
    """Order to release all partitions permanently; `done` is set when all partitions are released."""

    done: asyncio.Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Parts of a consumer that its group needs."""

    prefetch: Prefetch
    reader: BatchReader
    metadata: MetadataCache
    lookup: OffsetLookup
    wake: Callable[[], None]
    """Function that wakes the fetcher and the call that waits for a batch."""


class GroupPartitions:
    """Partitions of one member. `report` receives the outcome of an order, `failed` the exception of a callback."""

    def __init__(
        self,
        settings: GroupSettings,
        member: GroupMember,
        calls: GroupCalls,
        committer: OffsetCommitter,
        reading: Reading,
        backoff: Backoff,
        *,
        report: Callable[[Event], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._settings = settings
        self._member = member
        self._calls = calls
        self._committer = committer
        self._reading = reading
        self._prefetch = reading.prefetch
        self._reader = reading.reader
        self._backoff = backoff
        self._report = report
        self._failed = failed
        self._orders: asyncio.Queue[Revoke | Assign | Drop | Finish] = asyncio.Queue()
        self._reported: set[TopicPartition] = set()
        """Partitions that were passed to `on_assigned` and not yet to `on_revoked`."""
        self._seen: dict[str, int] | None = None
        """Partition count of each topic when it was first seen; partitions added later are read from their
        beginning."""
        self._closing = False
        self._moved = asyncio.Event()
        self.is_held = False
        """Whether revoked partitions are kept until a transaction with their records has ended."""

    def order(self, action: Revoke | Assign | Drop) -> None:
        """Queue an order; stop handing out revoked partitions, and remove dropped partitions, at once."""
        if isinstance(action, Revoke):
            for cursor in self._cursors(action.partitions):
                cursor.withheld = True
        elif isinstance(action, Drop):
            self._remove(action.partitions)
        self._orders.put_nowait(action)
        self.moved()

    def moved(self) -> None:
        """Wake the worker after a finished batch or a changed order."""
        self._moved.set()

    async def finish(self, worker: asyncio.Task[None]) -> None:
        """Release all partitions with callback and commit; orders that arrive later are ignored."""
        self._closing = True
        done = asyncio.Event()
        self._orders.put_nowait(Finish(done))
        self.moved()
        waiting = asyncio.get_running_loop().create_task(done.wait(), name="group is given up")
        try:
            await asyncio.wait([waiting, worker], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()

    async def run(self) -> None:
        """Carry out the queued partition orders until the task is cancelled."""
        while True:
            match await self._orders.get():
                case Revoke() as action:
                    await self._revoke(action)
                case Assign() as action:
                    await self._assign(action)
                case Drop(partitions):
                    await self._report_revoked(partitions)
                case Finish(done):
                    await self._finish()
                    done.set()

    async def _revoke(self, action: Revoke) -> None:
        cursors = self._cursors(action.partitions)
        while (self.is_held or self._reader.hand in cursors) and self._is_current(action):
            self._moved.clear()
            await self._moved.wait()
        if not self._is_current(action):
            return
        await self._give_up(action.partitions)
        if self._is_current(action):
            self._report(Released(action.round))

    async def _finish(self) -> None:
        cursors = list(self._prefetch.cursors.values())
        for cursor in cursors:
            cursor.withheld = True
        await self._give_up([cursor.topic_partition for cursor in cursors])

    async def _give_up(self, places: Iterable[TopicPartition]) -> None:
        await self._report_revoked(places)
        if self._settings.commit is CommitMode.AFTER:
            await self._committer.commit_processed(places)
        elif self._settings.commit is CommitMode.BEFORE:
            await self._committer.take_rests_back(places)
        self._remove(places)

    async def _report_revoked(self, places: Iterable[TopicPartition]) -> None:
        reported = self._reported.intersection(places)
        self._reported -= reported
        if reported:
            await self._call(self._settings.on_revoked, reported)

    async def _assign(self, action: Assign) -> None:
        placed = await self._placed_at_last(action)
        if placed is None:
            return
        fresh, cursors = placed
        self._prefetch.add(cursors)
        self._committer.forget(cursor.topic_partition for cursor in cursors)
        for cursor in cursors:
            if cursor.topic_partition not in fresh:
                self._committer.took(cursor)
        # Partitions that a newer answer has revoked again are not passed to the callback.
        came = {cursor.topic_partition for cursor in cursors}
        self._reported.update(came)
        if came or not action.partitions:
            await self._call(self._settings.on_assigned, came)
        if not self._is_current(action):
            return
        for cursor in cursors:
            cursor.withheld = False
        self._reading.wake()
        if fresh and self._settings.commit is not CommitMode.MANUAL:
            # Without this commit, a restart after a crash could begin at an end of the log that has moved on.
            await self._committer.commit_processed(fresh)
        self._report(Taken(action.round))

    async def _placed_at_last(self, action: Assign) -> tuple[set[TopicPartition], list[Cursor]] | None:
        """Determine the start offsets of partitions, with retries; return None if the order becomes out of date."""
        attempts = 0
        while self._is_current(action):
            try:
                found = await self._placed(action)
            except ClosedError:
                raise
            except FairleadError as error:
                attempts += 1
                _LOG.warning(
                    "%s Retrying the lookup of start offsets for %d partitions.",
                    error,
                    len(action.partitions),
                )
                pause = self._backoff.seconds(attempts, clock.chance())
                await asyncio.sleep(pause)  # noqa: TID251 - the pause before a retry
            else:
                return found if self._is_current(action) else None
        return None

    async def _placed(self, action: Assign) -> tuple[set[TopicPartition], list[Cursor]]:
        """Return the partitions whose start offset should be committed, and the cursors of all partitions."""
        # If a newer answer has revoked a partition whose topic was deleted, that partition must not delay the others.
        places = {
            place: topic_id
            for place, topic_id in action.partitions.items()
            if self._member.is_assigned(place, topic_id)
        }
        if not places:
            return set(), []
        committed = await self._committed()
        await self._look_at(places)
        cursors, unknown = [], {}
        for place, topic_id in places.items():
            found = committed.get((topic_id, place.partition))
            if found is None:
                unknown[place] = topic_id
            else:
                cursors.append(_cursor(place, topic_id, found.offset, found.leader_epoch))
        started = await self._started(unknown)
        fresh = set() if self._settings.start in (OffsetPolicy.EARLIEST, OffsetPolicy.ERROR) else set(unknown)
        return fresh, [*cursors, *started]

    async def _committed(self) -> Mapping[tuple[str, int], CommittedOffset]:
        return {(entry.topic_id, entry.partition): entry for entry in await self._calls.committed()}

    async def _look_at(self, places: Partitions) -> None:
        """Refresh the client's metadata if it lacks these partitions; raise an error if a topic is still missing."""
        metadata = self._reading.metadata
        names = {place.topic for place in places}
        if self._seen is None:
            # The first refresh records which of the named topics exist and which are missing.
            metadata.want(names.union(self._settings.topics))
            await metadata.refresh()
            shown = metadata.picture.topics
            self._seen = {
                name: len(shown[name].partitions) if name in shown else 0
                for name in names.union(self._settings.topics)
            }
        topics = await metadata.topics(names)
        if any(_is_unknown(place, topic_id, topics[place.topic]) for place, topic_id in places.items()):
            await metadata.refresh()
            topics = await metadata.topics(names)
        for name, topic in topics.items():
            self._seen.setdefault(name, len(topic.partitions))

    async def _started(self, places: Mapping[TopicPartition, str]) -> list[Cursor]:
        """Return cursors at the start policy's offsets for partitions without a committed offset."""
        start = self._settings.start
        if start is OffsetPolicy.ERROR:
            cursors = [_cursor(place, topic_id, 0, None) for place, topic_id in places.items()]
            for cursor in cursors:
                error = NoCommittedOffsetError(self._settings.group, str(cursor))
                self._prefetch.failed(cursor, cursor.life, error)
            return cursors
        seen = self._seen or {}
        grown = [place for place in places if place.partition >= seen.get(place.topic, 0)]
        offsets = await self._reading.lookup.offsets(dict.fromkeys(grown, "earliest"))
        rest = [place for place in places if place not in offsets]
        offsets |= await self._reading.lookup.reset_offsets(rest, start)
        return [_cursor(place, topic_id, offsets[place], None) for place, topic_id in places.items()]

    async def _call(self, callback: RebalanceCallback | None, places: set[TopicPartition]) -> None:
        if callback is None:
            return
        try:
            result = callback(frozenset(places))
            if inspect.isawaitable(result):
                await result
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # The callback awaited an object that was cancelled; this task was not cancelled.
            message = f"{self._name_of(callback)} ended with CancelledError: the awaited object was cancelled"
            failure = RuntimeError(message)
            failure.__cause__ = error
            self._failed(failure)
        except Exception as error:  # noqa: BLE001 - the next take raises the error of the program's callback
            self._failed(error)

    def _name_of(self, callback: RebalanceCallback) -> str:
        return "on_assigned" if callback is self._settings.on_assigned else "on_revoked"

    def _is_current(self, action: Revoke | Assign) -> bool:
        return action.round == self._member.round and not self._closing

    def _cursors(self, places: Iterable[TopicPartition]) -> list[Cursor]:
        cursors = self._prefetch.cursors
        return [cursors[place] for place in places if place in cursors]

    def _remove(self, places: Iterable[TopicPartition]) -> None:
        self._prefetch.remove(places)
        self._committer.forget(places)


def _is_unknown(place: TopicPartition, topic_id: str, topic: TopicMetadata) -> bool:
    return topic.topic_id != topic_id or place.partition >= len(topic.partitions)


def _cursor(place: TopicPartition, topic_id: str, offset: int, last_epoch: int | None) -> Cursor:
    cursor = Cursor(place.topic, topic_id, place.partition, offset, last_epoch)
    # Nothing is fetched before the callback has returned.
    cursor.withheld = True
    return cursor


class GroupTopics:
    """Topics to which a member subscribes by name, and those of them that are known to be missing."""

    def __init__(self, settings: GroupSettings, metadata: MetadataCache, transport: Transport) -> None:
        self._settings = settings
        self._metadata = metadata
        self._transport = transport
        self._reported: set[str] = set()
        """Topics that were reported as missing; a topic is removed from the set when it is created."""

    async def look(self, assigned: Iterable[str]) -> None:
        """Log a warning, once, for each named topic that does not exist; `assigned` are existing topics.

        The function asks the cluster only about topics that are neither assigned nor in the client's metadata.
        """
        there = {*assigned, *self._metadata.picture.topics}
        self._reported -= there
        unclear = set(self._settings.topics) - there - self._reported
        if not unclear:
            return
        self._metadata.want(unclear)
        try:
            await self._transport.retry(self._metadata.refresh)
        except FairleadError:
            # The heartbeats report that the cluster does not answer, and the next assignment repeats the check.
            return
        picture = self._metadata.picture
        # A topic that a concurrent check has already reported is not reported again.
        missing = (unclear & picture.asked) - picture.topics.keys() - self._reported
        if missing:
            self._reported |= missing
            _LOG.warning(
                "group %s: these topics do not exist yet and will be read when they are created: %s",
                self._settings.group, ", ".join(sorted(missing)),
            )  # fmt: skip
