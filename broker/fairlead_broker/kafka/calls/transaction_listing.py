"""ListTransactions and DescribeTransactions: the newest transaction of each producer with a name.

Every broker coordinates every transaction, and tools ask all brokers for their transactions. Each broker therefore
lists a share of the producers, so that a tool shows each transaction once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from fairlead_api.access_needs import Kind, Operation
from fairlead_api.identifiers import ProducerId
from fairlead_api.problems import ProblemError
from fairlead_broker.kafka.calls.call import KafkaCall
from fairlead_broker.kafka.calls.places import kafka_brokers
from fairlead_broker.kafka.calls.replies import Reply
from fairlead_broker.kafka.calls.transaction_sessions import transaction_error
from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.errors import KafkaError
from fairlead_broker.kafka.protocol.messages import DescribeTransactionsResponse, ListTransactionsResponse
from fairlead_broker.registry.transaction_records import Outcome, TransactionRecord
from fairlead_broker.runtime import Broker
from fairlead_broker.transactions.decisions import KAFKA_EPOCH_MAX, kept
from fairlead_broker.transactions.kafka_sessions import is_empty

PAGE: Final = 100
"""Number of records that are read at once."""
ONGOING: Final = "Ongoing"
EMPTY: Final = "Empty"
PREPARED: Final = "PrepareCommit"
COMMITTED: Final = "CompleteCommit"
ABORTED: Final = "CompleteAbort"
STATES: Final = frozenset({ONGOING, EMPTY, PREPARED, COMMITTED, ABORTED})
"""States of Kafka's transactions that a listed transaction may have."""
DURATION_SINCE: Final = 1
"""First version of ListTransactions that can ask for long transactions only."""


class TransactionListingCalls:
    """Calls that read the transactions of producers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def calls(self) -> Mapping[ApiKey, Any]:
        """Return the call of each API of this family."""
        return {
            ApiKey.LIST_TRANSACTIONS: self.list_all,
            ApiKey.DESCRIBE_TRANSACTIONS: self.describe,
        }

    async def list_all(self, call: KafkaCall) -> Reply:
        """Return the transactions that are this broker's share and match the filters."""
        request, version = call.request, call.version
        states, producers = set(request.state_filters), set(request.producer_id_filters)
        begun_before_us = None
        if version >= DURATION_SINCE and request.duration_filter >= 0:
            begun_before_us = self._broker.clock.now_us() - request.duration_filter * 1000
        response = ListTransactionsResponse(
            version=version,
            error_code=KafkaError.NONE,
            unknown_state_filters=sorted(states - STATES),
            transaction_states=[],
        )
        try:
            async for producer_id, record in self._share():
                state = self._state_of(producer_id, record)
                if (
                    record.name is not None
                    and call.access.sees(Kind.PRODUCER, record.name)
                    and (not states or state in states)
                    and (not producers or producer_id in producers)
                    and (begun_before_us is None or (state == ONGOING and record.used_us <= begun_before_us))
                ):
                    response.transaction_states.append(
                        ListTransactionsResponse.TransactionState(
                            version=version,
                            transactional_id=record.name,
                            producer_id=producer_id,
                            transaction_state=state,
                        )
                    )
        except ProblemError as problem:
            response.error_code = transaction_error(problem, knows_fenced=True)
        return Reply(response)

    async def _share(self) -> AsyncIterator[tuple[ProducerId, TransactionRecord]]:
        own, brokers = self._broker.peer_side.peers.own.broker, list(kafka_brokers(self._broker))
        after, more = None, own in brokers
        while more:
            found, more = await self._broker.transactions.page(after, PAGE)
            for producer_id, record in found:
                if brokers[producer_id % len(brokers)] == own:
                    yield producer_id, record
                after = producer_id

    async def describe(self, call: KafkaCall) -> Reply:
        """Return the newest transaction of each transactional id."""
        states = [await self._described(call, name) for name in dict.fromkeys(call.request.transactional_ids)]
        return Reply(DescribeTransactionsResponse(version=call.version, transaction_states=states))

    async def _described(self, call: KafkaCall, name: str) -> Any:
        response = DescribeTransactionsResponse.TransactionState(
            version=call.version, error_code=KafkaError.NONE, transactional_id=name
        )
        transactions = self._broker.transactions
        try:
            call.access.require(Operation.DESCRIBE, Kind.PRODUCER, name)
            producer_id = await transactions.find(name)
            record = None if producer_id is None else await transactions.standing(producer_id)
        except ProblemError as problem:
            response.error_code = transaction_error(problem, knows_fenced=True)
            return response
        if producer_id is None or record is None:
            response.error_code = KafkaError.TRANSACTIONAL_ID_NOT_FOUND
            return response
        response.producer_id, response.producer_epoch = producer_id, kafka_epoch(record)
        response.transaction_state = self._state_of(producer_id, record)
        response.transaction_timeout_ms = record.timeout_ms
        response.transaction_start_time_ms = (
            record.used_us // 1000 if response.transaction_state == ONGOING else -1
        )
        response.topics = [
            DescribeTransactionsResponse.TransactionState.TopicData(
                version=call.version, topic=topic, partitions=list(partitions)
            )
            for topic_id, partitions in record.named.items()
            if (topic := self._broker.metadata.topic_name(topic_id)) is not None
            and call.access.sees(Kind.TOPIC, topic)
        ]
        return response

    def _state_of(self, producer_id: ProducerId, record: TransactionRecord) -> str:
        """Return Kafka's state of the newest transaction."""
        if not is_empty(record):
            return ONGOING
        if kept(record, self._broker.transactions.ends.confirmed(producer_id)):
            return PREPARED
        if record.ended is None:
            return EMPTY
        return COMMITTED if record.ended.outcome is Outcome.COMMIT else ABORTED


def kafka_epoch(record: TransactionRecord) -> int:
    """Return an epoch that a client of the producer states, or -1 if no epoch fits in Kafka's messages."""
    if record.epoch <= KAFKA_EPOCH_MAX:
        return record.epoch
    return -1 if record.kafka is None else record.kafka.epoch
