"""Allocation of producer ids and epochs.

Callers: ``application`` for the route named in ``endpoints``.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead_api.access_needs import Kind, Operation
from fairlead_api.bodies.requests import decode_request
from fairlead_api.routes.producers import AllocateProducerRequest, ProducerAnswer
from fairlead_broker.runtime import Broker
from fairlead_broker.server.http.call import Call, Endpoint, json_body


class ProducerCalls:
    """Endpoint of the call that allocates producer ids and epochs."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoint of each route of this family, by route name."""
        return {"allocate_producer": self.allocate_producer}

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
