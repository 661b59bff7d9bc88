"""Produce calls to a topic, for which the broker selects the partition of every record.

Callers: ``application`` for the route named in ``endpoints``. Records with a key are assigned by Kafka's rule. All
records without a key are written to one partition, which changes with each request, so that a small request becomes
only one batch. If the request has an idempotency key, the partition is derived from the idempotency key, so that a
retry reaches the same partition as the first attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from fairlead_api.bodies.media_types import NDJSON
from fairlead_api.bodies.requests import RecordStatus, TopicProduceAnswer
from fairlead_api.identifiers import Acks, PartitionIndex
from fairlead_api.partitioning import partition_for_key
from fairlead_api.problems import ProblemError
from fairlead_broker.clock import Clock
from fairlead_broker.runtime import AppendResult, Broker, KeyedRequest, TopicView
from fairlead_broker.runtime.refusals import idempotency_key_reused
from fairlead_broker.server.http.body import ProduceBodyLimits
from fairlead_broker.server.http.call import Call, Endpoint, record_body_type
from fairlead_broker.server.http.codec_threads import in_thread
from fairlead_broker.server.records.line_produce import LineProduce
from fairlead_broker.server.records.produce import DUPLICATE
from fairlead_broker.server.records.produce_frames import partition_result
from fairlead_broker.server.records.produce_head import (
    acknowledgement,
    keyed_request,
    refuse_producer_headers,
)
from fairlead_broker.server.records.produced_records import read_records
from fairlead_broker.server.records.record_storing import RecordStoring
from fairlead_broker.server.records.request_records import RequestRecords, Share
from fairlead_broker.server.records.transaction_headers import transaction_of
from fairlead_broker.server.routing.forwarding import Forwarding
from fairlead_broker.server.routing.locate import named_leader, topic_to_write

TURNS_MAX: Final = 10_000
"""Maximum number of topics whose last partition is remembered. Beyond this number, the rotation over partitions
restarts for all topics, which only makes the distribution less even."""
ON_LOOP_RECORDS_MAX: Final = 4096
"""Maximum number of records whose statuses are computed on the event loop; the computation takes a few milliseconds."""
SEQUENCES_ARE_OF_PARTITIONS: Final = (
    "none if the broker selects the partitions: each sequence belongs to one partition"
)


class TopicProduceCalls:
    """Endpoint of the call that writes records to a topic; ``bodies`` contains the maximum body sizes."""

    def __init__(
        self, broker: Broker, forwarding: Forwarding, clock: Clock, bodies: ProduceBodyLimits
    ) -> None:
        self._broker = broker
        self._storing = RecordStoring(broker, forwarding)
        self._clock = clock
        self._bodies = bodies
        self._last: dict[str, int] = {}
        self._lines = LineProduce(broker, forwarding, clock, bodies)

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoint of each route of this family, by route name."""
        return {"produce_topic": self.produce_topic}

    async def produce_topic(self, call: Call) -> None:
        """``POST /v1/topics/{topic}/records``: 200 if all are stored, otherwise 207 with a status per record."""
        acks, timeout_seconds = acknowledgement(call)
        media_type = record_body_type(call)
        if media_type == NDJSON:
            await self._lines.answer(call, acks, timeout_seconds, self._split, transaction_of(call))
            return
        transaction = transaction_of(call)
        refuse_producer_headers(call, SEQUENCES_ARE_OF_PARTITIONS)
        topic, missing = await topic_to_write(call, self._broker)
        call.begin_produce()
        body = await call.body(self._bodies.of(media_type))
        keyed = await keyed_request(call, media_type, body)
        if keyed is not None and not missing:
            self._check_key(topic, keyed)
        records = await read_records(call, media_type, body, self._clock.now_us())
        target = (topic, missing)
        split = partial(self._split, keyed=keyed)
        topic, shares, outcomes = await self._storing.store(
            call, target, records, split, acks, timeout_seconds, keyed, transaction
        )
        problems = [outcome for outcome in outcomes if isinstance(outcome, ProblemError)]
        if len(problems) == len(shares) and len({problem.code for problem in problems}) == 1:
            raise problems[0]
        if acks is Acks.NONE and not problems:
            await call.answer(202, [])
            return
        answer = TopicProduceAnswer(
            topic=topic.name,
            topic_id=topic.topic_id,
            results=[
                partition_result(share.partition, outcome)
                for share, outcome in zip(shares, outcomes, strict=True)
            ],
        )
        if problems:
            statuses = await _statuses_of(records.count, shares, outcomes)
            answer = msgspec.structs.replace(answer, records=statuses)
        repeated = all(isinstance(outcome, AppendResult) and outcome.duplicate for outcome in outcomes)
        await call.answer_json(answer, 207 if problems else 200, [DUPLICATE] if repeated else [])

    def _split(
        self, topic: TopicView, records: RequestRecords, keyed: KeyedRequest | None = None
    ) -> Callable[[], Sequence[Share]]:
        rest = self._place_of_rest(topic, keyed, records)
        return partial(records.shares, topic.partition_count, rest)

    def _check_key(self, topic: TopicView, keyed: KeyedRequest) -> None:
        """Refuse an idempotency key that another request has used, even if for other partitions."""
        digest = self._broker.digest_of_key(topic.topic_id, keyed.key)
        if digest is not None and digest != keyed.digest:
            raise idempotency_key_reused(topic.name, keyed.key)

    def _place_of_rest(self, topic: TopicView, keyed: KeyedRequest | None, records: RequestRecords) -> int:
        """Return the partition for records without a key.

        The result is the next partition with a leader, or is derived from the idempotency key of the request.
        """
        if keyed is not None:
            return partition_for_key(keyed.key, topic.partition_count)
        if not records.has_null_keys:
            return 0
        count, last = topic.partition_count, self._last.get(topic.topic_id, -1)
        place = (last + 1) % count
        for step in range(1, count + 1):
            each = PartitionIndex((last + step) % count)
            if named_leader(self._broker, topic.topic_id, each) is not None:
                place = each
                break
        if len(self._last) >= TURNS_MAX:
            self._last.clear()
        self._last[topic.topic_id] = place
        return place


async def _statuses_of(
    count: int, shares: Sequence[Share], outcomes: Sequence[AppendResult | ProblemError]
) -> list[RecordStatus]:
    if count <= ON_LOOP_RECORDS_MAX:
        return _statuses(count, shares, outcomes)
    return await in_thread(_statuses, count, shares, outcomes)


def _statuses(
    count: int, shares: Sequence[Share], outcomes: Sequence[AppendResult | ProblemError]
) -> list[RecordStatus]:
    """Return the outcome of each record, in the order of the request."""
    statuses: list[RecordStatus | None] = [None] * count
    for share, outcome in zip(shares, outcomes, strict=True):
        for position, row in enumerate(share.rows):
            if isinstance(outcome, ProblemError):
                status = RecordStatus(status=outcome.status, partition=share.partition, code=outcome.code)
            else:
                status = RecordStatus(
                    status=200, partition=share.partition, offset=outcome.base_offset + position
                )
            statuses[row] = status
    return [status for status in statuses if status is not None]
