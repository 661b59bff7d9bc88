"""Members of classic groups whose subscriptions are too large for the group."""

from __future__ import annotations

import pytest

from fairlead_broker.kafka.calls.classic import PROTOCOLS_BYTES_MAX, SUBSCRIPTION_BYTES_MAX
from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.errors import KafkaError
from kafka_wire import KafkaConnection

MOST = PROTOCOLS_BYTES_MAX // SUBSCRIPTION_BYTES_MAX


@pytest.mark.parametrize(
    ("count", "nbytes", "expected"),
    [
        (MOST - 1, SUBSCRIPTION_BYTES_MAX, KafkaError.MEMBER_ID_REQUIRED),
        (1, SUBSCRIPTION_BYTES_MAX + 1, KafkaError.INVALID_REQUEST),
        (MOST + 1, SUBSCRIPTION_BYTES_MAX, KafkaError.INVALID_REQUEST),
        (50_000, 0, KafkaError.INVALID_REQUEST),
    ],
)
async def test_the_subscriptions_of_a_member_have_a_limit_together(
    bootstrap: str, count: int, nbytes: int, expected: KafkaError
) -> None:
    """A member may have several large subscriptions, but not more than the group can keep for each member."""
    protocols = [{"name": f"p-{number}", "metadata": bytes(nbytes)} for number in range(count)]
    async with KafkaConnection.open(bootstrap) as connection:
        answer = await connection.ask(
            ApiKey.JOIN_GROUP, 4,
            group_id="billing", session_timeout_ms=10_000, rebalance_timeout_ms=10_000, member_id="",
            protocol_type="consumer", protocols=protocols,
        )  # fmt: skip

    assert answer.error_code == expected
