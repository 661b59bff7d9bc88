"""Tailing of a topic: the records of all partitions from all leaders as a stream, for curl and for browsers.

Callers: ``application`` for the route named in ``endpoints``. The answer to a tail begins immediately. The answer ends
when the client disconnects, the broker stops, the topic is deleted, or the requested limits are reached. Failures after
the start are reported within the answer: if the next records of a partition have expired, a line with the problem is
sent, and the partition continues at its log start.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from fairlead_api.access_needs import Kind, Operation
from fairlead_api.bodies.frames import Frame, iterate_frames
from fairlead_api.bodies.json_records import Encoding, FetchedRecord
from fairlead_api.bodies.requests import (
    READ_COMMITTED,
    FetchFrameMeta,
    FetchProblemMeta,
    FetchRequest,
    Isolation,
    OffsetsLookupRequest,
    PartitionFetchRequest,
    TopicOffsetLookup,
)
from fairlead_api.identifiers import LeaderEpoch, Offset, PartitionIndex
from fairlead_api.problems import ProblemError
from fairlead_broker.clock import Clock
from fairlead_broker.runtime import Broker, FetchResult, TopicView, refusals
from fairlead_broker.runtime.engine.budget import HeldAnswer
from fairlead_broker.server.http.asgi import HeaderList
from fairlead_broker.server.http.call import PART_BYTES_MAX, Call, Endpoint, answer_type
from fairlead_broker.server.http.codec_threads import CODEC_THREADS, in_thread
from fairlead_broker.server.http.disconnect import unless_gone
from fairlead_broker.server.http.throttling import wait_for_room
from fairlead_broker.server.records.fetch_routing import FetchedPartition, FetchRouting
from fairlead_broker.server.records.fetched_records import FetchedRecords
from fairlead_broker.server.records.offsets import OffsetCalls
from fairlead_broker.server.records.tail_events import Positions, TailFormat, parse_event_id, tail_format
from fairlead_broker.server.routing.forwarding import Forwarding
from fairlead_broker.server.routing.locate import topic_of

ROUND_BYTES_MAX: Final = 1 << 20
"""Maximum number of bytes read at a time, which limits the memory for one client; as JSON, the records take up ten
times as much memory."""
POLL_MS: Final = 15_000
"""Number of milliseconds after which an idle stream sends a keep-alive; load balancers close idle connections after 60
s."""
SILENCE_SECONDS: Final = 14.0
"""Minimum number of seconds without data before a keep-alive; less than `POLL_MS`, because a wait may end slightly
early."""
PAUSE_SECONDS: Final = 0.2
"""Number of seconds before the next attempt to read a partition without a leader."""
CROWDED_PAUSE_SECONDS: Final = 1.0
"""Number of seconds before the next read when other answers occupy all available bytes. Without a pause, many tails
that retry at once would overload the event loop."""
OVERLOADED: Final = "overloaded"
PASSING: Final = frozenset(
    {
        "no_leader", "not_leader", "offset_not_available", "stale_leader_epoch", "unknown_leader_epoch",
        "leader_changed", OVERLOADED, "coordination_unavailable",
    }
)  # fmt: skip
"""Codes of transient problems, which are retried in later rounds."""
SKIPPED: Final = {"offset_expired": "earliest", "offset_out_of_range": "latest"}
"""Position at which a partition continues when its next record does not exist, by problem code."""


class TailCalls:
    """Endpoint of the call that tails a topic."""

    def __init__(self, broker: Broker, forwarding: Forwarding, offsets: OffsetCalls, clock: Clock) -> None:
        self._broker = broker
        self._forwarding = forwarding
        self._routing = FetchRouting(broker, forwarding)
        self._offsets = offsets
        self._clock = clock
        self._opening = asyncio.Semaphore(CODEC_THREADS)

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoint of each route of this family, by route name."""
        return {"tail_topic": self.tail_topic}

    async def tail_topic(self, call: Call) -> None:
        """``GET /v1/topics/{topic}/records``."""
        media_type = answer_type(call)
        topic = topic_of(call, self._broker)
        known = parse_event_id(call.header_text(b"last-event-id"), topic.partition_count)
        missing = [each for each in range(topic.partition_count) if each not in known]
        # An event id names all partitions that existed when the event was sent. Partitions that were added later are
        # read from their beginning.
        begin = "earliest" if known else call.query.text("from")
        positions = known | await self._look_up(call, topic, missing, begin)
        headers: HeaderList = [
            (b"content-type", media_type.encode()),
            (b"cache-control", b"no-store"),
            (b"fairlead-topic-id", topic.topic_id.encode()),
            (b"vary", b"accept"),
        ]
        if call.scope["method"] == "HEAD":
            # The answer to HEAD has no Content-Length, because the length of the answer to GET is not known.
            await call.start_stream(headers)
            await call.send_piece(b"", more=False)
            return
        tail = _Tail(call, topic, positions, tail_format(media_type), self._clock.monotonic())
        call.held = self._broker.answers.hold()
        await call.start_stream(headers)
        await unless_gone(call.receive, self._run(tail))

    async def _run(self, tail: _Tail) -> None:
        seconds = tail.call.query.integer_or_none("max_seconds")
        ends_at = None if seconds is None else self._clock.monotonic() + seconds
        await tail.send(tail.format.begin(tail.positions))
        try:
            while not tail.complete:
                left = None if ends_at is None else ends_at - self._clock.monotonic()
                if left is not None and left <= 0:
                    break
                if (
                    await wait_for_room(tail.call, math.inf if left is None else left, is_watched=True)
                    is None
                ):
                    break
                await self._round(tail, POLL_MS if left is None else min(POLL_MS, int(left * 1000) + 1))
        except ProblemError as problem:
            await tail.send(tail.format.problem(problem.to_document()))
        await tail.call.send_piece(b"", more=False)

    async def _round(self, tail: _Tail, wait_ms: int) -> None:
        """Read all partitions once and send the records. Raises the problem that ends the stream."""
        if self._forwarding.stopping:
            raise refusals.shutting_down()
        call = tail.call
        topic = topic_of(call, self._broker)
        if topic.topic_id != tail.topic.topic_id:
            raise ProblemError("topic_recreated", f"topic {topic.name} was deleted and created again")
        # Partitions that were added since the previous round are read from their beginning.
        for partition in range(topic.partition_count):
            tail.positions.setdefault(partition, 0)
        request = FetchRequest(
            max_wait_ms=wait_ms,
            max_bytes=ROUND_BYTES_MAX,
            isolation=_isolation(call),
            partitions=[
                PartitionFetchRequest(
                    topic_id=topic.topic_id, partition=partition, offset=offset, max_bytes=ROUND_BYTES_MAX
                )
                for partition, offset in tail.positions.items()
            ],
        )
        here, remote = self._broker.answers.hold(), self._broker.answers.hold()
        try:
            elsewhere = self._routing.elsewhere(call, request)
            fetching = self._routing.fetch(call.access, request, elsewhere, here, remote)
            answers = await self._broker.reads.unless_ended(call.access, lambda: [topic.name], fetching) or ()
            call.access = self._broker.security.again(call.access)
            call.access.require(Operation.READ, Kind.TOPIC, topic.name)
            sent, pause = call.bytes_sent, 0.0
            for answer in answers:
                pause = max(pause, await self._announce(tail, answer))
        finally:
            here.release()
            remote.release()
        now = self._clock.monotonic()
        if sent != call.bytes_sent:
            tail.sent_at = now
            return
        if now - tail.sent_at >= SILENCE_SECONDS:
            await tail.send(tail.format.sign_of_life())
            tail.sent_at = now
        if pause:
            await asyncio.sleep(pause)  # noqa: TID251 - no event announces an election of a leader on another broker

    async def _announce(self, tail: _Tail, answer: FetchedPartition) -> float:
        """Send the records of one partition, and return the seconds to wait before the next round."""
        [frame] = iterate_frames(b"".join(answer.frame))
        if answer.refused:
            return await self._meet(tail, msgspec.json.decode(frame.meta, type=FetchProblemMeta))
        if tail.complete:
            return 0.0
        if not answer.nbytes:
            if answer.has_moved:
                meta = msgspec.json.decode(frame.meta, type=FetchFrameMeta)
                tail.positions[meta.partition] = meta.next_offset
            return 0.0
        partition, records = _fetched(frame, tail.positions)
        slices = records.slices(Encoding(tail.call.query.text("encoding")))
        try:
            slice_ = await self._first_slice(tail, records, slices)
            if slice_ is None:
                return CROWDED_PAUSE_SECONDS
            while slice_ and not tail.complete:
                await tail.send_records(slice_, records.open_bytes)
                slice_ = [] if tail.complete else await _next_slice(records, slices)
        finally:
            tail.held.resize(0)
        if not slice_:
            tail.positions[partition] = records.next_offset
        return 0.0

    async def _first_slice(
        self, tail: _Tail, records: FetchedRecords, slices: Iterator[list[FetchedRecord]]
    ) -> list[FetchedRecord] | None:
        """Return the first slice of records.

        The result is None if the records may be large and other answers occupy all available bytes.
        """
        if records.small:
            return await _next_slice(records, slices)
        # The semaphore admits only as many answers as there are threads, so each check includes the bytes of earlier
        # answers.
        async with self._opening:
            if tail.held.crowded:
                return None
            slice_ = await _next_slice(records, slices)
            tail.held.resize(records.open_bytes)
            return slice_

    async def _meet(self, tail: _Tail, meta: FetchProblemMeta) -> float:
        code = str(meta.problem["code"])
        if code in PASSING and tail.call.may_forward:
            return CROWDED_PAUSE_SECONDS if code == OVERLOADED else PAUSE_SECONDS
        if code not in SKIPPED:
            raise ProblemError.from_document(meta.problem)  # type: ignore[arg-type]
        await tail.send(tail.format.problem(meta.problem))
        tail.positions |= await self._look_up(tail.call, tail.topic, [meta.partition], SKIPPED[code])
        return 0.0

    async def _look_up(self, call: Call, topic: TopicView, partitions: list[int], where: str) -> Positions:
        """Return the start or end offsets of partitions. Raises a ProblemError for the first lookup that fails."""
        if not partitions:
            return {}
        wanted = [
            TopicOffsetLookup(topic=topic.name, topic_id=topic.topic_id, partition=each, timestamp=where)
            for each in partitions
        ]
        request = OffsetsLookupRequest(isolation=_isolation(call), partitions=wanted)
        found = await self._offsets.look_up(call, request)
        positions: Positions = {}
        for entry in found:
            if isinstance(entry.problem, dict):
                raise ProblemError.from_document(entry.problem)  # type: ignore[arg-type]
            assert entry.offset is not None, "both ends of a log have offsets"
            positions[entry.partition] = entry.offset
        return positions


