"""Fetches from the leaders of partitions: one client's long poll can cover this broker and other brokers.

Callers: ``fetch`` and ``tail``. First, all leaders are asked concurrently for the records that they have. If there are
too few records, the long poll asks the other brokers to wait, but at most two seconds at a time: another broker does
not notice that the client has disconnected, and would wait for the whole long poll. The wait ends when the first leader
has records or when this broker stops; for the other leaders, the answers from before the wait are used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

import msgspec
from msgspec import UNSET

from fairlead_api.batch.header import Buffer
from fairlead_api.bodies.frames import Frame, encode_frame, iterate_frames
from fairlead_api.bodies.requests import (
    RAW,
    READ_COMMITTED,
    FetchFrameMeta,
    FetchIsolation,
    FetchProblemMeta,
    FetchRequest,
    PartitionFetchRequest,
)
from fairlead_api.identifiers import BrokerId, LeaderEpoch, Offset, PartitionIndex, TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.access.caller_access import CallerAccess
from fairlead_broker.peers import messages
from fairlead_broker.peers.forwarded_callers import caller_header
from fairlead_broker.peers.peers import ANSWER_MARGIN_SECONDS, PeerAnswer, PeerUnavailable, problem_of
from fairlead_broker.runtime import Broker, FetchResult, FetchSpec, PartitionFetch
from fairlead_broker.runtime.engine.budget import HeldAnswer
from fairlead_broker.server.http.call import Call
from fairlead_broker.server.http.disconnect import unless_gone
from fairlead_broker.server.routing.forwarding import JSON_BODY, Forwarding, no_answer, passed_on
from fairlead_broker.server.routing.locate import leader_elsewhere

SLICE_MS: Final = 2000
"""Maximum wait in milliseconds for one request to another broker."""
PEER_BYTES_MAX: Final = 8 << 20
"""Maximum number of bytes requested from another broker at once. The answer is kept in memory until it is complete, and
it must arrive within seconds. In a test, thirty concurrent answers of 64 MiB did not arrive in time."""


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """Frame of an answer: the result for one partition."""

    frame: Sequence[Buffer]
    nbytes: int
    refused: bool
    has_moved: bool = False
    """Whether the next offset to read is above the requested offset."""

    @property
    def ends_wait(self) -> bool:
        """Whether the partition has records, skipped offsets or a problem; each ends the wait of a long poll."""
        return self.has_moved or self.refused


Places = Mapping[int, PartitionFetchRequest]
Answers = dict[int, FetchedPartition]


class FetchRouting:
    """Router of fetches to the leaders of partitions."""

    def __init__(self, broker: Broker, forwarding: Forwarding) -> None:
        self._broker = broker
        self._forwarding = forwarding

    async def pass_on(self, call: Call, leader: BrokerId, max_wait_ms: int) -> PeerAnswer:
        """Return the answer from the leader of the partition in the path, no later than the end of the long poll."""
        query = dict(parse_qsl(call.scope["query_string"].decode("latin-1"), keep_blank_values=True))
        query["max_bytes"] = str(min(call.query.integer("max_bytes"), PEER_BYTES_MAX))
        path, left_ms = call.raw_path, max_wait_ms
        while True:
            slice_ms = 0 if self._forwarding.stopping else min(left_ms, SLICE_MS)
            query["max_wait_ms"] = str(slice_ms)
            asking = self._forwarding.ask(
                leader,
                call.scope["method"],
                f"{path}?{urlencode(query)}",
                passed_on(call),
                b"",
                slice_ms / 1000 + ANSWER_MARGIN_SECONDS,
            )
            waiting = self._forwarding.until_stop(asking) if slice_ms else asking
            try:
                heard = await unless_gone(call.receive, waiting)
            except PeerUnavailable as unavailable:
                raise no_answer(unavailable, call.topic, call.partition, writing=False) from unavailable
            if heard is None:
                continue
            left_ms -= slice_ms or left_ms
            if heard.status != HTTPStatus.NO_CONTENT or left_ms <= 0:
                return heard
            # The next request continues at the offset to which the first request resolved `latest` or the timestamp.
            query["offset"] = heard.headers["fairlead-next-offset"]
            query.pop("timestamp", None)

    def elsewhere(
        self, call: Call, request: FetchRequest
    ) -> dict[BrokerId, dict[int, PartitionFetchRequest]]:
        """Return the requested partitions that other brokers lead, by broker and position in the request."""
        found: dict[BrokerId, dict[int, PartitionFetchRequest]] = {}
        if not call.may_forward:
            return found
        for place, wanted in enumerate(request.partitions):
            leader = leader_elsewhere(call, self._broker, wanted.topic_id, wanted.partition)
            if leader is not None:
                found.setdefault(leader, {})[place] = wanted
        return found

    async def fetch(
        self,
        access: CallerAccess,
        request: FetchRequest,
        elsewhere: Mapping[BrokerId, Places],
        local_held: HeldAnswer,
        remote_held: HeldAnswer,
    ) -> list[FetchedPartition]:
        """Return the frame of every partition, in the order of the request. `access`: access of the caller.

        The call is cancelled when the client disconnects.
        """
        poll = _Poll(self, access, request, elsewhere, local_held)
        answers = await poll.ask_all(0)
        left_ms = request.max_wait_ms
        while left_ms > 0 and not _enough(answers, request.min_bytes) and not self._forwarding.stopping:
            slice_ms = min(left_ms, SLICE_MS)
            answers |= await self._forwarding.until_stop(poll.ask_until_one_has(slice_ms)) or {}
            left_ms -= slice_ms
            if any(answer.ends_wait for answer in answers.values()):
                break
        remote_held.resize(sum(answers[place].nbytes for places in elsewhere.values() for place in places))
        return [answers[place] for place in range(len(request.partitions))]

    async def fetch_here(
        self,
        wanted: Places,
        wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        held: HeldAnswer,
        isolation: FetchIsolation,
    ) -> Answers:
        """Return this broker's answers for the partitions that it leads."""
        if not wanted:
            return {}
        spec = FetchSpec(
            partitions=[partition_fetch(each) for each in wanted.values()],
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            max_wait_seconds=wait_ms / 1000,
            committed=isolation == READ_COMMITTED,
            raw=isolation == RAW,
        )
        try:
            results: Sequence[FetchResult | ProblemError] = await self._broker.fetching.fetch(spec, held)
        except ProblemError as problem:
            results = [problem] * len(wanted)
        return {
            place: fetched(each, result)
            for (place, each), result in zip(wanted.items(), results, strict=True)
        }

    async def fetch_at(
        self,
        access: CallerAccess,
        leader: BrokerId,
        wanted: Places,
        wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        isolation: FetchIsolation,
    ) -> Answers:
        """Return the answers from another broker for the partitions that it leads."""
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation=isolation,
            partitions=list(wanted.values()),
        )
        limit = wait_ms / 1000 + ANSWER_MARGIN_SECONDS
        body = messages.encode(request)
        headers = [JSON_BODY, caller_header(access)]
        try:
            heard = await self._forwarding.ask(leader, "POST", "/v1/fetch", headers, body, limit)
        except PeerUnavailable as unavailable:
            return {
                place: refused(each, no_answer(unavailable, each.topic_id, each.partition, writing=False))
                for place, each in wanted.items()
            }
        if heard.status >= HTTPStatus.BAD_REQUEST:
            problem = problem_of(heard)
            return {place: refused(each, problem) for place, each in wanted.items()}
        frames = iterate_frames(heard.body)
        return {
            place: _passed_on(each, frame)
            for (place, each), frame in zip(wanted.items(), frames, strict=True)
        }


