"""Storing of the records of one request: splitting by partition, encoding, and storing at the leaders.

Used by `topic_produce` and `line_produce`. A missing topic is created first. This module must not depend on the format
of the request or of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fairlead_api.batch.partitioning import NO_PARTITION, partitions_for_keys
from fairlead_api.bodies.requests import CreateTopicRequest
from fairlead_api.identifiers import Acks, PartitionIndex
from fairlead_api.problems import ProblemError
from fairlead_broker.runtime import Broker, KeyedRequest, TopicView
from fairlead_broker.server.http.call import Call
from fairlead_broker.server.http.codec_threads import in_thread
from fairlead_broker.server.records.produce_routing import Outcome, ProduceRouting, RoutedBatch
from fairlead_broker.server.records.produced_records import encoded
from fairlead_broker.server.routing.forwarding import Forwarding


@dataclass(frozen=True, slots=True)
class Share:
    """The records of a request for one partition."""

    partition: PartitionIndex
    rows: npt.NDArray[np.int64]
    records: pa.RecordBatch


def shares_of(records: pa.RecordBatch, partition_count: int, place_of_rest: int) -> list[Share]:
    """Return the records by partition, in their order; records without a key all go to `place_of_rest`."""
    places = partitions_for_keys(cast("pa.BinaryArray", records.column("key")), partition_count)
    places = np.where(places == NO_PARTITION, place_of_rest, places)
    chosen = np.unique(places)
    if len(chosen) == 1:
        rows = np.arange(records.num_rows, dtype=np.int64)
        return [Share(PartitionIndex(int(chosen[0])), rows, records)]
    shares = []
    for partition in chosen:
        rows = np.flatnonzero(places == partition)
        shares.append(Share(PartitionIndex(int(partition)), rows, records.take(pa.array(rows, pa.int64()))))
    return shares


Split = Callable[[TopicView, pa.RecordBatch], Sequence[Share]]
"""Function that assigns the records of a request to partitions of a topic."""
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
        records: pa.RecordBatch,
        split: Split,
        acks: Acks,
        timeout_seconds: float,
        keyed: KeyedRequest | None = None,
    ) -> Stored:
        """Store the records. `target` is the result of ``topic_to_write``.

        Raises problems that concern the whole request.
        """
        topic, missing = target
        shares = split(topic, records)
        if missing:
            batches = [
                (await encoded(share.records, topic.config, keyed=keyed), keyed is not None)
                for share in shares
            ]
            topic = await create_to_write(call, self._broker, self._forwarding, topic, batches)
            # In the meantime, another request may have created the topic with a different number of partitions.
            shares = split(topic, records)
        routed = [await _routed(topic, share, keyed) for share in shares]
        return topic, shares, await self._routing.store(call, routed, acks, timeout_seconds, keyed)


async def _routed(topic: TopicView, share: Share, keyed: KeyedRequest | None) -> RoutedBatch | ProblemError:
    """Return the batch of a share, or the problem of a share that cannot be encoded; other shares are still stored."""
    try:
        batch = await encoded(share.records, topic.config, keyed=keyed)
    except ProblemError as problem:
        return problem
    return RoutedBatch(topic.topic_id, share.partition, batch)


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