class _Tail:
    """State of one running tail."""

    __slots__ = ("_left", "call", "format", "positions", "sent_at", "topic")

    def __init__(
        self, call: Call, topic: TopicView, positions: Positions, form: TailFormat, now: float
    ) -> None:
        self.sent_at = now
        """Monotonic time at which data were last sent."""
        self.call = call
        self.topic = topic
        self.positions = positions
        self.format = form
        self._left = call.query.integer_or_none("max_records")

    @property
    def held(self) -> HeldAnswer:
        """Account of the bytes that the answer takes from the budget."""
        assert self.call.held is not None, "a tail counts the bytes of its answer"
        return self.call.held

    @property
    def complete(self) -> bool:
        """Whether the requested number of records has been sent."""
        return self._left == 0

    async def send_records(self, records: list[FetchedRecord], open_bytes: int) -> None:
        """Send records, up to the requested number; `open_bytes` is the decoded size of the batch."""
        if self._left is not None:
            records = records[: self._left]
            self._left -= len(records)
        text = self.format.records(records, self.positions)
        self.held.resize(open_bytes + len(text))
        await self.send(text)

    async def send(self, text: bytes) -> None:
        """Send text in pieces."""
        for at in range(0, len(text), PART_BYTES_MAX):
            await self.call.send_piece(text[at : at + PART_BYTES_MAX])


def _isolation(call: Call) -> Isolation:
    return READ_COMMITTED if call.query.text("isolation") == READ_COMMITTED else "read_uncommitted"


async def _next_slice(records: FetchedRecords, slices: Iterator[list[FetchedRecord]]) -> list[FetchedRecord]:
    """Return the next slice of records; the list is empty at the end."""
    return next(slices, []) if records.small else await in_thread(next, slices, [])


def _fetched(frame: Frame, positions: Positions) -> tuple[int, FetchedRecords]:
    """Return the partition of a frame, and the frame's records from the tail's position on."""
    meta = msgspec.json.decode(frame.meta, type=FetchFrameMeta)
    result = FetchResult(
        data=[frame.data],
        next_offset=Offset(meta.next_offset),
        high_watermark=Offset(meta.high_watermark),
        log_start_offset=Offset(meta.log_start_offset),
        last_stable_offset=Offset(meta.last_stable_offset),
        leader_epoch=LeaderEpoch(meta.leader_epoch),
        deleted_to=Offset(meta.deleted_to or 0),
        removed_to=Offset(meta.removed_to or 0),
    )
    offset = Offset(positions[meta.partition])
    return meta.partition, FetchedRecords(PartitionIndex(meta.partition), offset, result)
