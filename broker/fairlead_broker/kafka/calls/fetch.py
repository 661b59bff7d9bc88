"""Fetch: committed batches of many partitions, each translated to one Kafka batch, with a long poll."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from fairlead_api.access_needs import Operation
from fairlead_api.identifiers import BrokerId, LeaderEpoch, Offset, PartitionIndex
from fairlead_api.problems import ProblemError
from fairlead_broker.kafka.batches import empty, is_costly_to_read, translate
from fairlead_broker.kafka.calls.call import KafkaCall
from fairlead_broker.kafka.calls.places import (
    NO_ID,
    RefusedError,
    TopicFinder,
    kafka_brokers,
    leader_of,
    node_endpoints,
)
from fairlead_broker.kafka.calls.replies import Reply
from fairlead_broker.kafka.fetch_sessions import (
    UNSEEN,
    Fetch,
    FetchSessions,
    FetchTopic,
    Offsets,
    SessionRefused,
    Wanted,
)
from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.errors import Family, KafkaError, error_of
from fairlead_broker.kafka.protocol.messages import FetchResponse
from fairlead_broker.runtime import Broker, FetchResult, FetchSpec, PartitionFetch, TopicView

READ_COMMITTED: Final = 1
"""Isolation level of a reader of committed records."""
SESSION_ID_MAX: Final = 2**31 - 1
BY_ID_SINCE: Final = 13
"""First version that names topics by id."""
DIVERGING_SINCE: Final = 12
"""First version in which a client learns where its log diverges, and which leader to use."""
ENDPOINTS_SINCE: Final = 16
ZSTD_SINCE: Final = 10
"""First version whose clients read zstd."""


@dataclass(slots=True)
class _Part:
    """Requested partition, with its result."""

    topic: FetchTopic
    wanted: Wanted
    view: TopicView | None = None
    error: KafkaError = KafkaError.NONE
    result: FetchResult | None = None
    records: bytes | bytearray = b""
    problem: ProblemError | None = None


class FetchCalls:
    """Calls that read records."""

    def __init__(self, broker: Broker, new_id: Callable[[], str]) -> None:
        """`new_id` returns a random UUID, part of which becomes the id of a session."""
        self._broker = broker
        self._bytes_max = broker.settings.limits.fetch_bytes_max
        self._seconds = broker.telemetry.metric("fairlead_kafka_translation_seconds").labels("out")
        self._sessions = FetchSessions(lambda: UUID(new_id()).int % SESSION_ID_MAX + 1)
        broker.telemetry.metric("fairlead_kafka_fetch_sessions").set_function(lambda: len(self._sessions))

    def calls(self) -> Mapping[ApiKey, Any]:
        """Return the call of each API of this family."""
        return {ApiKey.FETCH: self.fetch}

    async def fetch(self, call: KafkaCall) -> Reply:
        """Return the batches of each partition; in a session, only of partitions that have changed."""
        version, request = call.version, call.request
        if request.replica_id >= 0 or (request.replica_state and request.replica_state.replica_id >= 0):
            return Reply(_refused(version, KafkaError.INVALID_REQUEST))
        try:
            fetch = self._begun(call)
        except SessionRefused as refused:
            return Reply(_refused(version, refused.error))
        parts = self._found(call, fetch)
        held = self._broker.answers.hold()
        try:
            await self._read(call, [part for part in parts if part.view is not None], held, len(parts))
            await self._translate(call, parts)
            nbytes = sum(len(part.records) for part in parts)
            held.resize(nbytes)
            error = next((part.error for part in parts if part.error), KafkaError.NONE)
            response = self._response(call, fetch, parts)
            return Reply(response, held.release, error, record_bytes=nbytes, waits=held.sending)
        except ProblemError as problem:
            held.release()
            return Reply(_refused(version, error_of(problem, Family.DATA)))
        except BaseException:
            held.release()
            raise

    def _begun(self, call: KafkaCall) -> Fetch:
        """Return the partitions of a fetch, with those of its session. Raises SessionRefused."""
        request, by_id = call.request, call.version >= BY_ID_SINCE

        def named(topic: Any) -> FetchTopic:
            return FetchTopic("", topic.topic_id) if by_id else FetchTopic(topic.topic, None)

        return self._sessions.begin(
            request.session_id,
            request.session_epoch,
            [(named(topic), list(map(_wanted, topic.partitions))) for topic in request.topics],
            [
                (named(topic), partition)
                for topic in request.forgotten_topics_data or ()
                for partition in topic.partitions
            ],
            owner=call.access.caller.principal,
            now=self._broker.clock.monotonic(),
        )

    def _found(self, call: KafkaCall, fetch: Fetch) -> list[_Part]:
        """Return the partitions of a fetch, each with its topic or with the error of the topic."""
        finder, by_id = TopicFinder(self._broker, call, Operation.READ), call.version >= BY_ID_SINCE
        found = []
        for topic, wanted in fetch.topics:
            parts = [_Part(topic, each) for each in wanted]
            found += parts
            try:
                view = finder.find(None if by_id else topic.name, topic.topic_id if by_id else None)
            except RefusedError as refused:
                for part in parts:
                    part.error = refused.error
                continue
            for part in parts:
                part.view = view
        return found

    async def _read(self, call: KafkaCall, parts: list[_Part], held: Any, asked: int) -> None:
        request = call.request
        # A refused partition ends the wait at once, as in Kafka.
        wait_seconds = max(0, request.max_wait_ms) / 1000 if len(parts) == asked else 0.0
        spec = FetchSpec(
            partitions=[_partition(part) for part in parts],
            min_bytes=max(0, request.min_bytes),
            max_bytes=max(1, request.max_bytes),
            max_wait_seconds=wait_seconds,
            committed=request.isolation_level == READ_COMMITTED,
        )
        for part, result in zip(parts, await self._broker.fetching.fetch(spec, held), strict=True):
            if isinstance(result, ProblemError):
                part.problem = result
                part.error = error_of(result, Family.DATA)
            else:
                part.result = result

    async def _translate(self, call: KafkaCall, parts: list[_Part]) -> None:
        """Set the records of each partition; large and compressed batches are translated in a thread."""
        bytes_max = min(max(1, call.request.max_bytes), self._bytes_max)
        zstd = call.version >= ZSTD_SINCE
        data = [each for part in parts if part.result is not None for each in part.result.data]
        if is_costly_to_read(data):
            await self._broker.validation.submit(self._translate_parts, parts, bytes_max, zstd)
        else:
            self._translate_parts(parts, bytes_max, zstd)

    def _translate_parts(self, parts: list[_Part], bytes_max: int, zstd: bool) -> None:
        """Translate batches of all partitions until the records exceed `bytes_max`, in Kafka's format or opened."""
        began = self._broker.clock.monotonic()
        left = left_opened = bytes_max
        for part in parts:
            result = part.result
            if result is None:
                continue
            if result.data:
                if left <= 0 or left_opened <= 0:
                    continue
                try:
                    batches, opened = translate(result.data, left, left_opened, zstd=zstd)
                except ProblemError:
                    # The damage affects only this partition. Consumers do not expect the errors of other calls here.
                    part.error = KafkaError.CORRUPT_MESSAGE
                    continue
                left -= sum(map(len, batches))
                left_opened -= opened
                part.records = batches[0] if len(batches) == 1 else b"".join(batches)
            elif result.next_offset > part.wanted.offset:
                # Every record up to that offset belongs to an aborted transaction. A reader moves on only when it
                # receives a batch.
                part.records = empty(part.wanted.offset, result.next_offset - 1, result.leader_epoch)
        if any(part.records for part in parts):
            self._seconds.observe(self._broker.clock.monotonic() - began)

    def _response(self, call: KafkaCall, fetch: Fetch, parts: list[_Part]) -> Any:
        version, kind = call.version, FetchResponse.FetchableTopicResponse
        leaders: set[int] = set()
        by_topic: dict[FetchTopic, list[Any]] = {}
        for part in parts:
            result = part.result
            offsets = UNSEEN
            if result is not None:
                offsets = Offsets(result.high_watermark, result.log_start_offset, result.last_stable_offset)
            has_news = bool(part.records or part.error)
            if fetch.includes((part.topic, part.wanted.partition), offsets, has_news=has_news):
                response = _response_of(call, part, leaders)
                by_topic.setdefault(part.topic, []).append(response)
        responses = [
            kind(version=version, topic=topic.name, topic_id=topic.topic_id or NO_ID, partitions=partitions)
            for topic, partitions in by_topic.items()
        ]
        response = FetchResponse(version=version, responses=responses, session_id=fetch.session_id)
        if leaders and version >= ENDPOINTS_SINCE:
            response.node_endpoints = [
                FetchResponse.NodeEndpoint(version=version, **fields)
                for fields in node_endpoints(kafka_brokers(self._broker), leaders)
            ]
        return response


