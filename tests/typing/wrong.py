"""A program that no test runs, and in which every type checker must report an error on each marked line."""

from __future__ import annotations

from fairlead import Consumer, Producer
from fairlead.blocking import Producer as BlockingProducer


async def wrong() -> None:
    """Use wrong types, unknown names, and a value without `await`."""
    Producer(acks=[])  # WRONG
    Producer(lingerms=5)  # WRONG
    Consumer(group=5)  # WRONG
    async with Producer() as producer:
        await producer.send("flights", "text")  # WRONG
        offset = (await producer.send("flights", b"x")).offset  # WRONG
    del offset
    BlockingProducer(compression=1)  # WRONG
