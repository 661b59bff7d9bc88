"""Stores the records of one request: splits them by partition, encodes them, and stores each batch at its leader.

Used by `topic_produce` and `line_produce`. A missing topic is created first. This module must not depend on the format
of the request or of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fairlead_api.bodies.requests import CreateTopicRequest
from fairlead_api.identifiers import Acks
from fairlead_api.problems import ProblemError
from fairlead_api.transaction_id import TransactionId
from fairlead_broker.runtime import Broker, KeyedRequest, TopicView
from fairlead_broker.server.http.call import Call
from fairlead_broker.server.http.codec_threads import in_thread
from fairlead_broker.server.records.produce_frames import Outcome, ProduceRouting, RoutedBatch
from fairlead_broker.server.records.produced_records import all_encoded
from fairlead_broker.server.records.request_records import RequestRecords, Share
from fairlead_broker.server.records.transaction_headers import name_partition, stamp_of
from fairlead_broker.server.routing.forwarding import Forwarding

Split = Callable[[TopicView, RequestRecords], Callable[[], Sequence[Share]]]
"""Function that chooses, on the event loop, how the records of a request are assigned to partitions of a topic. The
function returns the work of the assignment, which may run in a thread."""
Stored = tuple[TopicView, Sequence[Share], list[Outcome]]
"""The topic, the shares, and the outcome of each share."""


class RecordStoring:
    """Stores the records of one request."""

    def __init__(self, broker: Broker, forwarding: Forwarding) -> None:
        self._broker = broker
        self._forwarding = forwarding
        self._routing = ProduceRouting(broker, forwarding)

    async def store(
        self,
        call: Call,
        target: tuple[TopicView, bool],
        records: RequestRecords,
        split: Split,
        acks: Acks,
        timeout_seconds: float,
        keyed: KeyedRequest | None = None,
        transaction: TransactionId | None = None,
    ) -> Stored:
        """Store the records. `target` is the result of ``topic_to_write``.

        Raises problems that concern the whole request.
        """
        topic, missing = target
        producer = None if transaction is None else stamp_of(transaction)
        shares = await _assigned(split(topic, records), records)
        batches = await all_encoded(
            records, [share.records for share in shares], topic.config, producer, keyed
        )
        if missing:
            topic = await self._created(call, topic, batches, keyed)
            # While the topic was being created, another request may have created it with a different number of
            # partitions.
            shares = await _assigned(split(topic, records), records)
            batches = await all_encoded(
                records, [share.records for share in shares], topic.config, producer, keyed
            )
        if transaction is not None:
            for share in shares:
                await name_partition(call, self._broker, transaction, topic.topic_id, share.partition)
        routed = [
            batch if isinstance(batch, ProblemError) else RoutedBatch(topic.topic_id, share.partition, batch)
            for share, batch in zip(shares, batches, strict=True)
        ]
        return topic, shares, await self._routing.store(call, routed, acks, timeout_seconds, keyed)

    async def _created(
        self,
        call: Call,
        planned: TopicView,
        batches: Sequence[memoryview | ProblemError],
        keyed: KeyedRequest | None,
    ) -> TopicView:
        """Create the missing topic. Raises the problem for a share that cannot be encoded."""
        checked: list[tuple[memoryview, bool]] = []
        for batch in batches:
            if isinstance(batch, ProblemError):
                raise batch
            checked.append((batch, keyed is not None))
        return await create_to_write(call, self._broker, self._forwarding, planned, checked)


async def _assigned(assign: Callable[[], Sequence[Share]], records: RequestRecords) -> Sequence[Share]:
    return await in_thread(assign) if records.may_block() else assign()


async def create_to_write(
    call: Call,
    broker: Broker,
    forwarding: Forwarding,
    planned: TopicView,
    batches: Sequence[tuple[memoryview, bool]],
) -> TopicView:
    """Create the missing topic of a produce call after a check that its batches could be stored.

    `batches` contains each batch with a flag that states whether the batch has an idempotency key. Raises the problems
    with which a leader would refuse a batch, and the problems of creating a topic.
    """
    for batch, keyed in batches:
        await in_thread(broker.check_produced, planned, batch, keyed=keyed)
    return await forwarding.create_topic(call, CreateTopicRequest(name=call.topic))