def _wanted(partition: Any) -> Wanted:
    return Wanted(
        partition.partition,
        partition.fetch_offset,
        partition.current_leader_epoch,
        partition.last_fetched_epoch,
        partition.partition_max_bytes,
    )


def _partition(part: _Part) -> PartitionFetch:
    wanted, view = part.wanted, part.view
    assert view is not None, "the topic was found"
    last, current = wanted.last_epoch, wanted.leader_epoch
    return PartitionFetch(
        view.topic_id,
        PartitionIndex(wanted.partition),
        Offset(wanted.offset),
        last_epoch=LeaderEpoch(last) if last >= 0 else None,
        leader_epoch=LeaderEpoch(current) if current >= 0 else None,
        bytes_max=max(1, wanted.bytes_max),
    )


def _response_of(call: KafkaCall, part: _Part, leaders: set[int]) -> Any:
    version, result, kind = call.version, part.result, FetchResponse.FetchableTopicResponse.PartitionData
    response = kind(
        version=version,
        partition_index=part.wanted.partition,
        error_code=part.error,
        high_watermark=-1 if result is None else result.high_watermark,
        last_stable_offset=-1 if result is None else result.last_stable_offset,
        log_start_offset=-1 if result is None else result.log_start_offset,
        # Records of aborted transactions are left out, so that the reader need not recognise them.
        aborted_transactions=[] if call.request.isolation_level == READ_COMMITTED else None,
        preferred_read_replica=-1,
        records=part.records,
    )
    problem = part.problem
    if problem is None or version < DIVERGING_SINCE:
        return response
    if problem.code == "log_truncated":
        response.error_code = KafkaError.NONE
        response.diverging_epoch = kind.EpochEndOffset(
            version=version, epoch=problem.data["epoch"], end_offset=problem.data["end_offset"]
        )
    elif part.error in (KafkaError.NOT_LEADER_OR_FOLLOWER, KafkaError.FENCED_LEADER_EPOCH) and part.view:
        leader, epoch = leader_of(part.view, part.wanted.partition)
        if leader >= 0:
            leaders.add(BrokerId(leader))
            response.current_leader = kind.LeaderIdAndEpoch(
                version=version, leader_id=leader, leader_epoch=epoch
            )
    return response


def _refused(version: int, error: KafkaError) -> Any:
    """Return the refusal for a whole request."""
    return FetchResponse(version=version, error_code=error, session_id=0, responses=[])
