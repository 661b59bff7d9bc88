"""Clients that are not open: each call raises the same typed error, which explains the next step."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

import fairlead
from fairlead import TopicPartition, blocking
from fairlead.errors import ClosedError, PartitionNotFoundError
from refusals import raises

if TYPE_CHECKING:
    from conftest import ScriptedBroker

PLACE: Final = TopicPartition("flights", 0)

Calls = Mapping[str, tuple[Any, ...]]

PRODUCER: Final[Calls] = {
    "send": ("flights", b"x"),
    "send_and_wait": ("flights", b"x"),
    "send_batch": ("flights", pa.table({"value": [b"x"]})),
    "flush": (),
    "refresh_metadata": (),
}
CONSUMER: Final[Calls] = {
    "assign": ([PLACE],),
    "seek": (PLACE, 0),
    "pause": (),
    "resume": (),
    "commit": (),
    "committed": (),
    "end_offsets": (),
    "offsets_for_times": ({PLACE: "earliest"},),
    "next_batch": (),
    "batches": (),
    "records": (),
}
ADMIN: Final[Calls] = {
    "create_topic": ("flights",),
    "list_topics": (),
    "delete_topic": ("flights",),
    "offsets": ("flights", 0),
    "delete_records": ("flights", 0),
    "offsets_for": ({PLACE: "earliest"},),
    "group_lag": ("delays",),
    "delete_group": ("delays",),
}


def clients(of: Any, bootstrap: str) -> list[tuple[Any, Calls]]:
    """Return new clients of a module, with some calls for each client."""
    return [
        (of.Producer(bootstrap), PRODUCER),
        (of.Consumer(bootstrap), CONSUMER),
        (of.Consumer(bootstrap, group="delays", topics="flights"), CONSUMER),
        (of.Admin(bootstrap), ADMIN),
    ]


async def called(client: Any, name: str, arguments: tuple[Any, ...]) -> None:
    """Make a call as a user's program does."""
    answer = getattr(client, name)(*arguments)
    if inspect.isawaitable(answer):
        await answer
    elif isinstance(answer, AsyncIterator):
        await anext(answer)


@pytest.mark.parametrize("is_closed", [False, True])
async def test_what_is_not_open_says_so(broker: ScriptedBroker, is_closed: bool) -> None:
    """A call to a client that is not open raises an error that names the client and the `async with` block."""
    for client, calls in clients(fairlead, broker.url):
        if is_closed:
            async with client:
                pass
        kind = type(client).__name__.lower()
        for name, arguments in calls.items():
            with raises(ClosedError, kind):
                await called(client, name, arguments)


@pytest.mark.parametrize("is_closed", [False, True])
async def test_a_blocking_client_that_is_not_open_says_so(broker: ScriptedBroker, is_closed: bool) -> None:
    """A call to a blocking client that is not open raises an error that names the client and the `with` block."""

    def scenario() -> None:
        for client, calls in clients(blocking, broker.url):
            if is_closed:
                with client:
                    pass
            kind = type(client).__name__.lower()
            for name, arguments in calls.items():
                with raises(ClosedError, kind):
                    next(iter(getattr(client, name)(*arguments)))

    await asyncio.to_thread(scenario)


def test_a_consumer_that_was_never_started_has_nothing() -> None:
    """A consumer that was never started has empty properties and no membership."""
    consumer = fairlead.Consumer(group="delays", topics="flights")

    assert (consumer.assignment, consumer.paused, consumer.has_in_hand) == (frozenset(), frozenset(), False)
    with raises(ClosedError, "consumer"):
        _ = consumer.membership


async def test_deliveries_outlive_the_block_of_their_producer(broker: ScriptedBroker) -> None:
    """The results of deliveries can be read after the producer's block has ended."""

    def scenario() -> None:
        with blocking.Producer(broker.url) as producer:
            delivery = producer.send("flights", b"x", partition=0)
            [piece] = producer.send_batch("flights", pa.table({"value": [b"y"]}), partition=0)
            nowhere = producer.send("flights", b"z", partition=7)
            with pytest.raises(PartitionNotFoundError):
                nowhere.result()

        assert (delivery.done, delivery.result().offset) == (True, 0)
        assert (piece.done, piece.result().base_offset) == (True, 1)
        with pytest.raises(PartitionNotFoundError):
            nowhere.result()

    await asyncio.to_thread(scenario)
