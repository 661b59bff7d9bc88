"""Fetch: committed batches of many partitions, each translated to one Kafka batch, with a long poll."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fairlead_api.access_needs import Operation
from fairlead_api.identifiers import BrokerId, LeaderEpoch, Offset, PartitionIndex
from fairlead_api.problems import ProblemError
from fairlead_broker.kafka.batches import translate
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
from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.errors import Family, KafkaError, error_of
from fairlead_broker.kafka.protocol.messages import FetchResponse
from fairlead_broker.runtime import Broker, FetchResult, FetchSpec, PartitionFetch, TopicView

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

    wanted: Any
    view: TopicView | None = None
    error: KafkaError = KafkaError.NONE
    result: FetchResult | None = None
    records: bytes | bytearray = b""
    problem: ProblemError | None = None


class FetchCalls:
    """Calls that read records."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._seconds = broker.telemetry.metric("fairlead_kafka_translation_seconds").labels("out")

    def calls(self) -> Mapping[ApiKey, Any]:
        """Return the call of each API of this family."""
        return {ApiKey.FETCH: self.fetch}

    async def fetch(self, call: KafkaCall) -> Reply:
        """Return the batches of each partition; the session id 0 tells the client that there are no sessions."""
        version, request = call.version, call.request
        if request.replica_id >= 0 or (request.replica_state and request.replica_state.replica_id >= 0):
            return Reply(_refused(version, KafkaError.INVALID_REQUEST))
        topics = self._found(call)
        parts = [part for _, each in topics for part in each]
        held = self._broker.answers.hold()
        try:
            await self._read(call, [part for part in parts if part.view is not None], held, len(parts))
            self._translate(call, parts)
            held.resize(sum(len(part.records) for part in parts))
            return Reply(self._response(version, topics), held.release)
        except ProblemError as problem:
            held.release()
            return Reply(_refused(version, error_of(problem, Family.DATA)))
        except BaseException:
            held.release()
            raise

    def _found(self, call: KafkaCall) -> list[tuple[Any, list[_Part]]]:
        finder = TopicFinder(self._broker, call, Operation.READ)
        by_id = call.version >= BY_ID_SINCE
        topics = []
        for topic in call.request.topics:
            parts = [_Part(wanted) for wanted in topic.partitions]
            topics.append((topic, parts))
            try:
                view = finder.find(None if by_id else topic.topic, topic.topic_id if by_id else None)
            except RefusedError as refused:
                for part in parts:
                    part.error = refused.error
                continue
            for part in parts:
                part.view = view
        return topics

    async def _read(self, call: KafkaCall, parts: list[_Part], held: Any, asked: int) -> None:
        request = call.request
        # A refusal is answered at once, as in Kafka.
        wait_seconds = max(0, request.max_wait_ms) / 1000 if len(parts) == asked else 0.0
        spec = FetchSpec(
            partitions=[_partition(part) for part in parts],
            min_bytes=max(0, request.min_bytes),
            max_bytes=max(1, request.max_bytes),
            max_wait_seconds=wait_seconds,
        )
        for part, result in zip(parts, await self._broker.fetching.fetch(spec, held), strict=True):
            if isinstance(result, ProblemError):
                part.problem = result
                part.error = error_of(result, Family.DATA)
            else:
                part.result = result

    def _translate(self, call: KafkaCall, parts: list[_Part]) -> None:
        began = self._broker.clock.monotonic()
        left, zstd = max(1, call.request.max_bytes), call.version >= ZSTD_SINCE
        for part in parts:
            if part.result is not None and part.result.data and left > 0:
                batches, _ = translate(part.result.data, left, zstd=zstd)
                left -= sum(map(len, batches))
                part.records = batches[0] if len(batches) == 1 else b"".join(batches)
        if any(part.records for part in parts):
            self._seconds.observe(self._broker.clock.monotonic() - began)

    def _response(self, version: int, topics: list[tuple[Any, list[_Part]]]) -> Any:
        leaders: set[int] = set()
        responses = [
            FetchResponse.FetchableTopicResponse(
                version=version,
                topic=topic.topic if version < BY_ID_SINCE else "",
                topic_id=topic.topic_id if version >= BY_ID_SINCE else NO_ID,
                partitions=[_response_of(version, part, leaders) for part in parts],
            )
            for topic, parts in topics
        ]
        response = FetchResponse(version=version, responses=responses, session_id=0)
        if leaders and version >= ENDPOINTS_SINCE:
            response.node_endpoints = [
                FetchResponse.NodeEndpoint(version=version, **fields)
                for fields in node_endpoints(kafka_brokers(self._broker), leaders)
            ]
        return response


def _partition(part: _Part) -> PartitionFetch:
    wanted, view = part.wanted, part.view
    assert view is not None, "the topic was found"
    last, current = wanted.last_fetched_epoch, wanted.current_leader_epoch
    return PartitionFetch(
        view.topic_id,
        PartitionIndex(wanted.partition),
        Offset(wanted.fetch_offset),
        last_epoch=LeaderEpoch(last) if last >= 0 else None,
        leader_epoch=LeaderEpoch(current) if current >= 0 else None,
        bytes_max=max(1, wanted.partition_max_bytes),
    )


def _response_of(version: int, part: _Part, leaders: set[int]) -> Any:
    result, kind = part.result, FetchResponse.FetchableTopicResponse.PartitionData
    response = kind(
        version=version,
        partition_index=part.wanted.partition,
        error_code=part.error,
        high_watermark=-1 if result is None else result.high_watermark,
        last_stable_offset=-1 if result is None else result.last_stable_offset,
        log_start_offset=-1 if result is None else result.log_start_offset,
        aborted_transactions=None,
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
    """Return the refusal of a whole request."""
    return FetchResponse(version=version, error_code=error, session_id=0, responses=[])
