"""From records to what became of them: split over partitions, encoded, and stored where each partition is led.

Callers: ``easy_produce`` and ``line_produce``. Creates the topic that was found missing. Must not know how the records
came or how the outcome is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from fairlead_api.identifiers import Acks
from fairlead_api.problems import ProblemError
from fairlead_broker.runtime import Broker, KeyedRequest, TopicView
from fairlead_broker.server.http.call import Call
from fairlead_broker.server.records.produce_routing import Outcome, ProduceRouting, RoutedBatch
from fairlead_broker.server.records.produced_records import encoded
from fairlead_broker.server.records.record_shares import Share
from fairlead_broker.server.records.topic_creation import create_to_write
from fairlead_broker.server.routing.forwarding import Forwarding

Split = Callable[[TopicView, pa.RecordBatch], Sequence[Share]]
"""Which records go to which partition."""
Stored = tuple[TopicView, Sequence[Share], list[Outcome]]
"""The topic, the shares, and what became of each."""


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
        records: pa.RecordBatch,
        split: Split,
        acks: Acks,
        timeout_seconds: float,
        keyed: KeyedRequest | None = None,
    ) -> Stored:
        """Store them; `target` is what ``topic_to_write`` found. Raises what refuses the request as a whole."""
        topic, missing = target
        shares = split(topic, records)
        if missing:
            batches = [
                (await encoded(share.records, topic.config, keyed=keyed), keyed is not None)
                for share in shares
            ]
            topic = await create_to_write(call, self._broker, self._forwarding, topic, batches)
            # Another creator may have asked for another number of partitions meanwhile.
            shares = split(topic, records)
        routed = [await _routed(topic, share, keyed) for share in shares]
        return topic, shares, await self._routing.store(call, routed, acks, timeout_seconds, keyed)


async def _routed(topic: TopicView, share: Share, keyed: KeyedRequest | None) -> RoutedBatch | ProblemError:
    """The batch of a share; one that cannot be made does not hold back the others."""
    try:
        batch = await encoded(share.records, topic.config, keyed=keyed)
    except ProblemError as problem:
        return problem
    return RoutedBatch(topic.topic_id, share.partition, batch)
