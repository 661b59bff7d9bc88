"""The public consumer, which reads chosen partitions or is a member of a group.

    async with Consumer("http://127.0.0.1:9520", group="delays", topics="flights") as consumer:
        async for batch in consumer:
            print(batch.topic, batch.partition, batch.base_offset, batch.to_arrow().num_rows)

A consumer without a group stores nothing in the cluster. A separate task fetches ahead, up to `prefetch_bytes`; other
tasks handle heartbeats, commits and assigned partitions of a group (`group.session`). This module connects the tasks
and waits for fetched batches. The module is a single file because most of it is the public interface: arguments,
methods and their documentation.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from fairlead import clock
from fairlead.connection.metadata import MetadataCache
from fairlead.connection.transport import Transport
from fairlead.credentials import TokenProvider
from fairlead.errors import ClosedError, SettingError, second_start
from fairlead.group.commit_before import CommitBefore
from fairlead.group.commits import JointCommit
from fairlead.group.partitions import Reading
from fairlead.group.session import GroupSession, Membership
from fairlead.group.settings import CommitMode, GroupSettings, RebalanceCallback, group_settings_of
from fairlead.reading.cursors import Cursor, EndOffsets, Prefetch
from fairlead.reading.fetcher import Fetcher
from fairlead.reading.offsets import OffsetAndTimestamp, OffsetLookup, Position, topics_with
from fairlead.reading.positions import AssignedPartitions, offsets_of, places_of
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
from fairlead.tls_files import FilePath
from fairlead.topic_partition import TopicPartition
from fairlead_api.bodies.group_requests import OffsetCommit
from fairlead_api.bodies.requests import Isolation


class _Moved(Exception):
    """All topics of a group have moved to another cluster."""

    def __init__(self, addresses: tuple[str, ...]) -> None:
        super().__init__(addresses)
        self.addresses = addresses


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    """Parts of an open consumer."""

    transport: Transport
    metadata: MetadataCache
    lookup: OffsetLookup
    fetcher: Fetcher
    fetching: asyncio.Task[None]
    """Task of the fetcher, which runs until the consumer is closed."""
    arrival: asyncio.Event
    """Event that tells a call that waits for a batch to check again."""


class Consumer:
    """Consumer of partitions, opened with `async with`, or with `start` and `close`.

    Only one call at a time may take batches: `next_batch`, `batches`, `records` and iterating raise `SettingError`
    while another of these calls waits for a batch, in every `commit` mode and without a group. All other methods may be
    called while a call waits for a batch.

    Without a group, `assign` chooses the partitions, and the arguments from `topics` to `assignor` are refused. With a
    group, its members share the partitions of the subscribed topics.

    - bootstrap: URL of a broker, or several.
    - group: name of the consumer group.
    - topics, pattern: subscribed topics by name, or by an RE2 pattern that must match the whole name. Names that begin
      with `__` need a pattern that begins with `__`.
    - start: start of a partition without a committed offset: `"earliest"`, `"latest"`, a duration (`"10m"`: records of
      at most that age), or `"none"`, which raises an error.
    - commit: `"after"` commits processed records every `auto_commit_interval`, before a partition is released, and at
      the end (at least once); a batch, or a record of `records`, counts as processed when the next batch or record is
      taken, or when the block ends without an exception. `"before"` commits each batch before it is handed out (at most
      once). With `"manual"`, only `commit` commits.
    - auto_commit_interval: time between two commits with `commit="after"`.
    - on_assigned, on_revoked: plain or async functions, called with the assigned or revoked partitions; a partition is
      released only after `on_revoked` has returned.
    - processing_timeout: maximum time between two calls that take a batch; if it is exceeded, the member leaves the
      group, and the next such call raises `ProcessingTimeoutError`.
    - session_timeout: time without a heartbeat, for example after a crash, after which other members get the
      partitions.
    - rebalance_timeout: time that the group waits for the release of a partition.
    - instance_id: id of a static member; the partitions are kept for a consumer that restarts with this id within the
      session timeout.
    - rack: rack of the consumer, for assignors that prefer near replicas.
    - assignor: `"uniform"` or `"range"`.
    - fetch_wait_max, fetch_bytes_min: maximum time that a broker delays the answer to a fetch while fewer bytes are
      available.
    - fetch_bytes_max, partition_fetch_bytes_max: maximum number of bytes in one answer, and of one partition in the
      answer.
    - prefetch_bytes: maximum number of bytes that are fetched and not yet read.
    - offset_policy: reaction to a position outside the log: `"error"`, `"earliest"`, `"latest"` or a duration.
    - follow_moves: whether the consumer continues in the other cluster after a topic was handed over to that cluster,
      with the same token and TLS files; a member of a group continues there, in the group with the same name, when all
      of its topics have moved. The default is the environment variable `FAIRLEAD_FOLLOW_MOVES`.
    - isolation: `"read_committed"` reads only records of committed transactions and records without transactions, up to
      the first record of an open transaction; the default, `"read_uncommitted"`, reads all records.
    - request_timeout, connect_timeout, retry_timeout: timeouts of one attempt, of a new connection, and of a call with
      its retries.
    - token, token_file, token_provider: API token or signed token of the caller as text, as a file, or as a function
      that returns the text, synchronous (it runs in a thread) or asynchronous; at most one of the three. Every 30
      seconds, and after a refusal, the file is read again and the function is called again. The default is the
      environment variable `FAIRLEAD_TOKEN` or `FAIRLEAD_TOKEN_FILE`, else the file `/var/run/secrets/fairlead/token` if
      it exists.
    - allow_insecure_token: whether the token is sent to other machines without TLS; the default is the environment
      variable `FAIRLEAD_ALLOW_INSECURE_TOKEN`.
    - ca_file: PEM file with the authorities that sign the brokers' certificates, in addition to the system's
      authorities.
    - client_cert_file, client_key_file: PEM files with the client's certificate and key, for brokers that require a
      certificate. Changed files take effect within 30 seconds.
    - one_address: whether every call goes to a bootstrap address, whose broker forwards calls to the leaders, for
      clients that cannot reach the other brokers; the default is the environment variable `FAIRLEAD_ONE_ADDRESS`.

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
        isolation: Isolation = "read_uncommitted",
        follow_moves: bool | None = None,
        request_timeout: Duration = "30s",
        connect_timeout: Duration = "5s",
        retry_timeout: Duration = "30s",
        token: str | None = None,
        token_file: FilePath | None = None,
        token_provider: TokenProvider | None = None,
        allow_insecure_token: bool | None = None,
        ca_file: FilePath | None = None,
        client_cert_file: FilePath | None = None,
        client_key_file: FilePath | None = None,
        one_address: bool | None = None,
    ) -> None:
        self._connection = connection_of(
            bootstrap, connect=connect_timeout, request=request_timeout, token_file=token_file, follow=follow_moves,
            retry=retry_timeout, one_address=one_address, token=token, ca_file=ca_file, client_key_file=client_key_file,
            token_provider=token_provider, allow_insecure_token=allow_insecure_token, client_cert_file=client_cert_file,
        )  # fmt: skip
        self._settings = ConsumerSettings(
            fetch_wait_seconds_max=seconds_of(fetch_wait_max, "fetch_wait_max"), fetch_bytes_min=fetch_bytes_min,
            fetch_bytes_max=fetch_bytes_max, partition_fetch_bytes_max=partition_fetch_bytes_max,
            prefetch_bytes=prefetch_bytes, offset_policy=policy_of(offset_policy, "offset_policy"), isolation=isolation,
        )  # fmt: skip
        self._group = group_settings_of(
            group, topics=topics, pattern=pattern, start=start, commit=commit, commit_interval=auto_commit_interval,
            processing=processing_timeout, session=session_timeout, rebalance=rebalance_timeout,
            instance_id=instance_id, rack=rack, assignor=assignor, on_assigned=on_assigned, on_revoked=on_revoked,
        )  # fmt: skip
        self._prefetch = Prefetch(self._settings)
        self._reader = BatchReader(self._prefetch, self._wake_fetcher)
        self._partitions = AssignedPartitions(self._prefetch, self._reader)
        self._running: _Running | None = None
        self._closing, self._is_taking = False, False
        self._session: GroupSession | None = None
        self._commit_before: CommitBefore | None = None

    async def start(self) -> Self:
        """Open the connections, start fetching and join the group, if any, as entering the `async with` block does.

        A closed consumer may be started again; a consumer without a group continues at its positions. Raises
        `SettingError` while the consumer is open.
        """
        if self._running is not None:
            raise second_start()
        self._prefetch.restart(keeps_cursors=self._group is None)
        transport = await Transport(self._connection, "consumer").__aenter__()
        metadata = MetadataCache(transport, by_topic=self._group is None)
        metadata.want({place.topic for place in self._partitions.names})
        lookup = OffsetLookup(transport, metadata, self._settings.isolation)
        arrival = asyncio.Event()
        fetcher = Fetcher(
            self._prefetch,
            metadata,
            transport,
            self._settings,
            lookup,
            on_arrival=arrival.set,
            on_picture=self._picture_taken,
            waits_for_topics=self._group is not None,
        )
        fetching = asyncio.get_running_loop().create_task(fetcher.run(), name="fairlead consumer")
        fetching.add_done_callback(lambda _: arrival.set())
        running = _Running(
            transport=transport,
            metadata=metadata,
            lookup=lookup,
            fetcher=fetcher,
            fetching=fetching,
            arrival=arrival,
        )
        self._running, self._closing = running, False
        if self._group is not None:
            self._join(self._group, running)
        return self

    def _join(self, group: GroupSettings, running: _Running) -> None:
        reading = Reading(
            prefetch=self._prefetch,
            reader=self._reader,
            metadata=running.metadata,
            lookup=running.lookup,
            wake=self._look_again,
        )
        # Every start uses a new id, so that no other consumer is mistaken for this member.
        member_id = clock.new_id()
        session = GroupSession(group, member_id, running.transport, reading, on_change=running.arrival.set)
        if self._connection.follow_moves:
            running.metadata.want(group.topics)
        session.start()
        self._session = session
        self._commit_before = CommitBefore(session, reading) if session.commits_before else None

    def _picture_taken(self) -> None:
        running = self._running
        if running is not None:
            self._partitions.grow(running.metadata.picture)
            running.arrival.set()

    def _look_again(self) -> None:
        """Wake the fetcher and the call that waits for a batch."""
        self._wake_fetcher()
        if self._running is not None:
            self._running.arrival.set()

    def _wake_fetcher(self) -> None:
        if self._running is not None:
            self._running.fetcher.wake()

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
            # The exception of the `async with` block is raised; the exception of a callback is added to the raised
            # exception as a note.
            error.add_note(f"Closing the consumer: {failure!r}")

    async def close(self) -> None:
        """Stop reading and close the connections; a running iteration raises `ClosedError`.

        A member of a group commits if its `commit` mode requires it, and leaves the group; the batch that was taken
        last counts as processed. With `commit="before"`, the commit of a batch that was never handed out is undone.
        Returns at once if another call is already closing the consumer, even in `on_revoked`. When no other call is
        closing the consumer, a call in `on_assigned` or `on_revoked` raises `SettingError`, because closing waits for
        these callbacks. A callback can raise an exception, which is raised again by the next call that takes a batch,
        or set a flag so that the code that takes batches closes the consumer.
        """
        await self._close(processed=True)

    async def _close(self, *, processed: bool) -> None:
        running = self._running
        if running is None or self._closing:
            return
        if self._session is not None:
            self._session.check_closable()
        # From now on, partitions are released, but no batch is handed out.
        self._closing = True
        running.arrival.set()
        try:
            if self._session is not None:
                unseen = None if self._commit_before is None else self._commit_before.drop()
                await self._session.close(processed=processed, unseen=unseen)
        finally:
            # The next start continues after the record that was taken last.
            self._reader.finished()
            self._running = None
            running.fetching.cancel()
            await asyncio.wait([running.fetching])
            await running.transport.close()

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that the consumer reads."""
        return self._partitions.names

    async def assign(
        self,
        partitions: Iterable[TopicPartition] = (),
        *,
        topic: str | Iterable[str] | None = None,
        start: Position = "earliest",
    ) -> frozenset[TopicPartition]:
        """Read these partitions, or all partitions of the named topics, from `start`.

        The new assignment replaces the previous assignment. `start` is `"earliest"`, `"latest"`, an offset, or an aware
        datetime, which selects the first record at or after that time. Partitions that are added to a topic later are
        read from their first record. Returns the assigned partitions. Raises `TopicNotFoundError`,
        `PartitionNotFoundError`, and `SettingError`, for example if the consumer is a member of a group, which assigns
        the partitions itself.
        """
        running = self._check_open()
        if self._group is not None:
            raise SettingError(
                "group", self._group.group, "no group with assign: a group assigns its partitions itself"
            )
        names = set() if topic is None else {topic} if isinstance(topic, str) else set(topic)
        places = places_of(partitions)
        topics = await topics_with(running.metadata, places, names)
        for name in sorted(names):
            indexes = range(len(topics[name].partitions))
            places += [TopicPartition(name, index) for index in indexes]
        offsets = await offsets_of(running.lookup, dict.fromkeys(places, start))
        self._partitions.choose(
            (
                Cursor(place.topic, topics[place.topic].topic_id, place.partition, offset)
                for place, offset in offsets.items()
            ),
            {name: topics[name].topic_id for name in names},
        )
        running.fetcher.wake()
        return self.assignment

    async def seek(self, partition: TopicPartition, position: Position) -> int:
        """Continue reading a partition at an offset, at the start or end of the log, or at a time; return the offset.

        A partition that raised an error continues after a seek. A time after the last record means the end of the log.
        """
        running = self._check_open()
        self._partitions.cursor(partition)
        offset = (await offsets_of(running.lookup, {partition: position}))[partition]
        # The cursor is looked up again: during the wait the partition may have been revoked, or assigned again.
        self._partitions.seek(partition, offset)
        if self._commit_before is not None:
            self._commit_before.leave(partition)
        running.fetcher.wake()
        return offset

    def pause(self, *partitions: TopicPartition) -> None:
        """Stop fetching and handing out these partitions until `resume`; without arguments, pause all partitions.

        In a loop over `records` the pause takes effect at the next record; the rest of the batch follows after
        `resume`. The program must continue to take batches: heartbeats are sent in any case, but `processing_timeout`
        limits the time between two calls that take a batch. A partition that is revoked and assigned again is not
        paused.
        """
        self._check_open()
        for cursor in self._partitions.cursors(partitions):
            cursor.paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """Resume paused partitions at their positions; without arguments, resume all partitions."""
        self._check_open()
        for cursor in self._partitions.cursors(partitions):
            cursor.paused = False
        self._look_again()

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return self._partitions.paused

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record to hand out."""
        return self._partitions.cursor(partition).position

    def high_watermark(self, partition: TopicPartition) -> int | None:
        """Return the end offset of the readable records from the last fetch answer.

        The result is None before the first fetch.
        """
        return self._partitions.cursor(partition).high_watermark

    async def end_offsets(self) -> dict[TopicPartition, int]:
        """Return the current end offset of each assigned partition, for `batches(until=...)`."""
        running = self._check_open()
        return await offsets_of(running.lookup, dict.fromkeys(self._partitions.names, "latest"))

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, Position]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the offset of the first record at or after each time; None for a time after the last record."""
        return await self._check_open().lookup.lookup(times)

    @property
    def membership(self) -> Membership:
        """Membership of the consumer in its group: id, epoch, state, and how long heartbeats have failed."""
        return self._member_session().membership

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit the next offsets to read; without arguments, commit the offsets after all records handed out.

        The records handed out include the whole batch that was taken last; with `records`, these records end with the
        last record taken. The commit is retried until `retry_timeout` and may decrease a committed offset. Raises
        `MemberFencedError` or another fencing error if another member owns a partition now, and `SettingError` if a
        partition is not assigned or the consumer has no group.
        """
        self._check_open()
        committer = self._member_session().committer
        if offsets is None:
            await committer.commit(committer.handed_out())
            return
        entries = []
        for place, offset in offsets.items():
            cursor = self._partitions.cursor(place)
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

    def _joint_commit(self) -> JointCommit:
        """Return the function that commits, with a transaction, the offsets after the records handed out."""
        self._check_open()
        session = self._member_session()
        if not session.commits_manually:
            raise SettingError("commit", "after or before", '"manual": the transaction commits the offsets')
        return session.committer.joint()

    async def _begin_exactly_once(self) -> None:
        """Check the settings for `exactly_once`, and return to the committed offsets after an interrupted loop."""
        session = self._member_session()
        if not session.commits_manually:
            raise SettingError("commit", "after or before", '"manual" for exactly_once')
        if self._settings.isolation != "read_committed":
            raise SettingError("isolation", self._settings.isolation, '"read_committed" for exactly_once')
        if session.committer.has_taken:
            await self._rewind()

    def _hold(self) -> None:
        """Release revoked partitions only after `_end_hold`."""
        self._member_session().hold()

    def _end_hold(self) -> None:
        if self._session is not None:
            self._session.end_hold()

    async def _rewind(self) -> None:
        """Return to the committed offsets in all partitions from which batches were taken since the last commit."""
        running, session = self._check_open(), self._member_session()
        session.finished()
        committed = await running.transport.retry(session.committed)
        session.committer.rewind(committed)
        self._look_again()

    async def committed(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, int | None]:
        """Return the committed offsets of these partitions, by default of all assigned partitions.

        The result is None for a partition without a committed offset.
        """
        running = self._check_open()
        session = self._member_session()
        places = list(self._prefetch.cursors if partitions is None else partitions)
        found = await running.transport.retry(session.committed)
        return {place: found.get(place) for place in places}

    def __aiter__(self) -> AsyncIterator[ConsumerBatch]:
        return self.batches()

    async def batches(self, until: EndOffsets | None = None) -> AsyncIterator[ConsumerBatch]:
        """Iterate over batches in the order of their arrival, forever, or until each partition of `until` is read.

        `until` maps partitions to end offsets: only these partitions are read, and the iteration does not wait for a
        revoked partition. The error of a partition is raised after the batches that were fetched before the error. The
        other partitions continue in the next iteration, and the failed partition continues after a `seek`.
        """
        if until is not None and (unknown := until.keys() - self._prefetch.cursors.keys()):
            self._partitions.cursor(min(unknown))
        while (batch := await self._next(until)) is not None:
            yield batch

    async def records(self, until: EndOffsets | None = None) -> AsyncIterator[Record]:
        """Iterate over single records; the position is the offset after the current batch.

        A record counts as processed when the next record is taken. If the loop stops inside a batch, the next call
        returns the rest of the batch; a commit covers the records up to the last record taken.
        """
        reader = self._reader
        async for batch in self.batches(until):
            for record in batch:
                reader.record = record
                yield record
                if not self.has_in_hand:
                    # After a seek or a pause, the loop does not return the rest of the batch.
                    break
            else:
                reader.record = None

    def in_hand(self, record: Record | None) -> None:
        """Set the last record taken from the last batch, for callers that take records out of batches themselves."""
        self._reader.record = record

    @property
    def has_in_hand(self) -> bool:
        """Whether the rest of the current batch is read next, which is not the case after a seek or during a pause."""
        return self._reader.is_at_record

    async def next_batch(self, timeout: Duration | None = None) -> ConsumerBatch | None:  # noqa: ASYNC109
        """Return the next batch, or None after the timeout; raise `SettingError` before the first `assign`."""
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
            while self._session is not None:
                self._check_reading()
                try:
                    return await self._next_of_group(self._session, until)
                except _Moved as moved:
                    await self._move_home(moved.addresses)
            return await self._next_fetched(until)
        finally:
            self._is_taking = False

    async def _move_home(self, addresses: tuple[str, ...]) -> None:
        """Leave the group, and join the group with the same name in the cluster to which its topics have moved."""
        await self._close(processed=True)
        self._connection = replace(self._connection, bootstrap=addresses)
        await self.start()

    async def _next_fetched(self, until: EndOffsets | None) -> ConsumerBatch | None:
        while True:
            running = self._check_reading()
            running.arrival.clear()
            if self._group is not None and running.metadata.home is not None:
                raise _Moved(running.metadata.home)
            batch = self._reader.next(until)
            if batch is not None:
                return batch
            if until is not None and not self._reader.unread(until):
                return None
            self._raise_failure(running)
            await running.arrival.wait()

    def _raise_failure(self, running: _Running) -> None:
        """Raise the error, if any, that a call that waits for a batch must report."""
        if self._session is not None:
            self._session.raise_failure()
        elif not self._partitions.is_chosen:
            raise SettingError(
                "assignment", None, "what to read: assign(topic=...), or a group with its topics"
            )
        failure = self._reader.failure()
        if failure is not None:
            raise failure.with_traceback(None)
        if running.fetching.done():
            error = ClosedError("consumer")
            raise error from (None if running.fetching.cancelled() else running.fetching.exception())

    async def _next_of_group(self, session: GroupSession, until: EndOffsets | None) -> ConsumerBatch | None:
        before = self._commit_before
        try:
            # A held-back batch has not been handed out yet, so the batch is not finished.
            session.begin_take(finished=before is None or before.held is None)
            if before is None:
                batch = await self._next_fetched(until)
                hand = self._reader.hand
                if batch is not None and hand is not None and session.commits_manually:
                    session.committer.took_batch(hand, self._reader.hand_offset, self._reader.hand_epoch)
                return batch
            return await before.next(lambda: self._next_fetched(until))
        finally:
            session.end_take()

    def _check_reading(self) -> _Running:
        """Return the parts of a consumer that hands out batches.

        Raises `ClosedError` if the consumer is closing or not open.
        """
        if self._closing:
            raise ClosedError("consumer")
        return self._check_open()

    def _check_open(self) -> _Running:
        if self._running is None:
            raise ClosedError("consumer")
        return self._running

    def _member_session(self) -> GroupSession:
        if self._group is None:
            raise SettingError("group", None, "the name of a group")
        if self._session is None:
            raise ClosedError("consumer")
        return self._session


def _taken_twice() -> SettingError:
    allowed = (
        'only one take at a time. Let one task take batches and pass them on, in a group with commit="manual", or give '
        "each task a consumer of its own"
    )
    return SettingError("take", "called while another take waits for a batch", allowed)
