"""Sessions of transactional producers, request by request, as older clients send them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.errors import KafkaError
from kafka_wire import KafkaConnection


@pytest.fixture
async def connection(bootstrap: str) -> AsyncIterator[KafkaConnection]:
    """Yield a connection to a new broker."""
    async with KafkaConnection.open(bootstrap) as connection:
        yield connection


async def begin(connection: KafkaConnection, producer: int = -1, epoch: int = -1) -> Any:
    """Begin a session, for a client that states its producer id and epoch, if any; return the answer."""
    return await connection.ask(
        ApiKey.INIT_PRODUCER_ID,
        4,
        transactional_id="loader",
        transaction_timeout_ms=10_000,
        producer_id=producer,
        producer_epoch=epoch,
    )


async def end(connection: KafkaConnection, begun: Any, *, committed: bool) -> KafkaError:
    """End the transaction of a session, and return the error."""
    answer = await connection.ask(
        ApiKey.END_TXN,
        3,
        transactional_id="loader",
        producer_id=begun.producer_id,
        producer_epoch=begun.producer_epoch,
        committed=committed,
    )
    return KafkaError(answer.error_code)


async def test_a_transaction_without_written_offsets_can_be_aborted(connection: KafkaConnection) -> None:
    """A client that has only announced offsets of a group aborts its transaction; nothing can be committed."""
    begun = await begin(connection)
    added = await connection.ask(
        ApiKey.ADD_OFFSETS_TO_TXN,
        3,
        transactional_id="loader",
        producer_id=begun.producer_id,
        producer_epoch=begun.producer_epoch,
        group_id="billing",
    )
    errors = [await end(connection, begun, committed=each) for each in (False, True, False)]

    assert added.error_code == KafkaError.NONE
    assert errors == [KafkaError.NONE, KafkaError.INVALID_TXN_STATE, KafkaError.NONE]


async def test_a_repeated_begin_of_a_session_is_answered_as_before(connection: KafkaConnection) -> None:
    """A client that lost the answer gets its session again; another client that began a session is never fenced."""
    first = await begin(connection)
    stated = (first.producer_id, first.producer_epoch)
    second, again = [await begin(connection, *stated) for _ in range(2)]
    other = await begin(connection)
    late = await begin(connection, again.producer_id, again.producer_epoch)

    assert second.error_code == again.error_code == KafkaError.NONE
    assert (again.producer_id, again.producer_epoch) == (second.producer_id, second.producer_epoch)
    assert second.producer_epoch == first.producer_epoch + 1
    assert other.producer_epoch == again.producer_epoch + 1
    assert late.error_code == KafkaError.PRODUCER_FENCED
