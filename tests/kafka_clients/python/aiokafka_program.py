"""Runs aiokafka against brokers: idempotent produce with every codec, then two members of a group in turn.

Usage: aiokafka_program.py BOOTSTRAP TOPIC GROUP COUNT. The program prints one line for each step, and exits with 1 on
an error.
"""

from __future__ import annotations

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

SECONDS_MAX = 90.0


async def main(bootstrap: str, topic: str, group: str, count: int) -> None:
    """Produce and consume `count` records for each codec."""
    wanted = set()
    for codec in (None, "gzip", "snappy", "lz4", "zstd"):
        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=True, compression_type=codec
        ) as producer:
            sent = []
            for number in range(count):
                key = f"{codec}-{number}"
                wanted.add(key)
                headers = [("codec", str(codec).encode())]
                sent.append(
                    await producer.send(
                        topic, key=key.encode(), value=f"value of {key}".encode(), headers=headers
                    )
                )
            await asyncio.gather(*sent)
    print("idempotent produce with none, gzip, snappy, lz4 and zstd")

    settings = {"bootstrap_servers": bootstrap, "group_id": group, "enable_auto_commit": False}
    found: dict[str, int] = {}
    async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **settings) as consumer:
        async with asyncio.timeout(SECONDS_MAX):
            while len(found) < len(wanted):
                for messages in (await consumer.getmany(timeout_ms=200)).values():
                    for message in messages:
                        key = message.key.decode()
                        assert message.value == f"value of {key}".encode(), key
                        assert len(message.headers) == 1, key
                        found[key] = found.get(key, 0) + 1
                await consumer.commit()
    assert set(found.values()) == {1}, "a record was read twice"
    print("a member of a classic group, each record once")

    async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **settings) as consumer:
        assert await consumer.getmany(timeout_ms=2000) == {}, "records were read after the commit"
    print("the group continues at the committed offsets")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4], int(sys.argv[4])))
