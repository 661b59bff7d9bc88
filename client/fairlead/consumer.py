"""The public consumer: alone with partitions of its own choice, or as a member of a group.

    async with Consumer("http://127.0.0.1:9520", group="delays", topics="flights") as consumer:
        async for batch in consumer:
            print(batch.topic, batch.partition, batch.base_offset, batch.to_arrow().num_rows)

Without a group it leaves no trace in the cluster. Fetching runs ahead in a task of its own, bounded by
`prefetch_bytes`; a group's heartbeats, commits and partitions are `group_session`'s, in tasks of their own too. This
room wires them, waits for what the reader side finds, and keeps the positions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Self

from fairlead import clock
from fairlead.connection.metadata import MetadataCache
from fairlead.connection.transport import Transport
from fairlead.errors import ClosedError, SettingError, second_start
from fairlead.group.commits import Unseen
from fairlead.group.member import is_fenced
from fairlead.group.partitions import Reading
from fairlead.group.session import GroupSession, Membership
from fairlead.group.settings import CommitMode, GroupSettings, RebalanceCallback, group_settings_of
from fairlead.reading.cursors import Cursor, EndOffsets
from fairlead.reading.fetcher import Fetcher
from fairlead.reading.offsets import OffsetLookup, Position, topics_with
from fairlead.reading.positions import AssignedPartitions, HeldBack
from fairlead.reading.reader import BatchReader
from fairlead.records import ConsumerBatch, Record
from fairlead.settings import (
    DEFAULT_BOOTSTRAP,
    MIB,
    ConsumerSettings,
    Duration,
    OffsetPolicy,
    connection_of,
    policy_of,
    seconds_of,
)
from fairlead.topic_partition import TopicPartition
from fairlead_api.bodies.group_requests import OffsetCommit


class Consumer(AssignedPartitions):
    """Reads partitions. Open it with `async with`, or with `start` and `close`.

    One take at a time: `next_batch`, `batches`, `records` and iterating raise `SettingError` while another of them
    waits for a batch, in every `commit` mode and without a group. All other methods may be called during the wait.

    Without a group, `assign` chooses the partitions, and the arguments from `topics` to `assignor` are refused. With a
    group, its members share the partitions of the subscribed topics.

    - bootstrap: URL of a broker, or several.
    - group: name of the consumer group.
    - topics, pattern: subscribed topics by name, or by an RE2 pattern of the whole name.
    - start: start of a partition without a committed offset: `"earliest"`, `"latest"`, a duration (`"10m"`: records
      younger than that), or `"none"`, an error.
    - commit: `"after"` commits processed records every `auto_commit_interval`, before a partition is released, and at
      the end (at least once); a batch, or a record of `records`, counts as processed when the next one is taken, or
      when the block ends without an exception. `"before"` commits each batch before it is handed out (at most once).
      `"manual"` commits only by `commit`.
    - auto_commit_interval: time between two commits of `"after"`.
    - on_assigned, on_revoked: plain or async functions, called with the assigned or revoked partitions; a partition is
      released only after `on_revoked` has ended.
    - processing_timeout: longest time between two takes; beyond it the member leaves the group, and the next take
      raises `ProcessingTimeoutError`.
    - session_timeout: time without a heartbeat (after a crash) after which other members get the partitions.
    - rebalance_timeout: time that the group waits for the release of a partition.
    - instance_id: static membership; the partitions are kept for a restart under this id within the session timeout.
    - rack: rack of the consumer, for assignors that prefer near replicas.
    - assignor: `"uniform"` or `"range"`.
    - fetch_wait_max, fetch_bytes_min: longest time that a broker holds a fetch with fewer bytes.
    - fetch_bytes_max, partition_fetch_bytes_max: bytes of one answer, and of one partition in it.
    - prefetch_bytes: bytes that are fetched and not read yet.
    - offset_policy: reaction to a position outside of the log: `"error"`, `"earliest"`, `"latest"` or a duration.
    - request_timeout, connect_timeout, retry_timeout: of one attempt, of a new connection, of a call with its retries.

    Raises `SettingError` for a value that is not allowed.
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str] = DEFAULT_BOOTSTRAP,
        *,
        group: str | None = None,
        topics: str | Iterable[str] | None = None,
        pattern: str | None = None,
        start: OffsetPolicy | Duration = "earliest",
        commit: CommitMode | str = "after",
        auto_commit_interval: Duration = "5s",
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        processing_timeout: Duration = "5m",
        session_timeout: Duration = "45s",
        rebalance_timeout: Duration = "5m",
        instance_id: str | None = None,
        rack: str | None = None,
        assignor: str | None = None,
        fetch_wait_max: Duration = "500ms",
        fetch_bytes_min: int = 1,
        fetch_bytes_max: int = 4 * MIB,
        partition_fetch_bytes_max: int = 4 * MIB,
        prefetch_bytes: int = 64 * MIB,
        offset_policy: OffsetPolicy | Duration = "error",
        request_timeout: Duration = "30s",
        connect_timeout: Duration = "5s",
        retry_timeout: Duration = "30s",
    ) -> None:
        self._connection = connection_of(
            bootstrap, connect=connect_timeout, request=request_timeout, retry=retry_timeout
        )
        settings = ConsumerSettings(
            fetch_wait_seconds_max=seconds_of(fetch_wait_max, "fetch_wait_max"),
            fetch_bytes_min=fetch_bytes_min,
            fetch_bytes_max=fetch_bytes_max,
            partition_fetch_bytes_max=partition_fetch_bytes_max,
            prefetch_bytes=prefetch_bytes,
            offset_policy=policy_of(offset_policy, "offset_policy"),
        )
        self._group = group_settings_of(
            group, topics=topics, pattern=pattern, start=start, commit=commit, commit_interval=auto_commit_interval,
            processing=processing_timeout, session=session_timeout, rebalance=rebalance_timeout,
            instance_id=instance_id, rack=rack, assignor=assignor, on_assigned=on_assigned, on_revoked=on_revoked,
        )  # fmt: skip
        super().__init__(settings)
        self._topics: dict[str, str] = {}
        """Topics that are read as a whole, with their ids."""
        self._assigned = False
        self._is_taking = False
        """Whether a call waits for a batch. Only one may: with several it would be unknown which batch is finished."""
        self._session: GroupSession | None = None

    async def start(self) -> Self:
        """Open the connections, start fetching and join the group, if any; `async with` calls it.

        A consumer that was closed may be started again: without a group it goes on where it stood. Raises
        `SettingError` while it is open.
        """
        if self._open:
            raise second_start()
        self._begin_anew(goes_on=self._group is None)
        self._transport = await Transport(self._connection, "consumer").__aenter__()
        self._metadata = MetadataCache(self._transport)
        self._metadata.want({place.topic for place in self._prefetch.cursors})
        self._lookup = OffsetLookup(self._transport, self._metadata)
        self._arrival = asyncio.Event()
        self._fetcher = Fetcher(
            self._prefetch,
            self._metadata,
            self._transport,
            self._settings,
            self._lookup,
            on_arrival=self._arrival.set,
            on_picture=self._picture_taken,
            waits_for_topics=self._group is not None,
        )
        self._reader = BatchReader(self._prefetch, self._fetcher.wake)
        self._task = asyncio.get_running_loop().create_task(self._fetcher.run(), name="fairlead consumer")
        self._task.add_done_callback(lambda _: self._arrival.set())
        if self._group is not None:
            self._session = self._join(self._group)
        self._open, self._closing = True, False
        return self

    def _join(self, group: GroupSettings) -> GroupSession:
        reading = Reading(
            prefetch=self._prefetch,
            reader=self._reader,
            metadata=self._metadata,
            lookup=self._lookup,
            wake=self._look_again,
        )
        # A new id for every start: no other consumer may be taken for this member.
        member_id = clock.new_id()
        session = GroupSession(group, member_id, self._transport, reading, on_change=self._arrival.set)
        session.start()
        return session

    def _look_again(self) -> None:
        self._fetcher.wake()
        self._arrival.set()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._close(processed=error is None)
        except Exception as failure:
            if error is None:
                raise
            # The exception of the block is raised; an exception of a callback becomes a note of it.
            error.add_note(f"Closing the consumer: {failure!r}")

    async def close(self) -> None:
        """Stop reading and close the connections; a running iteration raises `ClosedError`.

        A member of a group commits, if its `commit` mode does, and leaves; the batch in hand counts as processed.
        With `commit="before"` the commit of a batch that was never handed out is taken back.
        Returns at once while another call closes the consumer, also in `on_revoked`. Otherwise raises `SettingError`
        in `on_assigned` and `on_revoked`, for which closing waits. Raise an exception there, which the next take
        raises, or set a flag, and close where batches are taken.
        """
        await self._close(processed=True)

    async def _close(self, *, processed: bool) -> None:
        if not self._open or self._closing:
            return
        if self._session is not None:
            self._session.check_closable()
        self._closing = True
        self._arrival.set()
        try:
            if self._session is not None:
                await self._session.close(processed=processed, unseen=self._unseen())
        finally:
            self._open = False
            # The next start continues after the record in hand.
            self._reader.finished()
            self._task.cancel()
            await asyncio.wait([self._task])
            await self._transport.close()

    async def assign(
        self,
        partitions: Iterable[TopicPartition] = (),
        *,
        topic: str | Iterable[str] | None = None,
        start: Position = "earliest",
    ) -> frozenset[TopicPartition]:
        """Read these partitions, or all of the named topics, from `start` on; replaces what was assigned before.

        `start` is `"earliest"`, `"latest"`, an offset, or an aware datetime: the first record at or after it.
        Partitions that a topic grows later are read from their beginning. Returns the assigned partitions.
        Raises `TopicNotFoundError`, `PartitionNotFoundError`, `SettingError`: in a group too, which assigns by itself.
        """
        self._check_open()
        if self._group is not None:
            raise SettingError(
                "group", self._group.group, "none with assign: a group's partitions are assigned by it"
            )
        names = set() if topic is None else {topic} if isinstance(topic, str) else set(topic)
        places = _places_of(partitions)
        topics = await topics_with(self._metadata, places, names)
        for name in sorted(names):
            indexes = range(len(topics[name].partitions))
            places += [TopicPartition(name, index) for index in indexes]
        offsets = await self._offsets_of(dict.fromkeys(places, start))
        self._prefetch.assign(
            Cursor(place.topic, topics[place.topic].topic_id, place.partition, offset)
            for place, offset in offsets.items()
        )
        self._topics = {name: topics[name].topic_id for name in names}
        self._assigned = True
        self._fetcher.wake()
        return self.assignment

    @property
    def membership(self) -> Membership:
        """How the consumer stands in its group: id, epoch, state, and since when heartbeats fail."""
        return self._member_session().membership

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit these offsets, each the next one to read; without arguments, the offsets after all records handed out.

        This includes the batch in hand; with `records` up to the record in hand. Tried again until `retry_timeout`; a
        commit may lower an offset. Raises `MemberFencedError` and its like when another member owns a partition now,
        `SettingError` for partitions that are not assigned or without a group.
        """
        self._check_open()
        committer = self._member_session().committer
        if offsets is None:
            await committer.commit(committer.handed_out())
            return
        entries = []
        for place, offset in offsets.items():
            cursor = self._cursor(place)
            if offset < 0:
                raise SettingError("offset", offset, "0 or more: the next offset to read")
            epoch = cursor.position_epoch if offset == cursor.position else None
            entries.append(
                OffsetCommit(
                    topic=place.topic,
                    topic_id=cursor.topic_id,
                    partition=place.partition,
                    offset=offset,
                    leader_epoch=epoch,
                )
            )
        await committer.commit(entries)

    async def committed(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, int | None]:
        """Ask for the committed offsets of these partitions, or of those assigned; None where there is none."""
        self._check_open()
        session = self._member_session()
        places = list(self._prefetch.cursors if partitions is None else partitions)
        found = await self._transport.retry(session.committed)
        return {place: found.get(place) for place in places}

    def __aiter__(self) -> AsyncIterator[ConsumerBatch]:
        return self.batches()

    async def batches(self, until: EndOffsets | None = None) -> AsyncIterator[ConsumerBatch]:
        """Iterate over batches in the order of their arrival, for ever, or until each partition of `until` is read.

        `until` maps partitions to end offsets: only those partitions are read, and a partition that is revoked is not
        waited for. An error of a partition is raised in its turn; the other partitions continue in the next iteration,
        the partition itself after a `seek`.
        """
        if until is not None and (unknown := until.keys() - self._prefetch.cursors.keys()):
            self._cursor(min(unknown))
        while (batch := await self._next(until)) is not None:
            yield batch

    async def records(self, until: EndOffsets | None = None) -> AsyncIterator[Record]:
        """Iterate over records one by one; the position is that after their batch.

        A record counts as processed when the next one is taken. After a stop inside of a batch the next take returns
        the rest of it; a commit covers the records up to the one in hand.
        """
        reader = self._reader
        async for batch in self.batches(until):
            for record in batch:
                reader.record = record
                yield record
                if not self.has_in_hand:
                    # A seek has moved the position: the rest of the batch is not next.
                    break
            else:
                reader.record = None

    def in_hand(self, record: Record | None) -> None:
        """Set the record in hand of the last batch, for callers that take records out of batches themselves."""
        self._reader.record = record

    @property
    def has_in_hand(self) -> bool:
        """Whether the records behind that of `in_hand` come next: not after a seek, nor while they are paused."""
        return self._reader.is_at_record

    async def next_batch(self, timeout: Duration | None = None) -> ConsumerBatch | None:  # noqa: ASYNC109
        """Return the next batch, or None when the timeout ends first; `SettingError` before the first `assign`."""
        limit = None if timeout is None else seconds_of(timeout, "timeout")
        try:
            async with asyncio.timeout(limit):
                return await self._next(None)
        except TimeoutError:
            return None

    async def _next(self, until: EndOffsets | None) -> ConsumerBatch | None:
        if self._is_taking:
            raise _taken_twice()
        self._is_taking = True
        try:
            if self._session is not None:
                self._check_reading()
                return await self._next_of_group(self._session, until)
            return await self._next_fetched(until)
        finally:
            self._is_taking = False

    async def _next_fetched(self, until: EndOffsets | None) -> ConsumerBatch | None:
        while True:
            self._check_reading()
            self._arrival.clear()
            batch = self._reader.next(until)
            if batch is not None:
                return batch
            if until is not None and not self._reader.unread(until):
                return None
            self._raise_failure()
            await self._arrival.wait()

    def _raise_failure(self) -> None:
        """Raise what the reader should know before it waits."""
        if self._session is not None:
            self._session.raise_failure()
        elif not self._assigned:
            raise SettingError(
                "assignment", None, "what to read: assign(topic=...), or a group with its topics"
            )
        failure = self._reader.failure()
        if failure is not None:
            raise failure.with_traceback(None)
        if self._task.done():
            error = ClosedError("consumer")
            raise error from (None if self._task.cancelled() else self._task.exception())

    async def _next_of_group(self, session: GroupSession, until: EndOffsets | None) -> ConsumerBatch | None:
        try:
            # What is held back was not handed out yet: its partition waits for it like for one that was.
            session.begin_take(finished=self._held_back is None)
            if not session.commits_before:
                return await self._next_fetched(until)
            return await self._next_committed(session, until)
        finally:
            session.end_take()

    async def _next_committed(self, session: GroupSession, until: EndOffsets | None) -> ConsumerBatch | None:
        """Return the next batch after it was committed.

        Until then it is held back: a reader who gives up waiting finds it, and its commit, at the next take.
        """
        while True:
            held = self._held_back
            if held is None:
                batch = await self._next_fetched(until)
                if batch is None:
                    return None
                held = self._held_back = HeldBack(batch, session.begin_commit())
            await asyncio.wait([held.committed])
            if self._held_back is not held:
                continue
            self._held_back = None
            if self._is_ready(session, held):
                return held.batch

    def _is_ready(self, session: GroupSession, held: HeldBack) -> bool:
        """Whether a batch whose commit has ended is handed out now; else its partition goes back to before it."""
        owned, error = self._owned_hand(held), held.committed.result()
        if owned is not None and error is None and not held.is_taken_back:
            # Also of a partition in revocation: the batch was committed, so no other member gets it.
            if not owned.paused:
                return True
            # Not now: the member that owns the partition when it is read again gets the batch.
            before = session.begin_take_back(self._go_back(held, owned))
            self._held_back = HeldBack(held.batch, before, is_taken_back=True)
            return False
        if owned is not None and error is not None:
            self._go_back(held, owned)
            self._fetcher.wake()
        session.finished()
        if error is not None and not is_fenced(error):
            raise error
        return False

    def _unseen(self) -> Unseen | None:
        """Drop a held-back batch: it is not handed out from here on.

        Its commit can be taken back if the member owned the partition all the time.
        """
        held, self._held_back = self._held_back, None
        owned = None if held is None else self._owned_hand(held)
        return None if held is None or owned is None else self._go_back(held, owned)

    def _go_back(self, held: HeldBack, owned: Cursor) -> Unseen:
        """Set a partition's position before the held-back batch, which was not handed out."""
        before, epoch = self._reader.hand_offset, self._reader.hand_epoch
        self._prefetch.seek(owned, before, epoch)
        return Unseen(owned, before, epoch, held.batch.next_offset)

    def _owned_hand(self, held: HeldBack) -> Cursor | None:
        """Return the partition of a batch that is held back, unless it was taken away since, and may have come back."""
        hand = self._reader.hand
        return hand if self._prefetch.cursors.get(held.batch.topic_partition) is hand else None

    def _picture_taken(self) -> None:
        """Read the partitions that an assigned topic has grown, from their beginning."""
        for name, topic_id in self._topics.items():
            found = self._metadata.picture.topics.get(name)
            if found is None or found.topic_id != topic_id:
                continue
            for index in range(len(found.partitions)):
                place = TopicPartition(name, index)
                if place not in self._prefetch.cursors:
                    self._prefetch.cursors[place] = Cursor(name, topic_id, index, 0)

    def _member_session(self) -> GroupSession:
        if self._group is None:
            raise SettingError("group", None, "the name of a group")
        if self._session is None:
            raise ClosedError("consumer")
        return self._session


def _taken_twice() -> SettingError:
    allowed = (
        'one take at a time. Let one task take batches and hand them on, in a group with commit="manual", or give '
        "each task a consumer of its own"
    )
    return SettingError("take", "begun while another one waits for a batch", allowed)


def _places_of(partitions: Iterable[object]) -> list[TopicPartition]:
    """Return each partition once; `SettingError` for what is none, such as the name of a topic."""
    places = []
    for place in [partitions] if isinstance(partitions, str) else dict.fromkeys(partitions):
        if not isinstance(place, TopicPartition):
            allowed = 'TopicPartition("orders", 0), several of them, or topic="orders" for all partitions of a topic'
            raise SettingError("partitions", place, allowed)
        places.append(place)
    return places
