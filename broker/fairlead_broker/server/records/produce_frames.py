"""Produce calls with one batch for each of many partitions, in frames, and the routing of batches to their leaders.

Callers: ``application`` for the routes named in ``endpoints``, and the other produce calls for the routing. A batch is
passed to the runtime as received. Each other broker gets one request with the unchanged batches for its partitions, and
its results are copied into the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from fairlead_api.access_needs import Operation
from fairlead_api.batch.header import Buffer
from fairlead_api.bodies.decided_transactions import DecidedTransaction
from fairlead_api.bodies.frames import Frame, encode_frame, iterate_frames
from fairlead_api.bodies.media_types import FRAMES, Header
from fairlead_api.bodies.requests import (
    PartitionProduceResult,
    ProduceAnswer,
    ProduceFrameMeta,
    decode_request,
)
from fairlead_api.identifiers import Acks, BrokerId, LeaderEpoch, Offset, PartitionIndex, TimestampUs, TopicId
from fairlead_api.problems import ProblemError
from fairlead_api.timestamps import format_timestamp, parse_timestamp_us
from fairlead_api.transaction_id import TransactionId
from fairlead_broker.peers.forwarded_callers import caller_header
from fairlead_broker.peers.peers import ANSWER_MARGIN_SECONDS, PeerAnswer, PeerUnavailable, problem_of
from fairlead_broker.runtime import AppendResult, Broker, KeyedRequest, ProduceItem
from fairlead_broker.server.http.call import Call, Endpoint, body_type
from fairlead_broker.server.records.produce_commit import (
    COMMIT,
    check_batches,
    commit_stored,
    transaction_to_commit,
)
from fairlead_broker.server.records.produce_head import (
    IN_THE_BATCH,
    REQUEST_DIGEST,
    acknowledgement,
    passed_on_key,
    refuse_idempotency_key,
    refuse_producer_headers,
)
from fairlead_broker.server.routing.forwarding import Forwarding, no_answer
from fairlead_broker.server.routing.locate import Here, locate, refusal_by_id

UNKNOWN_PLACE: Final = AppendResult(Offset(-1), Offset(-1), TimestampUs(-1), LeaderEpoch(-1))
"""Result of a batch with acks=0; the offsets are unknown."""

Outcome = AppendResult | ProblemError


class RoutedBatch(msgspec.Struct, frozen=True, gc=False):
    """A batch and its partition."""

    topic_id: TopicId
    partition: PartitionIndex
    batch: memoryview


class ProduceRouting:
    """Router of batches to the leaders of their partitions."""

    def __init__(self, broker: Broker, forwarding: Forwarding) -> None:
        self._broker = broker
        self._forwarding = forwarding

    async def store(
        self,
        call: Call,
        batches: Sequence[RoutedBatch | ProblemError],
        acks: Acks,
        timeout_seconds: float,
        keyed: KeyedRequest | None = None,
    ) -> list[Outcome]:
        """Return the outcome of each batch, in order.

        A problem in `batches` is returned unchanged. An unavailable partition does not prevent other batches from being
        stored. Raises problems of the whole request if this broker leads all partitions of the request.
        """
        outcomes: dict[int, Outcome] = {}
        items: dict[int, ProduceItem] = {}
        elsewhere: dict[BrokerId, dict[int, RoutedBatch]] = {}
        for place, routed in enumerate(batches):
            if isinstance(routed, ProblemError):
                outcomes[place] = routed
                continue
            try:
                found = await locate(call, self._broker, routed.topic_id, routed.partition)
            except ProblemError as problem:
                outcomes[place] = problem
                continue
            if isinstance(found, Here):
                items[place] = ProduceItem(found.replica, routed.batch, keyed)
            else:
                elsewhere.setdefault(found.broker, {})[place] = routed
        if len(items) == len(batches):
            return await self._broker.producing.produce(
                list(items.values()), acks=acks, timeout_seconds=timeout_seconds
            )
        if not elsewhere:
            outcomes.update(await self._store_here(items, acks, timeout_seconds))
        else:
            parts = await asyncio.gather(
                self._refused_or_stored(items, acks, timeout_seconds),
                *(
                    self._store_at(call, leader, shares, acks, timeout_seconds, keyed)
                    for leader, shares in elsewhere.items()
                ),
            )
            for part in parts:
                outcomes.update(part)
        return [outcomes[place] for place in range(len(batches))]

    async def _store_here(
        self, items: dict[int, ProduceItem], acks: Acks, timeout_seconds: float
    ) -> dict[int, Outcome]:
        if not items:
            return {}
        stored = await self._broker.producing.produce(
            list(items.values()), acks=acks, timeout_seconds=timeout_seconds
        )
        return dict(zip(items, stored, strict=True))

    async def _refused_or_stored(
        self, items: dict[int, ProduceItem], acks: Acks, timeout_seconds: float
    ) -> dict[int, Outcome]:
        try:
            return await self._store_here(items, acks, timeout_seconds)
        except ProblemError as problem:
            return dict.fromkeys(items, problem)

    async def _store_at(
        self,
        call: Call,
        leader: BrokerId,
        batches: dict[int, RoutedBatch],
        acks: Acks,
        timeout_seconds: float,
        keyed: KeyedRequest | None,
    ) -> dict[int, Outcome]:
        body: list[Buffer] = []
        for routed in batches.values():
            meta = ProduceFrameMeta(topic_id=routed.topic_id, partition=routed.partition)
            body += encode_frame(meta, [routed.batch])
        headers = [("content-type", FRAMES), caller_header(call.access)]
        if keyed is not None:
            headers += [
                (Header.IDEMPOTENCY_KEY.lower(), keyed.key.decode("latin-1")),
                (REQUEST_DIGEST, keyed.digest.hex()),
            ]
        path = f"/v1/produce?acks={acks.value}&timeout_ms={round(timeout_seconds * 1000)}"
        limit = timeout_seconds + ANSWER_MARGIN_SECONDS
        try:
            heard = await self._forwarding.ask(leader, "POST", path, headers, body, limit)
        except PeerUnavailable as unavailable:
            return {
                place: no_answer(unavailable, self._name(routed.topic_id), routed.partition, writing=True)
                for place, routed in batches.items()
            }
        return dict(zip(batches, _outcomes(heard, len(batches)), strict=True))

    def _name(self, topic_id: TopicId) -> str:
        try:
            return self._broker.views.by_id(topic_id).name
        except ProblemError:
            return topic_id


def partition_result(
    partition: int, outcome: AppendResult | ProblemError, *, topic_id: str | UnsetType = UNSET
) -> PartitionProduceResult:
    """Return the entry for one partition in an answer about several partitions."""
    if isinstance(outcome, ProblemError):
        return PartitionProduceResult(
            topic_id=topic_id, partition=partition, problem=dict(outcome.to_document())
        )
    return PartitionProduceResult(
        topic_id=topic_id,
        partition=partition,
        base_offset=outcome.base_offset,
        last_offset=outcome.last_offset,
        log_append_time=format_timestamp(outcome.log_append_time_us),
        leader_epoch=outcome.leader_epoch,
        duplicate=outcome.duplicate,
    )


def _outcomes(heard: PeerAnswer, count: int) -> list[Outcome]:
    if heard.status == HTTPStatus.ACCEPTED:
        return [UNKNOWN_PLACE] * count
    if heard.status >= HTTPStatus.BAD_REQUEST:
        return [problem_of(heard)] * count
    answer = msgspec.json.decode(heard.body, type=ProduceAnswer)
    return [_outcome(result) for result in answer.results]


def _outcome(result: PartitionProduceResult) -> Outcome:
    if isinstance(result.problem, dict):
        return ProblemError.from_document(result.problem)  # type: ignore[arg-type]
    document = msgspec.structs.asdict(result)
    if document["log_append_time"] is msgspec.UNSET:
        return UNKNOWN_PLACE
    return AppendResult(
        Offset(document["base_offset"]),
        Offset(document["last_offset"]),
        TimestampUs(parse_timestamp_us(document["log_append_time"], "log_append_time")),
        LeaderEpoch(document["leader_epoch"]),
        duplicate=document["duplicate"] is True,
    )


class ProduceFrameCalls:
    """Endpoint of the call that writes one batch to each of many partitions; ``body_bytes_max`` limits the body."""

    def __init__(self, broker: Broker, routing: ProduceRouting, body_bytes_max: int) -> None:
        self._broker = broker
        self._routing = routing
        self._body_bytes_max = body_bytes_max

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoint of each route of this family, by route name."""
        return {"produce": self.produce}

    async def produce(self, call: Call) -> None:
        """``POST /v1/produce``: 200 if every batch was stored and the commit, if any, was decided; otherwise 207.

        One result or problem per frame, in order.
        """
        acks, timeout_seconds = acknowledgement(call)
        body_type(call)
        refuse_producer_headers(call, IN_THE_BATCH)
        keyed = _passed_on_key(call)
        transaction = transaction_to_commit(call, self._broker, acks) if COMMIT in call.headers else None
        call.begin_produce()
        body = await call.body(self._body_bytes_max)
        frames = [
            (_frame_meta(number, frame), frame.data) for number, frame in enumerate(iterate_frames(body))
        ]
        _refuse_repeated([meta for meta, _ in frames])
        if transaction is not None:
            check_batches(transaction, (batch for _, batch in frames))
        batches: list[RoutedBatch | ProblemError] = [
            RoutedBatch(TopicId(meta.topic_id), PartitionIndex(meta.partition), batch)
            for meta, batch in frames
        ]
        if not call.access.is_open:
            batches = [allowed(call, self._broker, batch) for batch in batches]
        outcomes = await self._routing.store(call, batches, acks, timeout_seconds, keyed)
        if transaction is not None:
            metas = [meta for meta, _ in frames]
            # The commit may wait for the store.
            del body, frames, batches
            await self._answer_commit(call, transaction, metas, outcomes)
            return
        results = [
            partition_result(meta.partition, outcome, topic_id=meta.topic_id)
            for (meta, _), outcome in zip(frames, outcomes, strict=True)
        ]
        refused = any(isinstance(outcome, ProblemError) for outcome in outcomes)
        if acks is Acks.NONE and not refused:
            await call.answer(202, [])
        else:
            await call.answer_json(ProduceAnswer(results=results), 207 if refused else 200)

    async def _answer_commit(
        self,
        call: Call,
        transaction: TransactionId,
        metas: Sequence[ProduceFrameMeta],
        outcomes: Sequence[Outcome],
    ) -> None:
        """Commit a transaction whose last batches were in the request, unless a batch was refused, and answer."""
        call.end_produce()
        places = [(TopicId(meta.topic_id), PartitionIndex(meta.partition)) for meta in metas]
        commit = await commit_stored(call, self._broker, transaction, places, outcomes)
        committed = commit if isinstance(commit, DecidedTransaction) else UNSET
        results = [
            PartitionProduceResult(topic_id=topic_id, partition=partition)
            if committed is not UNSET and isinstance(outcome, ProblemError)
            else partition_result(partition, outcome, topic_id=topic_id)
            for (topic_id, partition), outcome in zip(places, outcomes, strict=True)
        ]
        problem: dict[str, object] | UnsetType = (
            dict(commit.to_document()) if isinstance(commit, ProblemError) else UNSET
        )
        answer = ProduceAnswer(results=results, committed=committed, commit_problem=problem)
        await call.answer_json(answer, 207 if committed is UNSET else 200)


def allowed(call: Call, broker: Broker, batch: RoutedBatch | ProblemError) -> RoutedBatch | ProblemError:
    """Return a batch that the caller may write, or the problem of the batch."""
    if isinstance(batch, ProblemError):
        return batch
    return refusal_by_id(call, broker, Operation.WRITE, batch.topic_id) or batch


def _passed_on_key(call: Call) -> KeyedRequest | None:
    """Return the idempotency key of a request that another broker has encoded; a key from a client is refused."""
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
    """Refuse a request with two batches for one partition.

    The order of two batches for one partition would be undefined, and only one of them might be stored.
    """
    seen: dict[tuple[str, int], int] = {}
    for number, meta in enumerate(metas):
        first = seen.setdefault((meta.topic_id, meta.partition), number)
        if first != number:
            raise ProblemError(
                "malformed_request",
                f"frames {first} and {number} name the same partition {meta.partition} of topic {meta.topic_id};"
                " a request may have one batch per partition",
            )
    if not metas:
        raise ProblemError("malformed_request", "the body has no frames")
