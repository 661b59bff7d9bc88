"""Storing the batches of one request where their partitions are led: here, and at other brokers side by side.

Callers: the families that produce to several partitions. Each other leader gets one request with its batches as they
came; what it says of each goes into the caller's answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from fairlead_api.batch.header import Buffer
from fairlead_api.bodies.frames import encode_frame
from fairlead_api.bodies.media_types import FRAMES, Header
from fairlead_api.bodies.requests import PartitionProduceResult, ProduceAnswer, ProduceFrameMeta
from fairlead_api.identifiers import Acks, BrokerId, LeaderEpoch, Offset, PartitionIndex, TimestampUs, TopicId
from fairlead_api.problems import ProblemError
from fairlead_api.timestamps import format_timestamp, parse_timestamp_us
from fairlead_broker.peers.peers import ANSWER_MARGIN_SECONDS, PeerAnswer, PeerUnavailable, problem_of
from fairlead_broker.runtime import AppendResult, Broker, KeyedRequest, ProduceItem
from fairlead_broker.server.http.call import Call
from fairlead_broker.server.routing.forwarding import Forwarding, no_answer
from fairlead_broker.server.routing.locate import Here, locate

REQUEST_DIGEST: Final = "fairlead-request-digest"
"""Header between brokers: what tells the request of an idempotency key from another one."""
UNKNOWN_PLACE: Final = AppendResult(Offset(-1), Offset(-1), TimestampUs(-1), LeaderEpoch(-1))
"""Result with acks=0: the place is unknown."""

Outcome = AppendResult | ProblemError


@dataclass(frozen=True, slots=True)
class RoutedBatch:
    """One batch and the partition it is for."""

    topic_id: TopicId
    partition: PartitionIndex
    batch: memoryview


class ProduceRouting:
    """Stores batches at their leaders."""

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
        """What became of each batch, in order.

        A problem stays what it is, and a partition that cannot be had does not hold back the others. Raises what
        refuses the whole request, where no other broker has a part in it.
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
        if not elsewhere:
            outcomes.update(await self._store_here(items, acks, timeout_seconds))
        else:
            parts = await asyncio.gather(
                self._refused_or_stored(items, acks, timeout_seconds),
                *(
                    self._store_at(leader, shares, acks, timeout_seconds, keyed)
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
        headers = [("content-type", FRAMES)]
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
    """One entry of an answer about several partitions."""
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
