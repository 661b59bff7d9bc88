"""Producing to many partitions in one request: frames, one batch a partition.

Callers: ``application`` for the route named in ``endpoints``. Hot: the path of the SDK.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlead_api.bodies.frames import Frame, iterate_frames
from fairlead_api.bodies.requests import ProduceAnswer, ProduceFrameMeta, decode_request
from fairlead_api.identifiers import Acks, PartitionIndex, TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.runtime import KeyedRequest
from fairlead_broker.server.http.call import Call, Endpoint
from fairlead_broker.server.http.negotiation import body_type
from fairlead_broker.server.records.produce import IN_THE_BATCH, acknowledgement
from fairlead_broker.server.records.produce_routing import (
    REQUEST_DIGEST,
    ProduceRouting,
    RoutedBatch,
    partition_result,
)
from fairlead_broker.server.records.producer_headers import (
    passed_on_key,
    refuse_idempotency_key,
    refuse_producer_headers,
)


class ProduceFrameCalls:
    """The call that writes one batch to each of many partitions. ``body_bytes_max`` bounds what it reads."""

    def __init__(self, routing: ProduceRouting, body_bytes_max: int) -> None:
        self._routing = routing
        self._body_bytes_max = body_bytes_max

    def endpoints(self) -> Mapping[str, Endpoint]:
        """The endpoint of each route of this family, by route name."""
        return {"produce": self.produce}

    async def produce(self, call: Call) -> None:
        """``POST /v1/produce``: 200 if every batch was stored, else 207; one result or problem a frame, in order."""
        acks, timeout_seconds = acknowledgement(call)
        body_type(call)
        refuse_producer_headers(call, IN_THE_BATCH)
        keyed = _passed_on_key(call)
        call.body_reader.begin_call()
        body = await call.body(self._body_bytes_max)
        frames = [
            (_frame_meta(number, frame), frame.data) for number, frame in enumerate(iterate_frames(body))
        ]
        _refuse_repeated([meta for meta, _ in frames])
        batches = [
            RoutedBatch(TopicId(meta.topic_id), PartitionIndex(meta.partition), batch)
            for meta, batch in frames
        ]
        outcomes = await self._routing.store(call, batches, acks, timeout_seconds, keyed)
        results = [
            partition_result(meta.partition, outcome, topic_id=meta.topic_id)
            for (meta, _), outcome in zip(frames, outcomes, strict=True)
        ]
        refused = any(isinstance(outcome, ProblemError) for outcome in outcomes)
        if acks is Acks.NONE and not refused:
            await call.answer(202, [])
        else:
            await call.answer_json(ProduceAnswer(results=results), 207 if refused else 200)


def _passed_on_key(call: Call) -> KeyedRequest | None:
    """The idempotency key of a JSON request that another broker has encoded; refused from anybody else."""
    if call.peer is not None:
        return passed_on_key(call, REQUEST_DIGEST)
    refuse_idempotency_key(call)
    return None


def _frame_meta(number: int, frame: Frame) -> ProduceFrameMeta:
    try:
        return decode_request(ProduceFrameMeta, frame.meta, unique_keys=False)
    except ProblemError as problem:
        raise ProblemError(
            problem.code, f"meta of frame {number}: {problem.detail}", data=problem.data
        ) from problem


def _refuse_repeated(metas: Sequence[ProduceFrameMeta]) -> None:
    """One batch a partition: two could be stored in either order, or one without the other."""
    seen: dict[tuple[str, int], int] = {}
    for number, meta in enumerate(metas):
        first = seen.setdefault((meta.topic_id, meta.partition), number)
        if first != number:
            raise ProblemError(
                "malformed_request",
                f"frames {first} and {number} name the same partition {meta.partition} of topic {meta.topic_id};"
                " a request takes one batch a partition",
            )
    if not metas:
        raise ProblemError("malformed_request", "the body has no frames")