class _Poll:
    """Long poll that covers several brokers."""

    def __init__(
        self,
        routing: FetchRouting,
        access: CallerAccess,
        request: FetchRequest,
        elsewhere: Mapping[BrokerId, Places],
        held: HeldAnswer,
    ) -> None:
        taken = {place for places in elsewhere.values() for place in places}
        self._here = {place: each for place, each in enumerate(request.partitions) if place not in taken}
        self._elsewhere = elsewhere
        self._routing = routing
        self._access = access
        self._held = held
        self._isolation = request.isolation
        self._share = max(1, request.max_bytes // (len(elsewhere) + bool(self._here)))
        """Maximum number of bytes to request from each broker, so that the whole answer stays within the requested
        limit."""

    async def ask_all(self, wait_ms: int) -> Answers:
        """Ask all leaders concurrently; return their answers."""
        answers: Answers = {}
        for part in await asyncio.gather(*self._asking(wait_ms)):
            answers |= part
        return answers

    async def ask_until_one_has(self, wait_ms: int) -> Answers:
        """Wait until the first leader has records or a problem; return the answers received so far."""
        create_task = asyncio.get_running_loop().create_task
        tasks = {create_task(asking) for asking in self._asking(wait_ms)}
        answers: Answers = {}
        try:
            waiting = tasks
            while waiting and not any(answer.ends_wait for answer in answers.values()):
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    answers |= task.result()
        finally:
            # This method owns the tasks; all tasks have ended when the method returns.
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        return answers

    def _asking(self, wait_ms: int) -> Iterator[Coroutine[Any, Any, Answers]]:
        if self._here:
            yield self._routing.fetch_here(self._here, wait_ms, 1, self._share, self._held, self._isolation)
        for leader, wanted in self._elsewhere.items():
            yield self._routing.fetch_at(
                self._access, leader, wanted, wait_ms, 1, min(self._share, PEER_BYTES_MAX), self._isolation
            )


def partition_fetch(wanted: PartitionFetchRequest) -> PartitionFetch:
    """Convert a requested partition to the runtime's fetch of one partition."""
    return PartitionFetch(
        TopicId(wanted.topic_id),
        PartitionIndex(wanted.partition),
        Offset(wanted.offset),
        last_epoch=None if wanted.last_epoch is None else LeaderEpoch(wanted.last_epoch),
        leader_epoch=None if wanted.leader_epoch is None else LeaderEpoch(wanted.leader_epoch),
        bytes_max=wanted.max_bytes,
    )


def fetched(wanted: PartitionFetchRequest, result: FetchResult | ProblemError) -> FetchedPartition:
    """Convert the runtime's result for one partition to a frame of the answer."""
    if isinstance(result, ProblemError):
        return refused(wanted, result)
    meta = FetchFrameMeta(
        topic_id=wanted.topic_id,
        partition=wanted.partition,
        next_offset=result.next_offset,
        high_watermark=result.high_watermark,
        log_start_offset=result.log_start_offset,
        last_stable_offset=result.last_stable_offset,
        leader_epoch=result.leader_epoch,
        deleted_to=result.deleted_to or UNSET,
        removed_to=result.removed_to or UNSET,
    )
    return FetchedPartition(
        encode_frame(meta, result.data),
        result.nbytes,
        refused=False,
        has_moved=result.next_offset > wanted.offset,
    )


def refused(wanted: PartitionFetchRequest, problem: ProblemError) -> FetchedPartition:
    """Return the frame of a partition that could not be read."""
    meta = FetchProblemMeta(
        topic_id=wanted.topic_id, partition=wanted.partition, problem=dict(problem.to_document())
    )
    return FetchedPartition(encode_frame(meta), 0, refused=True)


class _FrameMeta(msgspec.Struct):
    """Subset of a frame's metadata that determines whether a long poll waits."""

    problem: dict[str, object] | None = None
    next_offset: int = 0


def _passed_on(wanted: PartitionFetchRequest, frame: Frame) -> FetchedPartition:
    """Return a frame from another broker."""
    meta = msgspec.json.decode(frame.meta, type=_FrameMeta)
    return FetchedPartition(
        encode_frame(frame.meta, [frame.data]),
        len(frame.data),
        refused=meta.problem is not None,
        has_moved=meta.next_offset > wanted.offset,
    )


def _enough(answers: Answers, min_bytes: int) -> bool:
    if any(answer.refused or (answer.has_moved and not answer.nbytes) for answer in answers.values()):
        return True
    return sum(answer.nbytes for answer in answers.values()) >= min_bytes
