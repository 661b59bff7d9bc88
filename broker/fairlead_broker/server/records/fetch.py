"""Fetch calls: one partition by GET, or many partitions by one long poll with frames in the answer.

Callers: ``application`` for the routes named in ``endpoints``. On the hot path, whole batches are sent from the log to
the socket as they are stored. The broker decodes batches only for clients that request JSON or Arrow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import msgspec

from fairlead_api.access_needs import Kind, Operation
from fairlead_api.batch.header import Buffer
from fairlead_api.bodies.json_records import Encoding
from fairlead_api.bodies.media_types import ARROW_STREAM, BATCHES, FRAMES
from fairlead_api.bodies.requests import (
    RAW,
    READ_COMMITTED,
    FetchRequest,
    PartitionFetchRequest,
    decode_request,
)
from fairlead_api.identifiers import BrokerId, LeaderEpoch, Offset, TopicId
from fairlead_api.problems import ProblemError
from fairlead_api.routes.query_parameters import OffsetExpression, OffsetOrigin
from fairlead_broker.runtime import (
    Broker,
    FetchResult,
    FetchSpec,
    PartitionFetch,
    refusals,
)
from fairlead_broker.runtime.engine.budget import HeldAnswer
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.runtime.peer_serving.positions import look_up
from fairlead_broker.server.http.asgi import HeaderList
from fairlead_broker.server.http.call import Call, Endpoint, answer_type, body_type
from fairlead_broker.server.http.codec_threads import CODEC_THREADS, in_thread
from fairlead_broker.server.http.disconnect import DisconnectWatch, unless_gone
from fairlead_broker.server.http.throttling import wait_for_room
from fairlead_broker.server.records.fetch_routing import FetchRouting, fetched, partition_fetch, refused
from fairlead_broker.server.records.fetched_records import FetchedRecords
from fairlead_broker.server.routing.forwarding import Forwarding
from fairlead_broker.server.routing.locate import Elsewhere, locate_path, refusal_by_id

FRAMES_TYPE: Final = (b"content-type", FRAMES.encode())
REQUEST_BYTES_MAX: Final = 4 << 20
# JSON and Arrow answers are built in memory and in Python. A request for more than this number of bytes gets a shorter
# answer; any fetch may return less than requested.
DECODED_BYTES_MAX: Final = 8 << 20


class FetchCalls:
    """Endpoints of the fetch calls."""

    def __init__(self, broker: Broker, forwarding: Forwarding) -> None:
        self._broker = broker
        self._forwarding = forwarding
        self._routing = FetchRouting(broker, forwarding)
        self._opening = asyncio.Semaphore(CODEC_THREADS)

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoint of each route of this family, by route name."""
        return {"fetch_partition": self.fetch_partition, "fetch": self.fetch_many}

    async def fetch_partition(self, call: Call) -> None:
        """``GET /v1/topics/{topic}/partitions/{partition}/records``."""
        left = await wait_for_room(call, call.query.integer("max_wait_ms") / 1000)
        if left is None:
            await call.answer(204, _same_offset(call.query.offset("offset")))
        else:
            await self._fetch_partition(call, left)

    async def _fetch_partition(self, call: Call, wait_seconds_max: float) -> None:
        query = call.query
        media_type = answer_type(call)
        encoding = Encoding(query.text("encoding"))
        found = await locate_path(call, self._broker)
        if isinstance(found, Elsewhere):
            heard = None
            while heard is None:
                passing = self._routing.pass_on(call, found.broker, query.integer("max_wait_ms"))
                heard = await self._broker.reads.unless_ended(call.access, lambda: [call.topic], passing)
                if self._changed(call):
                    call.access.require(Operation.READ, Kind.TOPIC, call.topic)
            await self._forwarding.answer(call, heard)
            return
        replica = found.replica
        committed = query.text("isolation") == READ_COMMITTED
        offset = await self._start_offset(
            replica, query.offset("offset"), query.timestamp_us("timestamp"), committed=committed
        )
        bytes_max = query.integer("max_bytes")
        if media_type != BATCHES:
            bytes_max = min(bytes_max, DECODED_BYTES_MAX)
        spec = FetchSpec(
            partitions=[_wanted(call, replica, offset, bytes_max)],
            min_bytes=query.integer("min_bytes"),
            max_bytes=bytes_max,
            max_wait_seconds=wait_seconds_max,
            committed=committed,
        )
        call.held = self._broker.answers.hold()
        with (
            DisconnectWatch(call.receive) as watch,
            self._broker.reads.watch(call.access, lambda: [call.topic], watch.end),
        ):
            [result] = await self._broker.fetching.fetch(spec, call.held, disconnected=watch.gone)
        if self._changed(call):
            call.access.require(Operation.READ, Kind.TOPIC, call.topic)
        if isinstance(result, ProblemError):
            raise result
        if media_type == BATCHES or not result.data:
            headers = _offset_headers(replica, result, result.next_offset)
            if not result.data:
                await call.answer(204, headers)
                return
            await call.answer_parts(200, [(b"content-type", BATCHES.encode()), *headers], result.data)
            return
        records = FetchedRecords(replica.index, offset, result)
        write = records.to_arrow_stream if media_type == ARROW_STREAM else partial(records.to_json, encoding)
        parts = write() if records.small else await self._written(write, call.held)
        call.held.resize(sum(map(len, parts)))
        headers = _offset_headers(replica, result, records.next_offset)
        await call.answer_parts(200, [(b"content-type", media_type.encode()), *headers], parts)

    async def _written(self, write: Callable[[], list[Buffer]], held: HeldAnswer) -> list[Buffer]:
        """Build an answer in a thread. Raises overloaded when other answers already occupy all available bytes."""
        # The semaphore admits only as many answers as there are threads, so each check includes the bytes of earlier
        # answers.
        async with self._opening:
            if held.crowded:
                waiting = "answers not yet received by clients leave no room to decode another answer"
                raise refusals.overloaded(waiting)
            parts = await in_thread(write)
            held.resize(sum(map(len, parts)))
            return parts

    async def fetch_many(self, call: Call) -> None:
        """``POST /v1/fetch``."""
        body_type(call)
        answer_type(call)
        request = decode_request(FetchRequest, await call.body(REQUEST_BYTES_MAX), unique_keys=False)
        # The request is decoded, so the long poll does not need to keep the bytes of the body.
        call.body_reader.release()
        left = await wait_for_room(call, request.max_wait_ms / 1000)
        if left is None:
            await call.answer(204, [])
            return
        if call.quota is not None:
            request = msgspec.structs.replace(request, max_wait_ms=int(left * 1000))
        call.held = self._broker.answers.hold()
        problems = {} if call.access.is_open else self._problems(call, request)
        if problems:
            await self._fetch_allowed(call, request, problems, call.held)
            return
        elsewhere = self._routing.elsewhere(call, request)
        if elsewhere:
            await self._fetch_everywhere(call, request, elsewhere, call.held)
            return
        spec = FetchSpec(
            partitions=[partition_fetch(wanted) for wanted in request.partitions],
            min_bytes=request.min_bytes,
            max_bytes=request.max_bytes,
            max_wait_seconds=request.max_wait_ms / 1000,
            committed=request.isolation == READ_COMMITTED,
            raw=request.isolation == RAW,
        )
        with (
            DisconnectWatch(call.receive) as watch,
            self._broker.reads.watch(call.access, partial(self._topics, request), watch.end),
        ):
            results = await self._broker.fetching.fetch(spec, call.held, disconnected=watch.gone)
        if self._changed(call) and (problems := self._problems(call, request)):
            await self._fetch_allowed(call, request, problems, call.held)
            return
        parts: list[Buffer] = []
        for wanted, result in zip(request.partitions, results, strict=True):
            parts += fetched(wanted, result).frame
        await call.answer_parts(200, [FRAMES_TYPE], parts)

    def _changed(self, call: Call) -> bool:
        """Return whether the caller's access has changed during a wait, and set the current access."""
        before, call.access = call.access, self._broker.security.again(call.access)
        return call.access is not before

    def _topics(self, request: FetchRequest) -> list[str]:
        """Return the names of the existing topics in a request."""
        names = map(self._broker.metadata.topic_name, {TopicId(each.topic_id) for each in request.partitions})
        return [name for name in names if name is not None]

    def _problems(self, call: Call, request: FetchRequest) -> dict[int, ProblemError]:
        """Return the problems of the partitions that the caller is not allowed to read, by position in the request."""
        found = {}
        for place, wanted in enumerate(request.partitions):
            problem = refusal_by_id(call, self._broker, Operation.READ, TopicId(wanted.topic_id))
            if problem is not None:
                found[place] = problem
        return found

    async def _fetch_allowed(
        self, call: Call, request: FetchRequest, problems: Mapping[int, ProblemError], held: HeldAnswer
    ) -> None:
        """Answer at once, with problems for the partitions without access and records of all other partitions."""
        places = [place for place in range(len(request.partitions)) if place not in problems]
        rest = msgspec.structs.replace(
            request, partitions=[request.partitions[place] for place in places], max_wait_ms=0
        )
        answers = {place: refused(request.partitions[place], problem) for place, problem in problems.items()}
        remote = self._broker.answers.hold()
        try:
            if places:
                elsewhere = self._routing.elsewhere(call, rest)
                found = await self._routing.fetch(call.access, rest, elsewhere, held, remote)
                answers.update(zip(places, found, strict=True))
            parts = [part for place in sorted(answers) for part in answers[place].frame]
            await call.answer_parts(200, [FRAMES_TYPE], parts)
        finally:
            remote.release()

    async def _fetch_everywhere(
        self,
        call: Call,
        request: FetchRequest,
        elsewhere: Mapping[BrokerId, Mapping[int, PartitionFetchRequest]],
        held: HeldAnswer,
    ) -> None:
        remote = self._broker.answers.hold()
        try:
            fetching = self._routing.fetch(call.access, request, elsewhere, held, remote)
            topics = partial(self._topics, request)
            watched = self._broker.reads.unless_ended(call.access, topics, fetching)
            answers = await unless_gone(call.receive, watched)
            problems = self._problems(call, request) if self._changed(call) else {}
            if problems or answers is None:
                await self._fetch_allowed(call, request, problems, held)
                return
            await call.answer_parts(200, [FRAMES_TYPE], [part for answer in answers for part in answer.frame])
        finally:
            remote.release()

    async def _start_offset(
        self,
        replica: LeaderReplica,
        asked: OffsetExpression,
        timestamp_us: int | None,
        *,
        committed: bool,
    ) -> Offset:
        if timestamp_us is not None:
            found, _ = await look_up(replica, timestamp_us, self._broker.disk, committed=committed)
            return _end(replica, committed=committed) if found is None else found
        match asked.origin:
            case OffsetOrigin.NUMBER:
                return Offset(asked.number)
            case OffsetOrigin.EARLIEST:
                return replica.log_start_offset
            case OffsetOrigin.LATEST:
                return _end(replica, committed=committed)
            case OffsetOrigin.BEFORE_END:
                return Offset(
                    max(replica.log_start_offset, _end(replica, committed=committed) - asked.number)
                )


