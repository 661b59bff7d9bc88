"""Kafka's producers while a broker has no room for further batches: they wait, and none of them gets an error."""

from __future__ import annotations

import asyncio

import pytest

from kafka_kit import StartBroker, kafka_address, produced
from waiting import until

SECONDS_MAX = 30.0


async def test_a_produce_waits_for_room_within_its_timeout(start: StartBroker) -> None:
    """A record is stored as soon as there is room for it, and a producer that waits too long gets a time-out."""
    running = await start()
    bootstrap, budget = kafka_address(running), running.broker.produce_budget
    await asyncio.to_thread(produced, bootstrap, "orders", [{"value": b"first"}])
    assert budget.take(budget.bytes_max)
    patient = asyncio.create_task(
        asyncio.to_thread(produced, bootstrap, "orders", [{"value": b"second"}], retries=0)
    )
    await until(lambda: budget.waiting == 1, SECONDS_MAX)
    with pytest.raises(AssertionError) as refused:
        await asyncio.to_thread(
            produced,
            bootstrap,
            "orders",
            [{"value": b"never"}],
            **{"retries": 0, "request.timeout.ms": 100},
        )
    budget.give_back(budget.bytes_max)
    [report] = await patient

    assert "TIMED_OUT" in str(refused.value)
    assert report.offset() == 1
