"""InitProducerId: ids of idempotent producers, and sessions of transactional producers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fairlead_api.identifiers import ProducerEpoch, ProducerId
from fairlead_api.problems import ProblemError
from fairlead_api.transaction_id import TransactionId
from fairlead_broker.kafka.calls.call import KafkaCall
from fairlead_broker.kafka.calls.replies import Reply
from fairlead_broker.kafka.calls.transaction_sessions import TransactionSessions, transaction_error
from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.errors import Family, KafkaError, error_of
from fairlead_broker.kafka.protocol.messages import InitProducerIdResponse
from fairlead_broker.runtime import Broker

PREVIOUS_SINCE: Final = 3
"""First version in which a client states its previous producer id and epoch."""
FENCED_SINCE: Final = 4
"""First version with the error PRODUCER_FENCED."""


class ProducerCalls:
    """Calls of producers that do not send records."""

    def __init__(self, broker: Broker, sessions: TransactionSessions) -> None:
        self._broker = broker
        self._sessions = sessions

    def calls(self) -> Mapping[ApiKey, Any]:
        """Return the call of each API of this family."""
        return {ApiKey.INIT_PRODUCER_ID: self.init_producer_id}

    async def init_producer_id(self, call: KafkaCall) -> Reply:
        """Return a new producer id, or begin a session of a transactional id.

        An idempotent producer that names its previous id gets a new one too, as in Kafka.
        """
        if call.request.transactional_id is not None:
            return await self._begin(call, call.request.transactional_id)
        try:
            allocated = await self._broker.allocate_producer(None)
        except ProblemError as problem:
            # Older producers treat every other error as final, even REQUEST_TIMED_OUT.
            error = KafkaError.COORDINATOR_LOAD_IN_PROGRESS
            return _refused(call, error if problem.retryable else error_of(problem, Family.ADMIN))
        return _allocated(call, allocated.producer_id, allocated.producer_epoch)

    async def _begin(self, call: KafkaCall, name: str) -> Reply:
        request = call.request
        timeout_ms = request.transaction_timeout_ms
        if not name:
            return _refused(call, KafkaError.INVALID_REQUEST)
        if not 0 < timeout_ms <= self._broker.configs.transaction_timeout_ms_max:
            return _refused(call, KafkaError.INVALID_TRANSACTION_TIMEOUT)
        previous = None
        if call.version >= PREVIOUS_SINCE and request.producer_id >= 0:
            previous = TransactionId(ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch))
        try:
            begun = await self._sessions.begin(call, name, timeout_ms, previous)
        except ProblemError as problem:
            return _refused(call, transaction_error(problem, knows_fenced=call.version >= FENCED_SINCE))
        return _allocated(call, begun.producer_id, begun.epoch)


def _allocated(call: KafkaCall, producer_id: int, epoch: int) -> Reply:
    return Reply(
        InitProducerIdResponse(
            version=call.version, error_code=KafkaError.NONE, producer_id=producer_id, producer_epoch=epoch
        )
    )


def _refused(call: KafkaCall, error: KafkaError) -> Reply:
    return Reply(
        InitProducerIdResponse(version=call.version, error_code=error, producer_id=-1, producer_epoch=-1)
    )
