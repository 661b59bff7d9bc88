"""Fills the prefetch buffer of a consumer with one task and a few long polls to each leader.

The fetcher only splits answers into the parts of each partition. The reader verifies checksums and decodes batches to
Arrow, so that the next request is in flight while the last answer is decoded. A waiting long poll never delays other
partitions: partitions that can be fetched in the meantime are fetched by a separate request. The module must not depend
on the public API.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

import msgspec

from fairlead import clock
from fairlead.connection.metadata import LeaderCalls, MetadataCache, topic_not_found
from fairlead.connection.transport import Answer, Call, Transport
from fairlead.errors import (
    ClosedError,
    ClusterError,
    FairleadError,
    PartitionNotFoundError,
    SettingError,
    TopicNotFoundError,
    TopicRecreatedError,
    error_of,
)
from fairlead.reading.cursors import Cursor, Prefetch
from fairlead.reading.offsets import OffsetLookup
from fairlead.settings import ConsumerSettings, OffsetPolicy, ResetPolicy
from fairlead_api.bodies.frames import iterate_frames
from fairlead_api.bodies.media_types import FRAMES, JSON
from fairlead_api.bodies.requests import READ_COMMITTED, FetchRequest, PartitionFetchRequest
from fairlead_api.problems import JSON as JSON_VALUE
from fairlead_api.problems import ProblemError, ProblemKind

_LOG: Final = logging.getLogger("fairlead")

RESET_CODES: Final = frozenset({"offset_out_of_range", "offset_expired"})
"""Problem codes for an offset outside the log, which the consumer's offset policy handles."""


class _FrameMeta(msgspec.Struct):
    """Metadata of a fetch frame with data or with a problem."""

    topic_id: str
    partition: int
    next_offset: int = -1
    high_watermark: int = -1
    log_start_offset: int = -1
    last_stable_offset: int = -1
    leader_epoch: int = -1
    problem: dict[str, object] | None = None


_META: Final = msgspec.json.Decoder(_FrameMeta)
_LivesByPartition = dict[tuple[str, int], tuple[Cursor, int]]