def _wanted(call: Call, replica: LeaderReplica, offset: Offset, bytes_max: int) -> PartitionFetch:
    last_epoch = call.query.integer_or_none("last_epoch")
    return PartitionFetch(
        replica.topic_id,
        replica.index,
        offset,
        last_epoch=None if last_epoch is None else LeaderEpoch(last_epoch),
        leader_epoch=call.leader_epoch,
        bytes_max=bytes_max,
    )


def _end(replica: LeaderReplica, *, committed: bool) -> Offset:
    """Return the offset at which the log ends for a given reader."""
    return replica.last_stable_offset if committed else replica.high_watermark


def _same_offset(offset: OffsetExpression) -> HeaderList:
    """Return the header with which a reader continues at the requested offset."""
    return [(b"fairlead-next-offset", b"%d" % offset.number)] if offset.origin is OffsetOrigin.NUMBER else []


def _offset_headers(replica: LeaderReplica, result: FetchResult, next_offset: Offset) -> HeaderList:
    return [
        (b"fairlead-next-offset", b"%d" % next_offset),
        (b"fairlead-high-watermark", b"%d" % result.high_watermark),
        (b"fairlead-log-start-offset", b"%d" % result.log_start_offset),
        (b"fairlead-last-stable-offset", b"%d" % result.last_stable_offset),
        (b"fairlead-leader-epoch", b"%d" % result.leader_epoch),
        (b"fairlead-topic-id", replica.topic_id.encode()),
        (b"vary", b"accept"),
    ]
