"""InitProducerId: ids of idempotent producers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairlead_api.problems import ProblemError
from fairlead_broker.kafka.calls.call import KafkaCall
from fairlead_broker.kafka.calls.replies import Reply
from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.errors import Family, KafkaError, error_of
from fairlead_broker.kafka.protocol.messages import InitProducerIdResponse
from fairlead_broker.runtime import Broker


class ProducerCalls:
    """Calls of producers that do not send records."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def calls(self) -> Mapping[ApiKey, Any]:
        """Return the call of each API of this family."""
        return {ApiKey.INIT_PRODUCER_ID: self.init_producer_id}

    async def init_producer_id(self, call: KafkaCall) -> Reply:
        """Return a new producer id, even to a producer that names its previous id, as Kafka does.

        A transactional producer is refused with an error that its client does not retry; most other errors are retried
        forever.
        """
        if call.request.transactional_id is not None:
            return _refused(call, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        try:
            allocated = await self._broker.allocate_producer(None)
        except ProblemError as problem:
            return _refused(call, error_of(problem, Family.ADMIN))
        return Reply(
            InitProducerIdResponse(
                version=call.version,
                error_code=KafkaError.NONE,
                producer_id=allocated.producer_id,
                producer_epoch=allocated.producer_epoch,
            )
        )


def _refused(call: KafkaCall, error: KafkaError) -> Reply:
    return Reply(
        InitProducerIdResponse(version=call.version, error_code=error, producer_id=-1, producer_epoch=-1)
    )
