"""Allocation of producer ids and epochs, and the producers that a partition remembers.

Callers: ``application`` for the routes named in ``endpoints``.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter

from fairlead_api.access_needs import Kind, Operation
from fairlead_api.bodies.metadata import Page
from fairlead_api.bodies.producers import PartitionProducer
from fairlead_api.bodies.requests import decode_request
from fairlead_api.identifiers import Offset, ProducerId, TimestampUs
from fairlead_api.routes.producers import AllocateProducerRequest, ProducerAnswer
from fairlead_api.timestamps import format_timestamp
from fairlead_broker.log import PartitionLog
from fairlead_broker.producers import ProducerEntry
from fairlead_broker.runtime import Broker
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.server.http.call import Call, Endpoint, json_body
from fairlead_broker.server.http.paging import page
from fairlead_broker.server.routing.forwarding import Forwarding


class ProducerCalls:
    """Endpoints of the calls about idempotent producers."""

    def __init__(self, broker: Broker, forwarding: Forwarding) -> None:
        self._broker = broker
        self._forwarding = forwarding

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoint of each route of this family, by route name."""
        return {
            "allocate_producer": self.allocate_producer,
            "partition_producers": self._forwarding.at_leader(self.of_partition, writing=False),
        }

    async def allocate_producer(self, call: Call) -> None:
        """``POST /v1/producers``."""
        request = decode_request(AllocateProducerRequest, await json_body(call))
        if request.name is not None:
            call.access.require(Operation.WRITE, Kind.PRODUCER, request.name)
        producer = await self._broker.allocate_producer(request.name)
        await call.answer_json(
            ProducerAnswer(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                name=request.name,
            )
        )

    async def of_partition(self, call: Call, replica: LeaderReplica) -> None:
        """``GET /v1/topics/{topic}/partitions/{partition}/producers``."""
        # A partition may remember 100,000 producers, which are sorted outside the event loop.
        remembered = await self._broker.disk.submit(_by_id, replica.log)
        opened = {producer: offset for producer, _, offset in replica.open_transactions()}
        chosen, following = page(
            remembered,
            lambda entry: f"{entry[0]:020d}",
            limit=call.query.integer("limit"),
            after=call.query.text_or_none("after"),
        )
        items = [_described(producer, entry, opened.get(producer)) for producer, entry in chosen]
        await call.answer_json(Page(items=items, next=following))


def _by_id(log: PartitionLog) -> list[tuple[ProducerId, ProducerEntry]]:
    return sorted(log.remembered_producers(), key=itemgetter(0))


def _described(producer: ProducerId, entry: ProducerEntry, open_from: Offset | None) -> PartitionProducer:
    last = entry.batches[-1] if entry.batches else None
    return PartitionProducer(
        producer_id=producer,
        producer_epoch=entry.epoch,
        last_sequence=None if last is None else last.last_sequence,
        last_offset=None if last is None else last.last_offset,
        last_written_at=format_timestamp(TimestampUs(entry.partition_time_us)),
        open_from_offset=open_from,
    )
