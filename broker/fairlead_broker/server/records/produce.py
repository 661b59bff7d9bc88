"""Produce calls that write one batch to one partition.

Callers: ``application`` for the routes named in ``endpoints``. A binary batch is passed to the runtime as received;
only JSON and Arrow bodies are encoded here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from fairlead_api.bodies.media_types import BATCHES, NDJSON
from fairlead_api.bodies.requests import ProduceResult
from fairlead_api.identifiers import Acks, PartitionIndex
from fairlead_api.problems import ProblemError
from fairlead_api.timestamps import format_timestamp
from fairlead_api.transaction_id import TransactionId
from fairlead_broker.clock import Clock
from fairlead_broker.runtime import AppendResult, Broker, KeyedRequest, ProduceItem, TopicView
from fairlead_broker.runtime.refusals import partition_not_found
from fairlead_broker.server.http.body import ProduceBodyLimits
from fairlead_broker.server.http.call import Call, Endpoint, record_body_type
from fairlead_broker.server.records.line_produce import LineProduce
from fairlead_broker.server.records.produce_head import (
    IN_THE_BATCH,
    acknowledgement,
    base_sequence,
    keyed_request,
    producer_stamp,
    refuse_idempotency_key,
    refuse_producer_headers,
)
from fairlead_broker.server.records.produced_records import encoded, read_records
from fairlead_broker.server.records.record_storing import create_to_write
from fairlead_broker.server.records.request_records import RequestRecords, Share, whole
from fairlead_broker.server.records.transaction_headers import (
    name_partition,
    refuse_transaction,
    stamp_of,
    transaction_of,
)
from fairlead_broker.server.routing.forwarding import Forwarding
from fairlead_broker.server.routing.locate import Elsewhere, locate_path, topic_to_write

DUPLICATE: Final = (b"fairlead-duplicate", b"true")
"""Header of an answer whose records were already stored by an earlier attempt."""


class ProduceCalls:
    """Endpoint of the call that writes one batch to one partition; ``bodies`` contains the maximum body sizes."""

    def __init__(
        self, broker: Broker, forwarding: Forwarding, clock: Clock, bodies: ProduceBodyLimits
    ) -> None:
        self._broker = broker
        self._forwarding = forwarding
        self._clock = clock
        self._bodies = bodies
        self._lines = LineProduce(broker, forwarding, clock, bodies)

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoint of each route of this family, by route name."""
        return {"produce_partition": self.produce_partition}

    async def produce_partition(self, call: Call) -> None:
        """``POST /v1/topics/{topic}/partitions/{partition}/records``."""
        acks, timeout_seconds = acknowledgement(call)
        media_type = record_body_type(call)
        if media_type == NDJSON:
            split = partial(_to_partition, call.partition)
            await self._lines.answer(call, acks, timeout_seconds, split, transaction_of(call))
            return
        topic, missing = await topic_to_write(call, self._broker)
        found = None if missing else await locate_path(call, self._broker, topic)
        if call.partition >= topic.partition_count:
            raise partition_not_found(topic.name, call.partition, topic.partition_count)
        call.begin_produce()
        body = await call.body(self._bodies.of(media_type))
        if isinstance(found, Elsewhere):
            await self._forwarding.pass_on(call, found.broker, body, timeout_seconds, writing=True)
            return
        if media_type == BATCHES:
            refuse_producer_headers(call, IN_THE_BATCH)
            refuse_idempotency_key(call)
            refuse_transaction(call, IN_THE_BATCH)
            transaction, batch, keyed = None, memoryview(body), None
        else:
            transaction = transaction_of(call)
            batch, keyed = await self._batch(call, topic, media_type, body, transaction)
        if found is None:
            batches = [(batch, keyed is not None)]
            topic = await create_to_write(call, self._broker, self._forwarding, topic, batches)
            found = await locate_path(call, self._broker, topic)
            if isinstance(found, Elsewhere):
                await self._forwarding.pass_on(call, found.broker, body, timeout_seconds, writing=True)
                return
        if transaction is not None:
            await name_partition(call, self._broker, transaction, topic.topic_id, call.partition)
        item = ProduceItem(found.replica, batch, keyed)
        [result] = await self._broker.producing.produce([item], acks=acks, timeout_seconds=timeout_seconds)
        if isinstance(result, ProblemError):
            raise result
        if acks is Acks.NONE:
            await call.answer(202, [])
        else:
            await answer_result(call, result)

    async def _batch(
        self,
        call: Call,
        topic: TopicView,
        media_type: str,
        body: bytes,
        transaction: TransactionId | None,
    ) -> tuple[memoryview, KeyedRequest | None]:
        """Return the batch of a JSON or Arrow body, and the idempotency key of the request."""
        producer = producer_stamp(call) if transaction is None else stamp_of(transaction, base_sequence(call))
        keyed = await keyed_request(call, media_type, body)
        records = await read_records(call, media_type, body, self._clock.now_us())
        return await encoded(records, topic.config, producer, keyed), keyed


def _to_partition(
    partition: PartitionIndex, topic: TopicView, records: RequestRecords
) -> Callable[[], Sequence[Share]]:
    """Assign all records to one partition. Raises partition_not_found."""
    if partition >= topic.partition_count:
        raise partition_not_found(topic.name, partition, topic.partition_count)
    return partial(whole, records, partition)


def produce_result(result: AppendResult) -> ProduceResult:
    """Return the position of a stored batch in the API's format."""
    return ProduceResult(
        base_offset=result.base_offset,
        last_offset=result.last_offset,
        log_append_time=format_timestamp(result.log_append_time_us),
        leader_epoch=result.leader_epoch,
        duplicate=result.duplicate,
    )


async def answer_result(call: Call, result: AppendResult) -> None:
    """Send the answer with the result of one batch."""
    await call.answer_json(produce_result(result), 200, [DUPLICATE] if result.duplicate else [])