class Fetcher:
    """Task that fills one prefetch buffer. `on_arrival` is called whenever the reader may find a new batch or error."""

    def __init__(
        self,
        prefetch: Prefetch,
        metadata: MetadataCache,
        transport: Transport,
        settings: ConsumerSettings,
        lookup: OffsetLookup,
        *,
        on_arrival: Callable[[], None],
        on_picture: Callable[[], None],
        waits_for_topics: bool = False,
    ) -> None:
        self._prefetch = prefetch
        self._metadata = metadata
        self._transport = transport
        self._leader_calls = LeaderCalls(transport, metadata)
        self._settings = settings
        self._lookup = lookup
        self._backoff = transport.settings.backoff
        self._on_arrival = on_arrival
        self._on_picture = on_picture
        self._waits_for_topics = waits_for_topics
        """Whether the fetcher waits for a missing topic. A consumer in a group waits, because the group's information
        is newer than the metadata of one broker, and the group revokes the partitions of a deleted topic itself."""
        self._awake = asyncio.Event()
        self._looked_at = 0.0
        self._in_flight: defaultdict[str, int] = defaultdict(int)
        self._refresh: asyncio.Task[None] | None = None
        self._trouble: FairleadError | None = None
        """Error of the fetch that is being retried; the error is logged once, since the program only notices that no
        records arrive."""

    @property
    def trouble(self) -> FairleadError | None:
        """Error of the fetch that is being retried; None while fetches succeed."""
        return self._trouble

    def wake(self) -> None:
        """Wake the fetcher after a change of buffer space, cursors or positions."""
        self._awake.set()

    async def run(self) -> None:
        """Fetch until the task is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._awake.clear()
                self._dispatch(tasks)
                await self._sleep()

    async def _sleep(self) -> None:
        # The deadline is computed as of the last dispatch, because a back-off that ended since then would otherwise be
        # missed forever.
        deadline = self._prefetch.next_deadline(self._looked_at)
        now = clock.monotonic()
        try:
            async with asyncio.timeout(None if deadline is None else max(deadline - now, 0)):
                await self._awake.wait()
        except TimeoutError:
            pass

    def _dispatch(self, tasks: asyncio.TaskGroup) -> None:
        by_leader: defaultdict[str, list[Cursor]] = defaultdict(list)
        picture = self._metadata.picture
        refresh = self._metadata.is_old
        now = self._looked_at = clock.monotonic()
        for cursor in self._prefetch.due(now):
            topic = picture.topics.get(cursor.topic)
            leader = picture.leader(cursor.topic, cursor.partition)
            if self._waits_for_topics and (topic is None or topic.topic_id != cursor.topic_id):
                self._metadata.want([cursor.topic])
                self._prefetch.delayed(cursor, cursor.life, now + self._pause(cursor))
                refresh = True
            elif topic is None and cursor.topic in picture.asked:
                self._fail(cursor, cursor.life, topic_not_found(cursor.topic))
            elif topic is not None and topic.topic_id != cursor.topic_id:
                self._fail(cursor, cursor.life, _recreated(cursor, topic.topic_id))
            elif leader is None:
                self._prefetch.delayed(cursor, cursor.life, now + self._pause(cursor))
                refresh = True
            else:
                assert topic is not None, "only topics in the metadata have a known leader"
                cursor.saw_leader_epoch(topic.partitions[cursor.partition].leader_epoch)
                by_leader[leader].append(cursor)
        for leader, cursors in by_leader.items():
            for shared in self._shares(leader, cursors):
                if self._in_flight[leader] < self._settings.requests_in_flight_max:
                    self._start_request(leader, shared, tasks)
        if refresh:
            self._start_refresh(tasks)

    def _shares(self, leader: str, cursors: Sequence[Cursor]) -> Sequence[Sequence[Cursor]]:
        """Return the cursors of each request: two requests if none is in flight and several partitions lag behind.

        With two requests, the broker reads from the log for one request while the answer to the other request is in
        transit. The partitions of one answer are fetched again by one request; otherwise the number of requests would
        grow. A long poll is not split.
        """
        settings = self._settings
        if self._in_flight[leader] or settings.requests_in_flight_max < 2 or settings.fetch_bytes_min > 1:
            return (cursors,)
        behind = sum(cursor.is_behind for cursor in cursors)
        return (cursors[::2], cursors[1::2]) if behind > 1 else (cursors,)

    def _start_request(self, leader: str, cursors: Sequence[Cursor], tasks: asyncio.TaskGroup) -> None:
        self._in_flight[leader] += 1
        lives: _LivesByPartition = {}
        for cursor in cursors:
            cursor.in_flight = True
            lives[cursor.topic_id, cursor.partition] = (cursor, cursor.life)
        tasks.create_task(
            self._request(leader, self._call(cursors), lives, tasks), name=f"fetch from {leader}"
        )

    def _call(self, cursors: Sequence[Cursor]) -> Call:
        settings = self._settings
        request = FetchRequest(
            max_wait_ms=round(settings.fetch_wait_seconds_max * 1000),
            min_bytes=settings.fetch_bytes_min,
            max_bytes=settings.fetch_bytes_max,
            isolation=settings.isolation,
            partitions=[
                PartitionFetchRequest(
                    topic_id=cursor.topic_id,
                    partition=cursor.partition,
                    offset=cursor.fetch_offset,
                    leader_epoch=cursor.leader_epoch,
                    last_epoch=cursor.last_epoch,
                    max_bytes=settings.partition_fetch_bytes_max,
                )
                for cursor in cursors
            ],
        )
        others = f" and {len(cursors) - 1} other partitions" if len(cursors) > 1 else ""
        return Call(
            method="POST",
            path="/v1/fetch",
            subject=f"fetch {cursors[0]} from offset {cursors[0].fetch_offset}{others}",
            headers={"content-type": JSON, "accept": FRAMES},
            body=msgspec.json.encode(request),
            timeout_seconds=settings.fetch_wait_seconds_max
            + self._transport.settings.request_timeout_seconds,
        )

    async def _request(
        self, leader: str, call: Call, lives: _LivesByPartition, tasks: asyncio.TaskGroup
    ) -> None:
        try:
            places = [(cursor.topic, cursor.partition) for cursor, _ in lives.values()]
            wait_seconds = self._settings.fetch_wait_seconds_max
            answer = await self._leader_calls.send(call, leader, places, wait_seconds=wait_seconds)
            await self._take(answer, lives, leader, tasks)
        except ClosedError:
            raise
        except FairleadError as error:
            for cursor, life in lives.values():
                self._refused(cursor, life, error, tasks)
        except (ProblemError, msgspec.MsgspecError) as error:
            problem = ProblemError("internal", f"the answer cannot be read: {error}")
            for cursor, life in lives.values():
                self._fail(cursor, life, error_of(problem, subject=call.subject, broker=leader))
        finally:
            self._in_flight[leader] -= 1
            # The reader comes first: it gets the records before the next request is prepared.
            self._on_arrival()
            self.wake()

    async def _take(
        self, answer: Answer, lives: _LivesByPartition, leader: str, tasks: asyncio.TaskGroup
    ) -> None:
        """Buffer the part of an answer for each partition; partitions without a part are fetched again."""
        missing = dict(lives)
        if answer.body:
            for frame in iterate_frames(answer.body):
                meta = _META.decode(frame.meta)
                cursor, life = missing.pop((meta.topic_id, meta.partition), (None, -1))
                if cursor is None:
                    continue
                if meta.problem is not None:
                    problem = ProblemError.from_document(cast("Mapping[str, JSON_VALUE]", meta.problem))
                    error = error_of(
                        problem, subject=f"fetch {cursor} from offset {cursor.fetch_offset}", broker=leader
                    )
                    self._refused(cursor, life, error, tasks)
                else:
                    self._arrived(cursor, life, meta, frame.data)
        for cursor, life in missing.values():
            self._prefetch.arrived(cursor, life, memoryview(b""), cursor.fetch_offset)

    def _retrying(self, error: FairleadError) -> None:
        if type(error) is not type(self._trouble):
            _LOG.warning("%s Trying again.", error)
        self._trouble = error

    def _arrived(self, cursor: Cursor, life: int, meta: _FrameMeta, data: memoryview) -> None:
        is_committed = self._settings.isolation == READ_COMMITTED
        cursor.high_watermark = meta.last_stable_offset if is_committed else meta.high_watermark
        cursor.log_start_offset = meta.log_start_offset
        cursor.saw_leader_epoch(meta.leader_epoch)
        self._prefetch.arrived(cursor, life, data, meta.next_offset)
        if self._trouble is not None:
            _LOG.info("fetching %s again", cursor)
            self._trouble = None

    def _refused(self, cursor: Cursor, life: int, error: FairleadError, tasks: asyncio.TaskGroup) -> None:
        """Retry, reset or stop one partition, depending on the kind of its problem."""
        if isinstance(error, ClusterError) and error.code in RESET_CODES:
            self._out_of_range(cursor, life, error, tasks)
            return
        if isinstance(error, SettingError) or (isinstance(error, ClusterError) and self._is_final(error)):
            self._fail(cursor, life, error)
            return
        self._retrying(error)
        advice = error.retry_after_seconds if isinstance(error, ClusterError) else None
        self._prefetch.delayed(cursor, life, clock.monotonic() + self._pause(cursor, advice))
        if not isinstance(error, ClusterError) or error.kind is not ProblemKind.RETRY:
            self._start_refresh(tasks)

    def _is_final(self, error: ClusterError) -> bool:
        if isinstance(error, TopicRecreatedError | TopicNotFoundError | PartitionNotFoundError):
            return not self._waits_for_topics
        return not error.retryable

    def _out_of_range(self, cursor: Cursor, life: int, error: ClusterError, tasks: asyncio.TaskGroup) -> None:
        policy = self._settings.offset_policy
        if policy is OffsetPolicy.ERROR:
            error.add_note(
                'Seek to an offset of the log, or set offset_policy to "earliest", "latest" or a duration.'
            )
            self._fail(cursor, life, error)
        else:
            tasks.create_task(self._reset(cursor, life, policy, tasks), name=f"reset {cursor}")

    async def _reset(self, cursor: Cursor, life: int, policy: ResetPolicy, tasks: asyncio.TaskGroup) -> None:
        """Move a cursor to the policy's offset; the cursor stays in flight, so no other task fetches its partition."""
        place = cursor.topic_partition
        try:
            found = await self._lookup.reset(place, policy, cursor.leader_epoch)
        except ClosedError:
            raise
        except FairleadError as error:
            # A retryable error is retried by a fetch, which finds the offset out of range again.
            self._refused(cursor, life, error, tasks)
            self.wake()
            return
        if cursor.life == life:
            if found.leader_epoch is not None:
                cursor.saw_leader_epoch(found.leader_epoch)
            # The epoch of the record before the new offset is unknown, so the epoch of the answering leader is used.
            self._prefetch.skipped(cursor, found.offset, found.leader_epoch)
            self._on_arrival()
            self.wake()

    def _fail(self, cursor: Cursor, life: int, error: FairleadError) -> None:
        self._prefetch.failed(cursor, life, error)
        self._on_arrival()

    def _pause(self, cursor: Cursor, advice_seconds: float | None = None) -> float:
        return self._backoff.seconds(cursor.attempts + 1, clock.chance(), advice_seconds)

    def _start_refresh(self, tasks: asyncio.TaskGroup) -> None:
        if self._refresh is None:
            self._refresh = tasks.create_task(self._take_picture(), name="metadata")

    async def _take_picture(self) -> None:
        try:
            await self._metadata.refresh()
            self._on_picture()
        except ClosedError:
            raise
        except FairleadError as error:
            self._retrying(error)
        finally:
            self._refresh = None
            self.wake()


def _recreated(cursor: Cursor, topic_id: str) -> TopicRecreatedError:
    problem = ProblemError(
        "topic_recreated",
        f"topic {cursor.topic} was deleted and recreated: its id was {cursor.topic_id} and is now {topic_id}",
        data={"expected": cursor.topic_id, "actual": topic_id},
    )
    return TopicRecreatedError(problem, subject=f"fetch {cursor} from offset {cursor.fetch_offset}")
